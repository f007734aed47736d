//! The consumer against its own statements.
//!
//! A stream of events is applied by `outflow consume` with the demo's projection, and in alternation
//! by the same statements in the same transactions of 1000 events, sent over one connection from
//! arrays that were ready in memory before the clock started: what this PostgreSQL can do if reading,
//! decoding and acknowledging cost nothing. The tables are emptied in between.
//!
//! The consumer is timed from the first sight of its first read (its group moves) to the first sight
//! of its last acknowledgement, one look every 5 ms. A round counts only if inbox and projection then
//! hold every event exactly once.

mod events;
mod statements;
mod variants;

use std::time::Instant;

use anyhow::{Context, ensure};
use redis::streams::StreamInfoGroupsReply;

use self::events::{Made, fill, make};
use super::broker::Broker;
use super::figure::{Figure, Target, Unit};
use super::process::{POLL, Patience, Program, cpu, peak_mib};
use super::progress::Progress;
use super::stage::{STREAM, Stage};

pub(super) const SCENARIO: &str = "inbox";
/// Events of one transaction, the consumer's default.
const BATCH: usize = 1000;
/// The demo's projection: turnover per customer and currency.
pub(super) const PROJECTION: &str = include_str!("../../../../sql/demo/consumer/projection.sql");

/// One round of the consumer.
struct Run {
    /// Events a second.
    rate: f64,
    /// CPU time an event in microseconds.
    cpu: f64,
    /// Peak memory in MiB.
    peak: f64,
}

pub(super) async fn run(stage: &Stage, progress: &Progress) -> anyhow::Result<Vec<Figure>> {
    let events = make(stage.options.inbox_events);
    let mut broker = stage.broker(false).await?;
    broker.clear().await?;
    progress.step(format!("inbox, writing {} entries", events.len()), stage.options.inbox_events);
    fill(&mut broker, &events, progress).await?;

    let mut runs = Vec::new();
    let mut bare = Vec::new();
    for round in 1..=stage.options.rounds {
        let title = |who| format!("inbox, round {round}: {who}");
        for consumer in [round % 2 == 1, round % 2 == 0] {
            empty(stage).await?;
            if consumer {
                progress.step(title("consumer"), stage.options.inbox_events);
                runs.push(consumer_run(stage, &mut broker, &events, progress).await?);
            } else {
                progress.step(title("statements alone"), stage.options.inbox_events);
                let client = stage.connect().await?;
                bare.push(
                    statements::run(client, (STREAM, &events), BATCH, PROJECTION, progress).await?,
                );
            }
            verify(stage, events.len()).await?;
        }
        if let (Some(run), Some(bare)) = (runs.last(), bare.last()) {
            progress.say(&format!(
                "  {} against {}: {:.2}",
                Unit::Rate.show(run.rate),
                Unit::Rate.show(*bare),
                run.rate / bare
            ));
        }
    }
    let mut figures = summary(&runs, bare);
    figures.extend(variants::run(stage, &mut broker, &events, progress).await?);
    Ok(figures)
}

fn summary(runs: &[Run], bare: Vec<f64>) -> Vec<Figure> {
    let of = |value: fn(&Run) -> f64| runs.iter().map(value).collect();
    let case = format!("batch {BATCH}");
    let figure = |name, unit, rounds| Figure::new(SCENARIO, case.clone(), name, unit, rounds);
    let ratios = runs.iter().zip(&bare).map(|(run, bare)| run.rate / bare).collect();
    vec![
        figure("consumer / statements alone", Unit::Ratio, ratios)
            .target(Some(Target::AtLeast(0.85))),
        figure("consumer", Unit::Rate, of(|run| run.rate)),
        figure("statements alone", Unit::Rate, bare),
        figure("CPU of the consumer", Unit::Cpu, of(|run| run.cpu)),
        figure("peak memory of the consumer", Unit::Memory, of(|run| run.peak)),
    ]
}

/// Empties what both write to.
async fn empty(stage: &Stage) -> anyhow::Result<()> {
    let sql = "TRUNCATE outflow.inbox, outflow.position, outflow.dead_letter, outflow.parked, outflow.worker, \
               outflow.sequence, turnover; CHECKPOINT";
    Ok(stage.sql.batch_execute(sql).await?)
}

/// Checks that every event had its effect once.
async fn verify(stage: &Stage, events: usize) -> anyhow::Result<()> {
    let sql = "SELECT (SELECT count(*) FROM outflow.inbox), \
               (SELECT COALESCE(sum(journals), 0)::bigint FROM turnover)";
    let row = stage.sql.query_one(sql, &[]).await?;
    let (inbox, applied): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let expected = i64::try_from(events)?;
    ensure!(
        inbox == expected && applied == expected,
        "{events} events left {inbox} inbox rows and {applied} effects in the projection"
    );
    Ok(())
}

async fn consumer_run(
    stage: &Stage,
    broker: &mut Broker,
    events: &[Made],
    progress: &Progress,
) -> anyhow::Result<Run> {
    let name = stage.fresh_name();
    let last = events.last().map(|event| event.id.to_string()).context("no events")?;
    let mut consumer = stage.consumer(&name, broker, PROJECTION)?;
    let mut patience = Patience::new();
    let mut began = None;
    let (since, before) = loop {
        let group = group(broker, STREAM, &name).await?;
        let (delivered, pending) = group.unwrap_or(("0-0".to_owned(), 0));
        if began.is_none() && delivered != "0-0" {
            began = Some((Instant::now(), cpu(consumer.pid())?));
        }
        if let Some(began) = began.filter(|_| delivered == last && pending == 0) {
            break began;
        }
        watch(&mut consumer, &mut patience, &delivered, events, progress)?;
        tokio::time::sleep(POLL).await;
    };
    let took = since.elapsed();
    let used = cpu(consumer.pid())?.saturating_sub(before);
    let peak = peak_mib(consumer.pid())?;
    consumer.stop().await?;
    let count = events.len() as f64;
    Ok(Run { rate: count / took.as_secs_f64(), cpu: used.as_secs_f64() * 1e6 / count, peak })
}

/// An error when the consumer has ended or stands still.
fn watch(
    consumer: &mut Program,
    patience: &mut Patience,
    delivered: &str,
    events: &[Made],
    progress: &Progress,
) -> anyhow::Result<()> {
    consumer.must_run()?;
    let id = delivered.parse().unwrap_or(outflow_event::EntryId::ZERO);
    let done = events.partition_point(|event| event.id <= id) as u64;
    progress.at(done);
    patience.watch(done).map_err(|error| consumer.failure(&error.to_string()))
}

/// The last id that the group has delivered, and how many entries are pending.
pub(super) async fn group(
    broker: &mut Broker,
    stream: &str,
    name: &str,
) -> anyhow::Result<Option<(String, usize)>> {
    let exists: bool = redis::cmd("EXISTS").arg(stream).query_async(&mut broker.connection).await?;
    if !exists {
        return Ok(None);
    }
    let reply: StreamInfoGroupsReply =
        redis::cmd("XINFO").arg("GROUPS").arg(stream).query_async(&mut broker.connection).await?;
    let group = reply.groups.into_iter().find(|group| group.name == name);
    Ok(group.map(|group| (group.last_delivered_id, group.pending)))
}
