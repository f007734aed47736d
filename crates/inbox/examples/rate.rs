//! How close the consumer comes to what its database can do.
//!
//! In alternation, on one throwaway PostgreSQL (fsync on) and Redis: the inbox's own statements run
//! back to back over arrays that lie ready (the database's rate), and the consumer over a stream that
//! holds the same events (read, decode, apply, acknowledge). Only their ratio means something.
//!
//! `cargo run --release -p outflow-inbox --example rate -- [events] [batch] [rounds]`

use std::time::{Duration, Instant};

use outflow_inbox::{Consumer, ConsumerOptions, SqlProjection, Start, connect_no_tls};
use outflow_sandbox::{Postgres, Redis};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

const INSERT: &str = include_str!("../src/sql/insert.sql");
const POSITION: &str = include_str!("../src/sql/position.sql");
const EVENTS: &str = include_str!("../src/sql/events.sql");
const MIGRATIONS: [&str; 2] = [
    include_str!("../../../sql/consumer/0001_inbox.sql"),
    include_str!("../../../sql/consumer/0003_attempts.sql"),
];
const TURNOVER: &str = include_str!("../../../sql/demo/consumer/0001_turnover.sql");
const PROJECTION: &str = include_str!("../../../sql/demo/consumer/projection.sql");
const STREAM: &str = "outflow:journal";

type Failure = Box<dyn std::error::Error>;

struct Event {
    id: String,
    aggregate: String,
    payload: String,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let events = arguments.next().transpose()?.unwrap_or(200_000);
    let batch = arguments.next().transpose()?.unwrap_or(1_000);
    let rounds = arguments.next().transpose()?.unwrap_or(5);
    let postgres = Postgres::builder()
        .durable(true)
        .setting("shared_buffers", "1GB")
        .setting("max_wal_size", "8GB")
        .start()
        .await?;
    let redis = Redis::builder().start().await?;
    let events: Vec<Event> = (0..events).map(event).collect();
    fill(&redis, &events).await?;
    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let plain = plain(&postgres, &events, batch).await?;
        let consumer = consumer(&postgres, &redis, events.len(), batch).await?;
        let ratio = consumer / plain;
        println!(
            "round {round}: database {plain:.0}/s, consumer {consumer:.0}/s, ratio {ratio:.2}"
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
    println!("median ratio {median:.2}");
    Ok(())
}

fn event(n: usize) -> Event {
    // spread over the index as UUIDs are
    let spread = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Event {
        id: format!("{spread:016x}-{n:012}"),
        aggregate: format!("c-{}", n % 100),
        payload: format!(
            r#"{{"journal_id":"j-{n}","consumer":"c-{}","currency":"EUR","amount":{n},"text":"{}"}}"#,
            n % 100,
            "x".repeat(120)
        ),
    }
}

async fn fill(redis: &Redis, events: &[Event]) -> Result<(), Failure> {
    let mut connection = redis.connect().await?;
    for chunk in events.chunks(1_000) {
        let mut pipe = redis::pipe();
        for event in chunk {
            pipe.cmd("XADD")
                .arg(STREAM)
                .arg("*")
                .arg(&[("event_id", event.id.as_str()), ("aggregate_type", "journal")])
                .arg(&[("aggregate_id", event.aggregate.as_str()), ("event_type", "Posted")])
                .arg(&[("seq", "1"), ("payload", event.payload.as_str())])
                .arg(&[("created_at", "2024-05-01 12:00:00.123456+00")])
                .arg(&[("position", "0/16B3748:3"), ("commit_time", "2024-05-01T12:00:00.123456Z")])
                .ignore();
        }
        pipe.exec_async(&mut connection).await?;
    }
    Ok(())
}

async fn database(postgres: &Postgres) -> Result<(String, Client), Failure> {
    let database = postgres.fresh_database().await?;
    let (client, connection) = tokio_postgres::connect(&database.url, NoTls).await?;
    tokio::spawn(connection);
    for migration in MIGRATIONS.into_iter().chain([TURNOVER]) {
        client.batch_execute(migration).await?;
    }
    client.batch_execute("CHECKPOINT").await?;
    Ok((database.url, client))
}

/// Events per second of the bare statements.
async fn plain(postgres: &Postgres, events: &[Event], batch: usize) -> Result<f64, Failure> {
    let (_, client) = database(postgres).await?;
    let insert = client.prepare(INSERT).await?;
    let project = client.prepare(&format!("WITH {EVENTS} {PROJECTION}")).await?;
    let position = client.prepare(POSITION).await?;
    let mut spent = Duration::ZERO;
    for (n, events) in events.chunks(batch).enumerate() {
        let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
        let aggregates: Vec<&str> = events.iter().map(|event| event.aggregate.as_str()).collect();
        let payloads: Vec<&str> = events.iter().map(|event| event.payload.as_str()).collect();
        let all = |text: &'static str| vec![text; events.len()];
        let (journal, posted) = (all("journal"), all("Posted"));
        let (positions, streams) = (all("0/16B3748:3"), all(STREAM));
        let (created, committed) =
            (all("2024-05-01 12:00:00.123456+00"), all("2024-05-01T12:00:00.123456Z"));
        let (seqs, valid, extra) = (vec![1_i64; events.len()], vec![true; events.len()], all("{}"));
        let raw: Vec<Option<&[u8]>> = vec![None; events.len()];
        let headers: Vec<Option<&str>> = vec![None; events.len()];
        let entries: Vec<String> = (0..events.len()).map(|m| format!("{}-{m}", n + 1)).collect();
        let last = vec![format!("{}-0", n + 1)];
        let stream = vec![STREAM];
        let inserted: [&(dyn ToSql + Sync); 11] = [
            &"plain",
            &ids,
            &journal,
            &aggregates,
            &seqs,
            &posted,
            &payloads,
            &raw,
            &positions,
            &streams,
            &entries,
        ];
        let projected: [&(dyn ToSql + Sync); 15] = [
            &ids,
            &journal,
            &aggregates,
            &seqs,
            &posted,
            &valid,
            &payloads,
            &raw,
            &headers,
            &created,
            &positions,
            &committed,
            &streams,
            &entries,
            &extra,
        ];
        let reached: [&(dyn ToSql + Sync); 6] =
            [&"plain", &stream, &last, &last, &None::<&str>, &vec![0_i64]];
        let began = Instant::now();
        let (begin, inserted, projected, reached, commit) = tokio::join!(
            client.batch_execute("BEGIN"),
            client.query_one(&insert, &inserted),
            client.execute(&project, &projected),
            client.execute(&position, &reached),
            client.batch_execute("COMMIT"),
        );
        spent += began.elapsed();
        begin
            .and(inserted.map(drop))
            .and(projected.map(drop))
            .and(reached.map(drop))
            .and(commit)?;
    }
    Ok(rate(events.len(), spent))
}

/// Events per second of the consumer, connecting included.
async fn consumer(
    postgres: &Postgres,
    redis: &Redis,
    events: usize,
    batch: usize,
) -> Result<f64, Failure> {
    let (url, client) = database(postgres).await?;
    let options = ConsumerOptions {
        // another group each time: it begins at the first entry
        consumer_id: url.rsplit('/').next().unwrap_or_default().to_owned(),
        redis: redis.url().parse()?,
        streams: vec![STREAM.to_owned()],
        from: Some(Start::Beginning),
        batch,
        ..ConsumerOptions::default()
    };
    let consumer =
        Consumer::new(options.validate()?, connect_no_tls(&url), SqlProjection::parse(PROJECTION)?);
    let mut status = consumer.status();
    let shutdown = CancellationToken::new();
    let began = Instant::now();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    let all = u64::try_from(events)?;
    status.wait_for(|status| status.counts.acknowledged == all).await?;
    let spent = began.elapsed();
    shutdown.cancel();
    running.await??;
    let applied: i64 =
        client.query_one("SELECT sum(journals)::int8 FROM turnover", &[]).await?.get(0);
    if usize::try_from(applied) != Ok(events) {
        return Err(format!("{applied} of {events} events had their effect").into());
    }
    Ok(rate(events, spent))
}

fn rate(events: usize, spent: Duration) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    let events = events as f64;
    events / spent.as_secs_f64()
}
