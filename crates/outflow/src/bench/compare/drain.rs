//! A backlog that waits when the relay starts: how fast it goes, and what each event costs.
//!
//! Nothing writes meanwhile, so WAL and CPU time are the relay's alone. Timed from the first sight
//! of a walsender or of a claim to the first sight of the last entry.

use anyhow::{Context, bail};

use super::Comparison;
use super::cost::{Reading, peak};
use super::sampler::{self, Sampler};
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::backlog::Backlog;
use crate::bench::figure::Unit;
use crate::bench::process::{POLL, Patience};

/// Events of a transaction.
const ROWS: u64 = 100;

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let scenario = format!("backlog: {} events", run.plan.backlog);
    let mut subjects = vec![Subject::Connector];
    subjects.extend(
        run.plan.relays.iter().map(|&relays| Subject::Polling {
            relays,
            interval: run.plan.intervals.first().copied(),
        }),
    );
    for round in 1..=run.plan.rounds {
        for subject in run.in_turn(&subjects, round) {
            measure_one(run, tally, &scenario, round, &subject).await?;
        }
    }
    Ok(())
}

async fn measure_one(
    run: &Comparison<'_>,
    tally: &mut Tally,
    scenario: &str,
    round: u32,
    subject: &Subject,
) -> anyhow::Result<()> {
    let (stage, progress, name) = (run.stage, run.progress, subject.name());
    let mut broker = run.fresh().await?;
    let backlog = Backlog::write(stage, run.plan.backlog, ROWS, progress).await?;
    stage.sql.batch_execute("ANALYZE outflow.outbox").await?;
    progress.step(run.title(scenario, round, subject), backlog.events);
    let slot = match subject {
        Subject::Connector => Some(backlog.slot(stage).await?),
        Subject::Polling { .. } => None,
    };
    let mut at_work = AtWork::start(stage, &broker, subject, slot, run.plan.lease).await?;
    let sampler = Sampler::start(stage, &at_work).await?;
    let before = Reading::take(stage, &mut broker, &at_work).await?;
    let arrived = broker.length().await?;
    let mut patience = Patience::new();
    loop {
        let length = broker.length().await?;
        progress.at(length);
        if length >= backlog.events {
            break;
        }
        for program in &mut at_work.programs {
            program.must_run()?;
        }
        patience.watch(length).context(name.clone())?;
        tokio::time::sleep(POLL).await;
    }
    let took = at_work.since.elapsed().as_secs_f64();
    let after = Reading::take(stage, &mut broker, &at_work).await?;
    let length = broker.length().await?;
    if length != backlog.events {
        bail!("{name}: the stream holds {length} entries for {} events", backlog.events);
    }
    // costs are counted from a little after the start on
    let counted = backlog.events.saturating_sub(arrived).max(1);
    tally.add(scenario, &name, ("throughput", Unit::Rate, backlog.events as f64 / took));
    tally.add(scenario, &name, ("time to drain", Unit::Time, took * 1e3));
    tally.add_all(scenario, &name, before.until(after).per_event(counted));
    tally.add(scenario, &name, ("relay memory", Unit::Memory, peak(&at_work)?));
    at_work.stop(stage).await?;
    run.settle_statistics().await?;
    sampler::add(tally, scenario, &name, &sampler.finish().await?);
    backlog.discard(stage).await
}
