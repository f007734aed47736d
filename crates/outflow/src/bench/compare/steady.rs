//! A steady rate: latency from commit to readable entry, what each event costs, and how the table
//! grows; with several intervals of polling; and while an old transaction holds back vacuum.
//!
//! Open loop, as in `latency`. The percentiles are of all events after the warm-up, in HDR
//! histograms. Costs are of the whole round. The producers' share in the WAL and in the whole
//! server's CPU time is the same for every competitor; the other figures hold nothing of it.

use tokio_postgres::Client;

use super::Comparison;
use super::cost::{Reading, peak};
use super::delivery::{add_latency, lag_over_time};
use super::sampler::{self, Sampler};
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::latency::{Load, Spans, WARM_UP, measure};
use crate::bench::stage::Stage;

/// Above this rate transactions hold several events: the disk, not the relay, would be measured.
const SINGLE_UP_TO: u32 = 1000;
/// Events of a transaction above that.
const ROWS: u64 = 10;
/// Of the scenario of intervals, in events a second.
const INTERVALS_RATE: u32 = 200;
/// Of the scenario with an old transaction.
const LONG_TRANSACTION_RATE: u32 = 500;

/// One scenario.
struct Case {
    name: String,
    rate: u32,
    /// Whether an old transaction is open all the while.
    held: bool,
}

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    for &rate in &run.plan.rates {
        let name = match rows(rate) {
            1 => format!("steady: {rate} events/s"),
            rows => format!("steady: {rate} events/s in transactions of {rows}"),
        };
        let case = Case { name, rate, held: false };
        measure_all(run, tally, &case, &run.plan.subjects()).await?;
    }
    Ok(())
}

pub(super) async fn intervals(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let name = format!("intervals: {INTERVALS_RATE} events/s");
    let case = Case { name, rate: INTERVALS_RATE, held: false };
    let subjects: Vec<Subject> = run
        .plan
        .compared_intervals
        .iter()
        .map(|interval| Subject::polling(Some(*interval)))
        .collect();
    measure_all(run, tally, &case, &subjects).await
}

pub(super) async fn long_transaction(
    run: &Comparison<'_>,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let name = format!("long transaction: {LONG_TRANSACTION_RATE} events/s");
    let case = Case { name, rate: LONG_TRANSACTION_RATE, held: true };
    measure_all(run, tally, &case, &run.plan.pair()).await
}

fn rows(rate: u32) -> u64 {
    if rate > SINGLE_UP_TO { ROWS } else { 1 }
}

async fn measure_all(
    run: &Comparison<'_>,
    tally: &mut Tally,
    case: &Case,
    subjects: &[Subject],
) -> anyhow::Result<()> {
    for round in 1..=run.plan.rounds {
        for subject in run.in_turn(subjects, round) {
            let title = run.title(&case.name, round, &subject);
            measure_one(run, tally, case, title, &subject).await?;
        }
    }
    Ok(())
}

async fn measure_one(
    run: &Comparison<'_>,
    tally: &mut Tally,
    case: &Case,
    title: String,
    subject: &Subject,
) -> anyhow::Result<()> {
    let (stage, progress, scenario) = (run.stage, run.progress, case.name.as_str());
    let events = u64::from(case.rate).saturating_mul(run.plan.duration.as_secs());
    let mut broker = run.fresh().await?;
    progress.step(title, events);
    let mut at_work = AtWork::start(stage, &broker, subject, None, run.plan.lease).await?;
    // a slot cannot be created while it is open
    let holder = if case.held { Some(hold(stage).await?) } else { None };
    let sampler = Sampler::start(stage, &at_work).await?;
    let before = Reading::take(stage, &mut broker, &at_work).await?;
    let load = Load { rows: rows(case.rate), ..Load::new(run.next_load(), case.rate, events) };
    let times = measure(stage, &broker, &mut at_work.programs, load, progress).await?;
    let after = Reading::take(stage, &mut broker, &at_work).await?;
    let name = subject.name();
    add_latency(tally, scenario, &name, &Spans::of(&times, WARM_UP.min(run.plan.duration / 2))?);
    tally.line(scenario, &name, "lag over time", lag_over_time(&times));
    tally.add_all(scenario, &name, before.until(after).per_event(events));
    tally.add(scenario, &name, ("relay memory", Unit::Memory, peak(&at_work)?));
    let repeated = broker.length().await?.saturating_sub(events);
    tally.add(scenario, &name, ("repeated entries", Unit::Count, repeated as f64));
    at_work.stop(stage).await?;
    // the counters come with a delay
    run.settle_statistics().await?;
    sampler::add(tally, scenario, &name, &sampler.finish().await?);
    drop(holder);
    Ok(())
}

/// A transaction that has written something and seen everything: vacuum removes nothing that was
/// there after it, and a slot keeps the log from where it began. It ends with its connection.
async fn hold(stage: &Stage) -> anyhow::Result<Client> {
    const HOLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()";
    let client = stage.connect().await?;
    client.batch_execute(HOLD).await?;
    Ok(client)
}
