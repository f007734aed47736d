//! Redis cannot be reached for a while, under load: what is late, what is repeated, what the waiting
//! costs. A proxy between relay and Redis refuses connections; the reader has its own way.

use std::time::{Duration, Instant};

use super::Comparison;
use super::cost::peak;
use super::delivery::{add_disturbed, recovery};
use super::sampler::{self, Sampler};
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::latency::{Load, measure};

/// Events a second.
const RATE: u32 = 500;
/// Under load before the outage.
const BEFORE: Duration = Duration::from_secs(1);
/// Under load after it.
const AFTER: Duration = Duration::from_secs(2);
/// How long a relay may take to come back.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let outage = humantime::format_duration(run.plan.outage);
    let scenario = format!("outage: no Redis for {outage}, {RATE} events/s");
    for subject in run.plan.pair() {
        measure_one(run, tally, &scenario, &subject).await?;
    }
    Ok(())
}

async fn measure_one(
    run: &Comparison<'_>,
    tally: &mut Tally,
    scenario: &str,
    subject: &Subject,
) -> anyhow::Result<()> {
    let (stage, progress, name) = (run.stage, run.progress, subject.name());
    let outage = run.plan.outage;
    let events = u64::from(RATE).saturating_mul((BEFORE + outage + AFTER).as_secs());
    let mut broker = run.fresh().await?;
    broker.interrupt_by_proxy().await?;
    progress.step(format!("{scenario}: {name}"), events);
    let at_work = AtWork::start(stage, &broker, subject, None, run.plan.lease).await?;
    let sampler = Sampler::start(stage, &at_work).await?;
    let patience = outage + PATIENCE;
    let load = Load { patience, ..Load::new(run.next_load(), RATE, events) };
    let breaking = async {
        tokio::time::sleep(BEFORE).await;
        broker.cut_off().await;
        tokio::time::sleep(outage).await;
        broker.restore();
        anyhow::Ok(Instant::now())
    };
    let (restored, times) =
        tokio::try_join!(breaking, measure(stage, &broker, &mut [], load, progress))?;
    let recovery = recovery(&times, restored).as_secs_f64() * 1e3;
    tally.add(scenario, &name, ("time to recover", Unit::Time, recovery));
    tally.add(scenario, &name, ("relay memory", Unit::Memory, peak(&at_work)?));
    at_work.stop(stage).await?;
    run.settle_statistics().await?;
    sampler::add(tally, scenario, &name, &sampler.finish().await?);
    let repeated = broker.length().await?.saturating_sub(events);
    add_disturbed(tally, scenario, &name, &times, repeated);
    Ok(())
}
