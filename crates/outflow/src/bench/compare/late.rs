//! Transactions that commit late, behind rows that were written after theirs. Two relays as they are
//! often written, which read on from the last id or from the last time that they saw, run next to
//! the two that outflow ships, on the same rows at the same moment.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::Rng as _;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::Comparison;
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::broker::Broker;
use crate::bench::figure::Unit;
use crate::bench::stage::{AGGREGATE_TYPE, Stage};

/// Connections that write.
const WRITERS: u32 = 8;
/// Longest time between a row and its commit.
const LATEST: u64 = 40;
/// How often the naive relays look.
const LOOK: Duration = Duration::from_millis(10);

/// A relay that remembers how far it has read.
#[derive(Debug, Clone, Copy)]
struct Naive {
    name: &'static str,
    /// What it remembers.
    column: &'static str,
}

const NAIVE: [Naive; 2] = [
    Naive { name: "naive: id > last", column: "id" },
    Naive { name: "naive: created_at > last", column: "created_at" },
];

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let (stage, progress) = (run.stage, run.progress);
    let events = run.plan.late_events;
    let scenario = format!("late commits: {events} events");
    // each relay has a stream to itself: both see every row
    let (broker, other) = (run.fresh().await?, stage.second_broker().await?);
    progress.step(scenario.clone(), events);
    let polling = Subject::Polling { relays: 1, interval: run.plan.intervals.first().copied() };
    let lease = run.plan.lease;
    let poller = AtWork::start(stage, &other, &polling, None, lease).await?;
    let connector = AtWork::start(stage, &broker, &Subject::Connector, None, lease).await?;
    let stop = CancellationToken::new();
    let mut naive = Vec::new();
    for kind in NAIVE {
        naive.push((kind, read_on(stage.connect().await?, kind.column, stop.clone())));
    }
    let committed = write(stage, events, run.next_load()).await?;
    let relays = [(Subject::Connector.name(), broker), (polling.name(), other)];
    for (name, mut broker) in relays {
        let lost = lost(&committed, &mut broker).await?;
        tally.add(&scenario, &name, ("lost events", Unit::Count, lost as f64));
    }
    stop.cancel();
    for (kind, seen) in naive {
        let seen = seen.await.context("a naive relay is lost")??;
        let lost = committed.difference(&seen).count();
        tally.add(&scenario, kind.name, ("lost events", Unit::Count, lost as f64));
    }
    connector.stop(stage).await?;
    poller.stop(stage).await
}

/// Events that the stream lacks once it has stopped growing.
async fn lost(committed: &HashSet<String>, broker: &mut Broker) -> anyhow::Result<usize> {
    const WAIT: Duration = Duration::from_secs(3);
    let wanted = u64::try_from(committed.len()).unwrap_or(u64::MAX);
    let since = Instant::now();
    while broker.length().await? < wanted && since.elapsed() < WAIT {
        tokio::time::sleep(LOOK).await;
    }
    let stream = broker.stream();
    let entries: redis::streams::StreamRangeReply = redis::cmd("XRANGE")
        .arg(&[stream.as_str(), "-", "+"])
        .query_async(&mut broker.connection)
        .await?;
    let seen: HashSet<String> =
        entries.ids.iter().filter_map(|entry| entry.get("event_id")).collect();
    Ok(committed.difference(&seen).count())
}

/// Commits events each of which waits a while between its row and its commit.
async fn write(stage: &Stage, events: u64, load: u32) -> anyhow::Result<HashSet<String>> {
    let each = events / u64::from(WRITERS);
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = stage.connect().await?;
        writers.push(tokio::spawn(async move {
            let mut committed = Vec::new();
            for number in 0..each {
                let id = format!("late-{load}-{writer}-{number}");
                let insert = format!(
                    "BEGIN; SELECT outflow.emit('{AGGREGATE_TYPE}', '{writer}', 'T', '{{}}', '{id}')"
                );
                client.batch_execute(&insert).await?;
                let pause = rand::rng().random_range(0..LATEST);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                client.batch_execute("COMMIT").await?;
                committed.push(id);
            }
            anyhow::Ok(committed)
        }));
    }
    let mut committed = HashSet::new();
    for writer in writers {
        committed.extend(writer.await.context("a writer is lost")??);
    }
    Ok(committed)
}

/// Reads on from the greatest value of `column` that it has seen, until it is stopped; looks once
/// more then, so that it has every chance.
fn read_on(
    client: Client,
    column: &'static str,
    stop: CancellationToken,
) -> JoinHandle<anyhow::Result<HashSet<String>>> {
    tokio::spawn(async move {
        let sql = format!(
            "SELECT event_id, {column}::text FROM outflow.outbox \
             WHERE {column} > $1::text::{} ORDER BY {column}",
            if column == "id" { "bigint" } else { "timestamptz" }
        );
        let statement = client.prepare(&sql).await?;
        let mut last = if column == "id" { "0" } else { "-infinity" }.to_owned();
        let mut seen = HashSet::new();
        loop {
            let stopping = stop.is_cancelled();
            for row in client.query(&statement, &[&last]).await? {
                seen.insert(row.try_get::<_, String>(0)?);
                last = row.try_get(1)?;
            }
            if stopping {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    })
}
