//! The consumer under worse conditions, and with more hands, each against the plain consumer of the
//! same round.
//!
//! - 1 % duplicates and 0.1 % events that the projection refuses, spread evenly: nearly every
//!   transaction holds both. Refused ones become dead letters at once and hold nobody up
//!   (`max_attempts = 1`, `on_failure = "skip"`): what is measured is to find them and to go on.
//! - `on_gap = "warn"`, where every event has a `seq` and none is missing: two statements more in each
//!   transaction, over the thousand aggregates of its thousand events. The costliest case there is.
//! - two partitions, read by one worker and by two, in the time in which both partitions are at work
//!   (to share them out takes a moment, and at the end one is done before the other); and what two
//!   connections do with the statements alone, as the bound that the database sets on this machine;
//!   and how many processors are at work, which is the bound where there are few of them.

use std::time::Instant;

use anyhow::{Context, ensure};
use outflow_event::{EntryId, StreamNaming};

use super::super::broker::Broker;
use super::super::figure::{Figure, Target, Unit};
use super::super::process::{POLL, Patience, Program, cpu_of_machine};
use super::super::progress::Progress;
use super::super::stage::{AGGREGATE_TYPE, Stage};
use super::events::{Made, fill_stream};
use super::{BATCH, PROJECTION, SCENARIO, empty, group, statements};

const CLEAN: &str = "clean:";
const DIRTY: &str = "dirty:";
const PAIR: &str = "pair:";
/// Rounds with `on_gap = "warn"`, and none with `--quick`.
const WATCHED: u32 = 3;

/// A stream and the ids of its entries.
struct Lane {
    key: String,
    ids: Vec<EntryId>,
}

/// How fast the streams were applied.
struct Pace {
    /// From the first read to the last acknowledgement.
    seconds: f64,
    /// Events a second while every stream was at work.
    rate: f64,
    /// How many processors were at work meanwhile.
    busy: f64,
}

/// What a consumer of these rounds is given beyond the defaults.
struct Setup<'a> {
    prefix: &'a str,
    partitions: u32,
    workers: usize,
    on_gap: &'a str,
}

pub(super) async fn run(
    stage: &Stage,
    broker: &mut Broker,
    events: &[Made],
    progress: &Progress,
) -> anyhow::Result<Vec<Figure>> {
    broker.clear().await?;
    let naming = StreamNaming::new(PAIR, 2);
    let of = |partition| {
        let is_of = move |event: &&Made| {
            StreamNaming::new(PAIR, 2).partition(event.aggregate_id.as_bytes()) == partition
        };
        events.iter().filter(is_of).cloned().collect::<Vec<Made>>()
    };
    let halves = [of(0), of(1)];
    let dirty = worsen(events);
    let clean = vec![lane(broker, format!("{CLEAN}{AGGREGATE_TYPE}"), events, progress).await?];
    let refused =
        vec![lane(broker, format!("{DIRTY}{AGGREGATE_TYPE}"), &dirty.events, progress).await?];
    let mut pair = Vec::new();
    for (key, half) in naming.keys(AGGREGATE_TYPE).into_iter().zip(&halves) {
        pair.push(lane(broker, key, half, progress).await?);
    }

    let plain = Setup { prefix: CLEAN, partitions: 1, workers: 1, on_gap: "ignore" };
    let (mut worse, mut watched) = (Vec::new(), Vec::new());
    let (mut scaled, mut bound) = (Vec::new(), Vec::new());
    let (mut busy_one, mut busy_two) = (Vec::new(), Vec::new());
    for round in 1..=stage.options.rounds {
        progress.step(format!("inbox, round {round}: duplicates, refusals, gaps, workers"), 1);
        let base = timed(stage, broker, &clean, &plain, events.len()).await?;
        if round <= WATCHED && !stage.options.quick {
            let setup = Setup { on_gap: "warn", ..plain };
            let watching = timed(stage, broker, &clean, &setup, events.len()).await?;
            watched.push(base.seconds / watching.seconds);
        }
        let setup = Setup { prefix: DIRTY, ..plain };
        let dirty = timed(stage, broker, &refused, &setup, dirty.effects).await?;
        worse.push(base.seconds / dirty.seconds);
        let setup = Setup { prefix: PAIR, partitions: 2, ..plain };
        let one = timed(stage, broker, &pair, &setup, events.len()).await?;
        let setup = Setup { workers: 2, ..setup };
        let two = timed(stage, broker, &pair, &setup, events.len()).await?;
        scaled.push(two.rate / one.rate);
        busy_one.push(one.busy);
        busy_two.push(two.busy);
        bound.push(two_connections(stage, events, &halves, progress).await?);
    }
    empty(stage).await?;
    let figure = |case: &str, name, rounds| {
        Figure::new(SCENARIO, case.to_owned(), name, Unit::Ratio, rounds)
    };
    let mut figures = vec![
        figure("1 % duplicates, 0.1 % refused", "consumer / consumer without", worse)
            .target(Some(Target::AtLeast(0.8))),
    ];
    if !watched.is_empty() {
        figures.push(figure("on_gap = \"warn\"", "consumer / consumer without", watched));
    }
    figures.extend([
        figure("two partitions", "two workers / one worker", scaled),
        figure("two partitions", "two connections / one, statements alone", bound),
        figure("two partitions", "processors at work, one worker", busy_one),
        figure("two partitions", "processors at work, two workers", busy_two),
    ]);
    Ok(figures)
}

/// How much faster two connections are with the statements alone than one.
async fn two_connections(
    stage: &Stage,
    events: &[Made],
    halves: &[Vec<Made>; 2],
    progress: &Progress,
) -> anyhow::Result<f64> {
    empty(stage).await?;
    let client = stage.connect().await?;
    let bare = statements::run(client, ("one", events), BATCH, PROJECTION, progress).await?;
    empty(stage).await?;
    let since = Instant::now();
    let (first, second) = (stage.connect().await?, stage.connect().await?);
    tokio::try_join!(
        statements::run(first, ("one", &halves[0]), BATCH, PROJECTION, progress),
        statements::run(second, ("two", &halves[1]), BATCH, PROJECTION, progress),
    )?;
    Ok(events.len() as f64 / since.elapsed().as_secs_f64() / bare)
}

struct Worsened {
    events: Vec<Made>,
    /// How many have an effect.
    effects: usize,
}

/// Every hundredth entry brings the event before it once more, every thousandth an event that the
/// projection cannot read.
fn worsen(events: &[Made]) -> Worsened {
    let mut worse: Vec<Made> = events.to_vec();
    let mut lost = 0;
    for (number, event) in worse.iter_mut().enumerate() {
        let before = number.checked_sub(1).and_then(|before| events.get(before));
        match (number % 1000, number % 100, before) {
            (777, _, _) => {
                event.payload =
                    event.payload.replace("\"amount\": ", "\"amount\": \"no\", \"was\": ");
                lost += 1;
            }
            (_, 50, Some(before)) => {
                *event = Made { id: event.id, ..before.clone() };
                lost += 1;
            }
            _ => {}
        }
    }
    Worsened { effects: events.len() - lost, events: worse }
}

async fn lane(
    broker: &mut Broker,
    key: String,
    events: &[Made],
    progress: &Progress,
) -> anyhow::Result<Lane> {
    progress.step(format!("inbox, writing {} entries to {key}", events.len()), events.len() as u64);
    fill_stream(broker, &key, events, progress).await?;
    let ids: Vec<EntryId> = events.iter().map(|event| event.id).collect();
    ensure!(!ids.is_empty(), "a stream without events");
    Ok(Lane { key, ids })
}

impl Lane {
    /// How many entries a group has acknowledged; it acknowledges in order, but for a few batches.
    fn done(&self, delivered: EntryId, pending: usize) -> usize {
        self.ids.partition_point(|id| *id <= delivered).saturating_sub(pending)
    }
}

async fn timed(
    stage: &Stage,
    broker: &mut Broker,
    lanes: &[Lane],
    setup: &Setup<'_>,
    effects: usize,
) -> anyhow::Result<Pace> {
    empty(stage).await?;
    let name = stage.fresh_name();
    let mut programs: Vec<Program> = Vec::new();
    for number in 1..=setup.workers {
        let worker = format!("worker-{number}");
        let sink = (setup.prefix, setup.partitions, setup.on_gap);
        programs.push(stage.worker(&name, &worker, broker, PROJECTION, sink)?);
    }
    let mut patience = Patience::new();
    let mut began = None;
    let (mut all_at_work, mut until) = (None, None);
    let seconds = loop {
        let mut done = Vec::new();
        for lane in lanes {
            let (delivered, pending) =
                group(broker, &lane.key, &name).await?.unwrap_or(("0-0".to_owned(), 0));
            let delivered: EntryId = delivered.parse().unwrap_or(EntryId::ZERO);
            if delivered > EntryId::ZERO && began.is_none() {
                began = Some(Instant::now());
            }
            done.push(lane.done(delivered, pending));
        }
        let sum: usize = done.iter().sum();
        if all_at_work.is_none() && done.iter().all(|done| *done > 0) {
            all_at_work = Some((Instant::now(), sum, cpu_of_machine()?));
        }
        let ended = done.iter().zip(lanes).filter(|(done, lane)| **done == lane.ids.len()).count();
        if until.is_none() && ended > 0 {
            until = Some((Instant::now(), sum, cpu_of_machine()?));
        }
        if let Some(began) = began.filter(|_| ended == lanes.len()) {
            break began.elapsed().as_secs_f64();
        }
        for program in &mut programs {
            program.must_run()?;
        }
        patience.watch(sum as u64)?;
        tokio::time::sleep(POLL).await;
    };
    for program in programs {
        program.stop().await?;
    }
    let sql = "SELECT (SELECT count(*) FROM outflow.inbox), \
               (SELECT COALESCE(sum(journals), 0)::bigint FROM turnover)";
    let row = stage.sql.query_one(sql, &[]).await?;
    let (inbox, applied): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let expected = i64::try_from(effects)?;
    ensure!(
        inbox == expected && applied == expected,
        "{effects} events left {inbox} inbox rows and {applied} effects in the projection"
    );
    let window = all_at_work.zip(until).filter(|(since, until)| since.0 < until.0);
    let ((since, before, worked_before), (until, after, worked)) =
        window.context("one stream was done before the other began: ask for more events")?;
    let took = (until - since).as_secs_f64();
    let rate = (after - before) as f64 / took;
    let busy = worked.saturating_sub(worked_before).as_secs_f64() / took;
    Ok(Pace { seconds, rate, busy })
}

#[cfg(test)]
mod tests {
    use super::super::events::make;
    use super::*;

    #[test]
    fn one_in_a_hundred_comes_twice_and_one_in_a_thousand_is_refused() {
        let events = make(2000);
        let worse = worsen(&events);
        assert_eq!(worse.effects, 2000 - 20 - 2);
        let ids: std::collections::HashSet<_> = worse.events.iter().map(|e| &e.event_id).collect();
        assert_eq!(ids.len(), 1980);
        assert!(worse.events.is_sorted_by(|a, b| a.id < b.id));
        let payload: serde_json::Value = serde_json::from_str(&worse.events[777].payload).unwrap();
        assert_eq!(payload["amount"], "no");
    }
}
