//! SIGKILL under load, in mid-batch, and a new process at once, several times: what is repeated, for
//! how long nothing comes, and how long it takes until everything from before is there.
//!
//! A proxy withholds Redis's replies just before, and the signal is sent at the first sight of new
//! entries: the batch is in the stream, and the relay has not learnt of it. Without that, a kill
//! would find a batch in this state once in a while, and the result would be chance.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use super::Comparison;
use super::delivery::{add_disturbed, recovery};
use super::effect::add_effects;
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::latency::{Load, measure};

/// Events a second.
const RATE: u32 = 1000;
/// How long a relay that works may go without a new entry, beyond its interval.
const GROWS_WITHIN: Duration = Duration::from_millis(500);
/// How long a relay may take to come back.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let lease = run.plan.kill_lease;
    let scenario = format!(
        "kill: {} SIGKILLs, {RATE} events/s, lease {}",
        run.plan.kills,
        humantime::format_duration(lease)
    );
    for subject in run.plan.pair() {
        measure_one(run, tally, &scenario, lease, &subject).await?;
    }
    Ok(())
}

async fn measure_one(
    run: &Comparison<'_>,
    tally: &mut Tally,
    scenario: &str,
    lease: Duration,
    subject: &Subject,
) -> anyhow::Result<()> {
    let (stage, progress, name) = (run.stage, run.progress, subject.name());
    let pause = lease + Duration::from_secs(1);
    let seconds = pause.as_secs().saturating_mul(u64::from(run.plan.kills) + 1);
    let events = u64::from(RATE).saturating_mul(seconds);
    let mut broker = run.fresh().await?;
    broker.interrupt_by_proxy().await?;
    progress.step(format!("{scenario}: {name}"), events);
    let at_work = AtWork::start(stage, &broker, subject, None, lease).await?;
    let load = Load { patience: PATIENCE, ..Load::new(run.next_load(), RATE, events) };
    let (mut watched, stream) = (broker.connection.clone(), broker.stream());
    let killing = async {
        let (mut at_work, mut kills) = (at_work, Vec::new());
        for _ in 0..run.plan.kills {
            tokio::time::sleep(pause).await;
            broker.withhold_replies();
            growth(&mut watched, &stream, subject.delay() + GROWS_WITHIN).await?;
            let slot = at_work.slot();
            kills.push(Instant::now());
            at_work.kill().await?;
            broker.restore();
            at_work = AtWork::start(stage, &broker, subject, slot, lease).await?;
        }
        anyhow::Ok((at_work, kills))
    };
    let measuring = measure(stage, &broker, &mut [], load, progress);
    let ((at_work, kills), times) = tokio::try_join!(killing, measuring)?;
    // what a lapsed claim repeats comes a lease later
    tokio::time::sleep(lease + Duration::from_millis(500)).await;
    let repeated = broker.length().await?.saturating_sub(events);
    add_disturbed(tally, scenario, &name, &times, repeated);
    let slowest = kills.iter().map(|kill| recovery(&times, *kill)).max().unwrap_or_default();
    let slowest = slowest.as_secs_f64() * 1e3;
    tally.add(scenario, &name, ("time to recover, longest", Unit::Time, slowest));
    at_work.stop(stage).await?;
    tally.add(scenario, &name, ("events committed", Unit::Count, events as f64));
    add_effects(run, tally, (scenario, &name), &mut broker).await
}

/// Waits for the next new entry, as closely as it can; `within` that time at most. A relay that adds
/// none under load waits for the reply to what it has added.
async fn growth(
    redis: &mut MultiplexedConnection,
    stream: &str,
    within: Duration,
) -> anyhow::Result<()> {
    let mut length = redis::cmd("XLEN");
    length.arg(stream);
    let (since, before) = (Instant::now(), length.query_async::<u64>(redis).await?);
    while length.query_async::<u64>(redis).await? == before && since.elapsed() < within {}
    Ok(())
}
