//! From the acknowledged commit to the readable entry, at a steady rate.
//!
//! Open loop: events are due at fixed times, whatever became of the earlier ones. Each is a
//! transaction of one INSERT, on whichever of a few connections is free. Two spans are kept for each:
//! - from the moment the producer learns that the transaction has committed, to the moment a reader
//!   that waits in `XREAD BLOCK` holds the entry: what outflow adds to a commit;
//! - from the moment the event was due: that, with the commit itself and any queue before it, so that
//!   nothing is left out when something stalls (coordinated omission).
//!
//! A reader may hold the entry before the producer has woken up for its acknowledgement; such a span
//! counts as 0. Producers, reader, PostgreSQL, connector and Redis share the machine.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::Client;

use super::backlog::{AGGREGATES, MEMO, create_slot};
use super::broker::Broker;
use super::figure::{Figure, Target, Unit};
use super::process::Program;
use super::progress::Progress;
use super::stage::{AGGREGATE_TYPE, Stage};

pub(super) const SCENARIO: &str = "latency";
/// Connections of the producer: more than the disk lets be in commit at once.
const PRODUCERS: usize = 16;
/// Left out at the beginning of each round.
pub(super) const WARM_UP: Duration = Duration::from_secs(2);
/// How long the last entry may take to show up.
const STRAGGLERS: Duration = Duration::from_secs(20);

/// When things happened to one event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) due: Instant,
    pub(super) committed: Option<Instant>,
    /// When its first entry was there to read.
    pub(super) readable: Option<Instant>,
}

/// What a round writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Begins the event ids: no two rounds on one table may have the same.
    pub(super) round: u32,
    /// Events a second.
    pub(super) rate: u32,
    pub(super) events: u64,
    /// Events of a transaction, which are all due when the first one is.
    pub(super) rows: u64,
    /// How long nothing new may arrive.
    pub(super) patience: Duration,
}

impl Load {
    /// Transactions of one event each.
    pub(super) fn new(round: u32, rate: u32, events: u64) -> Self {
        Self { round, rate, events, rows: 1, patience: STRAGGLERS }
    }
}

pub(super) async fn run(stage: &Stage, progress: &Progress) -> anyhow::Result<Vec<Figure>> {
    let mut broker = stage.broker(false).await?;
    broker.clear().await?;
    let slot = stage.fresh_name();
    create_slot(stage, &slot).await?;
    let mut connector = stage.connector(&slot, &broker)?;
    stage.walsender(&slot, &mut connector).await?;
    let mut programs = [connector];
    let rounds = if stage.options.quick { 1 } else { stage.options.rounds.min(3) };
    let mut histograms = Vec::new();
    for round in 1..=rounds {
        let options = &stage.options;
        let events = u64::from(options.rate).saturating_mul(options.latency_seconds.into());
        progress.step(format!("latency, {} events/s, round {round}", options.rate), events);
        let load = Load::new(round, options.rate, events);
        let times = measure(stage, &broker, &mut programs, load, progress).await?;
        histograms.push(Spans::of(&times, WARM_UP)?);
    }
    for program in programs {
        program.stop().await?;
    }
    stage.drop_slot(&slot).await?;
    Ok(summary(stage, &histograms))
}

/// One round: every event's times. `programs` must run all the while.
pub(super) async fn measure(
    stage: &Stage,
    broker: &Broker,
    programs: &mut [Program],
    load: Load,
    progress: &Progress,
) -> anyhow::Result<Vec<Times>> {
    let reader = read(broker, load)?;
    let begin = Instant::now() + Duration::from_millis(100);
    let gap = Duration::from_secs(1) / load.rate;
    let due = |transaction: u64| begin + gap.mul_f64((transaction * load.rows) as f64);
    let mut times: Vec<Times> = (0..load.events)
        .map(|event| Times { due: due(event / load.rows), committed: None, readable: None })
        .collect();

    let (sender, receiver) = mpsc::unbounded_channel();
    let queue = Arc::new(Mutex::new(receiver));
    let mut producers = Vec::new();
    for _ in 0..PRODUCERS {
        let client = stage.connect().await?;
        producers.push(tokio::spawn(produce(client, Arc::clone(&queue), load)));
    }
    for transaction in 0..load.events.div_ceil(load.rows) {
        let at = due(transaction);
        if at > Instant::now() {
            // wakes up to a millisecond late, which counts from when the event was due
            tokio::time::sleep_until(at.into()).await;
            progress.at(transaction * load.rows);
            for program in programs.iter_mut() {
                program.must_run()?;
            }
        }
        sender.send(transaction).context("the producers are gone")?;
    }
    drop(sender);
    for producer in producers {
        for (events, committed) in producer.await.context("a producer is lost")?? {
            for event in events {
                if let Some(times) = of(&mut times, event) {
                    times.committed = Some(committed);
                }
            }
        }
    }
    for (event, readable) in reader.await.context("the reader is lost")?? {
        if let Some(times) = of(&mut times, event) {
            times.readable = Some(readable);
        }
    }
    Ok(times)
}

fn of(times: &mut [Times], event: u64) -> Option<&mut Times> {
    times.get_mut(usize::try_from(event).ok()?)
}

/// Commits the transactions that come out of the queue; says when it learnt of each commit.
async fn produce(
    client: Client,
    queue: Arc<Mutex<mpsc::UnboundedReceiver<u64>>>,
    load: Load,
) -> anyhow::Result<Vec<(Range<u64>, Instant)>> {
    let Load { round, events, rows, .. } = load;
    let columns =
        "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, payload)";
    let values = |n: &str| {
        format!(
            "'{round}-' || {n}, '{AGGREGATE_TYPE}', 'c-' || {n} % {AGGREGATES}, 'Posted', \
             jsonb_build_object('journal_id', 'j-' || {n}, 'consumer', 'c-' || {n} % {AGGREGATES}, \
                                'currency', 'EUR', 'amount', 100, 'memo', '{MEMO}')"
        )
    };
    let insert = match rows {
        1 => format!("{columns} VALUES ({})", values("$1::bigint")),
        _ => format!(
            "{columns} SELECT {} FROM generate_series($1::bigint, $1::bigint + $2::bigint - 1) n",
            values("n")
        ),
    };
    let statement = client.prepare(&insert).await?;
    let mut committed = Vec::new();
    loop {
        let next = queue.lock().await.recv().await;
        let Some(transaction) = next else { return Ok(committed) };
        let range = transaction * rows..events.min((transaction + 1) * rows);
        let number = |count| i64::try_from(count).context("too many events");
        let (first, count) = (number(range.start)?, number(range.end - range.start)?);
        match rows {
            1 => client.execute(&statement, &[&first]).await?,
            _ => client.execute(&statement, &[&first, &count]).await?,
        };
        committed.push((range, Instant::now()));
    }
}

type Readable = Vec<(u64, Instant)>;

/// Reads the stream from its end until all events of the round were there, on a thread of its own:
/// nothing else of this program delays it. Says when it held the first entry of each event.
fn read(
    broker: &Broker,
    load: Load,
) -> anyhow::Result<tokio::task::JoinHandle<anyhow::Result<Readable>>> {
    let Load { round, events, patience, .. } = load;
    let stream = broker.stream();
    let client = redis::Client::open(broker.url())?;
    let mut connection = client.get_connection()?;
    let newest: redis::streams::StreamRangeReply = redis::cmd("XREVRANGE")
        .arg(&stream)
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1)
        .query(&mut connection)?;
    let mut last = newest.ids.first().map_or("0-0".to_owned(), |entry| entry.id.clone());
    let prefix = format!("{round}-");
    Ok(tokio::task::spawn_blocking(move || {
        let mut readable = Vec::new();
        let mut seen = HashSet::new();
        let mut newest = Instant::now();
        while (readable.len() as u64) < events {
            let reply: Option<redis::streams::StreamReadReply> = redis::cmd("XREAD")
                .arg(&["COUNT", "1000", "BLOCK", "500", "STREAMS", &stream, &last])
                .query(&mut connection)?;
            let now = Instant::now();
            let keys = reply.map(|reply| reply.keys).unwrap_or_default();
            for entry in keys.into_iter().flat_map(|key| key.ids) {
                let id: Option<String> = entry.get("event_id");
                let index = id.as_deref().and_then(|id| id.strip_prefix(&prefix)?.parse().ok());
                let index = index.context("an entry of nobody's")?;
                if seen.insert(index) {
                    readable.push((index, now));
                }
                last = entry.id;
                newest = now;
            }
            if newest.elapsed() > patience {
                bail!("only {} of {events} events arrived", readable.len());
            }
        }
        Ok(readable)
    }))
}

/// The spans of one round, in microseconds.
pub(super) struct Spans {
    /// Commits a second: below the rate that was asked for, the rest is about an overloaded database.
    pub(super) rate: f64,
    pub(super) from_commit: Histogram<u64>,
    pub(super) from_due: Histogram<u64>,
}

impl Spans {
    /// Of all events that were due `warm_up` after the first one, or later.
    pub(super) fn of(times: &[Times], warm_up: Duration) -> anyhow::Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, 600_000_000, 3);
        let (mut from_commit, mut from_due) = (histogram()?, histogram()?);
        let begin = times.first().map(|times| times.due).context("no events")?;
        let end = times.iter().filter_map(|times| times.committed).max().context("no commits")?;
        let rate = times.len() as f64 / end.duration_since(begin).as_secs_f64();
        for times in times.iter().filter(|times| times.due >= begin + warm_up) {
            let (committed, readable) =
                times.committed.zip(times.readable).context("an event did not arrive")?;
            let micros = |since| {
                let span = readable.saturating_duration_since(since);
                u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
            };
            from_commit.record(micros(committed))?;
            from_due.record(micros(times.due))?;
        }
        Ok(Self { rate, from_commit, from_due })
    }
}

fn summary(stage: &Stage, rounds: &[Spans]) -> Vec<Figure> {
    let case = format!("{} events/s", stage.options.rate);
    let millis =
        |value: fn(&Spans) -> u64| rounds.iter().map(|spans| value(spans) as f64 / 1e3).collect();
    let figure = |name, rounds| Figure::new(SCENARIO, case.clone(), name, Unit::Time, rounds);
    let rates = rounds.iter().map(|spans| spans.rate).collect();
    vec![
        figure("commit to entry, p50", millis(|spans| spans.from_commit.value_at_quantile(0.5)))
            .target(Some(Target::AtMost(2.0))),
        figure("commit to entry, p99", millis(|spans| spans.from_commit.value_at_quantile(0.99)))
            .target(Some(Target::AtMost(10.0))),
        figure(
            "commit to entry, p99.9",
            millis(|spans| spans.from_commit.value_at_quantile(0.999)),
        ),
        figure("commit to entry, longest", millis(|spans| spans.from_commit.max())),
        figure("due to entry, p50", millis(|spans| spans.from_due.value_at_quantile(0.5))),
        figure("due to entry, p99", millis(|spans| spans.from_due.value_at_quantile(0.99))),
        Figure::new(SCENARIO, case.clone(), "rate reached", Unit::Rate, rates)
            .target(Some(Target::AtLeast(0.99 * f64::from(stage.options.rate)))),
    ]
}
