//! Many events in one moment, to a relay that waits: how long until all of them are there.

use std::time::Instant;

use anyhow::Context;

use super::Comparison;
use super::delivery::{add_latency, lag_over_time};
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::latency::{Load, Spans, measure};

/// All are due within a fraction of a second; the producers commit them as fast as they can.
const RATE: u32 = 1_000_000;
/// Events of a transaction.
const ROWS: u64 = 100;

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let scenario = format!("burst: {} events", run.plan.burst);
    for round in 1..=run.plan.rounds {
        for subject in run.in_turn(&run.plan.pair(), round) {
            let title = run.title(&scenario, round, &subject);
            measure_one(run, tally, &scenario, title, &subject).await?;
        }
    }
    Ok(())
}

async fn measure_one(
    run: &Comparison<'_>,
    tally: &mut Tally,
    scenario: &str,
    title: String,
    subject: &Subject,
) -> anyhow::Result<()> {
    let (stage, progress, events) = (run.stage, run.progress, run.plan.burst);
    let broker = run.fresh().await?;
    progress.step(title, events);
    let mut at_work = AtWork::start(stage, &broker, subject, None, run.plan.lease).await?;
    let load = Load { rows: ROWS, ..Load::new(run.next_load(), RATE, events) };
    let times = measure(stage, &broker, &mut at_work.programs, load, progress).await?;
    at_work.stop(stage).await?;
    let name = subject.name();
    let begin = times.first().map(|times| times.due).context("no events")?;
    let last = |part: Vec<Instant>| part.into_iter().max().context("nothing arrived");
    let readable = last(times.iter().filter_map(|times| times.readable).collect())?;
    let committed = last(times.iter().filter_map(|times| times.committed).collect())?;
    let millis = |to: Instant| to.saturating_duration_since(begin).as_secs_f64() * 1e3;
    tally.add(scenario, &name, ("until all are committed", Unit::Time, millis(committed)));
    tally.add(scenario, &name, ("until all are readable", Unit::Time, millis(readable)));
    add_latency(tally, scenario, &name, &Spans::of(&times, std::time::Duration::ZERO)?);
    tally.line(scenario, &name, "lag over time", lag_over_time(&times));
    Ok(())
}
