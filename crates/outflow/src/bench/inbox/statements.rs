//! The inbox's statements without the inbox: arrays in memory, one connection, one transaction after
//! the other.
//!
//! The texts are the inbox's own files; a batch of fresh events needs no others.

use std::time::Instant;

use outflow_event::EntryId;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::super::progress::Progress;
use super::events::Made;

const BEGIN: &str = include_str!("../../../../inbox/src/sql/transaction.sql");
const INSERT: &str = include_str!("../../../../inbox/src/sql/insert.sql");
const POSITION: &str = include_str!("../../../../inbox/src/sql/position.sql");
/// What stands in front of a projection's statement.
const EVENTS: &str = include_str!("../../../../inbox/src/sql/events.sql");

const CONSUMER: &str = "statements";

/// The columns of a batch, in the order of its event ids for the inbox, in stream order for the
/// projection.
struct Batch<'a> {
    inbox: Columns<'a>,
    projection: Columns<'a>,
    last: String,
    stream: &'a str,
}

struct Columns<'a> {
    event_id: Vec<&'a str>,
    aggregate_type: Vec<&'a str>,
    aggregate_id: Vec<&'a str>,
    seq: Vec<i64>,
    event_type: Vec<&'a str>,
    is_jsonb: Vec<bool>,
    payload: Vec<&'a str>,
    payload_raw: Vec<Option<&'a [u8]>>,
    headers: Vec<&'a str>,
    time: Vec<&'a str>,
    position: Vec<&'a str>,
    stream: Vec<&'a str>,
    entry_id: Vec<String>,
    extra: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(stream: &'a str, events: &[&'a Made]) -> Self {
        let same = |text: &'a str| vec![text; events.len()];
        let column =
            |value: fn(&'a Made) -> &'a str| events.iter().map(|event| value(event)).collect();
        Self {
            event_id: column(|event| &event.event_id),
            aggregate_type: same(Made::AGGREGATE_TYPE),
            aggregate_id: column(|event| &event.aggregate_id),
            seq: events.iter().map(|event| event.seq).collect(),
            event_type: same(Made::EVENT_TYPE),
            is_jsonb: vec![true; events.len()],
            payload: column(|event| &event.payload),
            payload_raw: vec![None; events.len()],
            headers: column(|event| &event.headers),
            time: same(Made::TIME),
            position: column(|event| &event.position),
            stream: same(stream),
            entry_id: events.iter().map(|event| event.id.to_string()).collect(),
            extra: same("{}"),
        }
    }
}

impl<'a> Batch<'a> {
    fn of(stream: &'a str, events: &'a [Made]) -> Self {
        let stream_order: Vec<&Made> = events.iter().collect();
        let mut id_order = stream_order.clone();
        id_order.sort_unstable_by(|a, b| a.event_id.cmp(&b.event_id));
        let last = events.last().map_or(EntryId::ZERO, |event| event.id).to_string();
        let inbox = Columns::of(stream, &id_order);
        Self { inbox, projection: Columns::of(stream, &stream_order), last, stream }
    }
}

/// Applies the events of a stream in batches; events a second.
pub(super) async fn run(
    client: Client,
    (stream, events): (&str, &[Made]),
    batch: usize,
    projection: &str,
    progress: &Progress,
) -> anyhow::Result<f64> {
    let insert = client.prepare(INSERT).await?;
    let projection = client.prepare(&format!("WITH {EVENTS} {projection}")).await?;
    let position = client.prepare(POSITION).await?;
    let batches: Vec<Batch<'_>> =
        events.chunks(batch).map(|events| Batch::of(stream, events)).collect();
    let since = Instant::now();
    for (index, batch) in batches.iter().enumerate() {
        apply(&client, batch, &insert, &projection, &position).await?;
        progress.at((index as u64).saturating_mul(batch.inbox.seq.len() as u64));
    }
    Ok(events.len() as f64 / since.elapsed().as_secs_f64())
}

async fn apply(
    client: &Client,
    batch: &Batch<'_>,
    insert: &Statement,
    projection: &Statement,
    position: &Statement,
) -> anyhow::Result<()> {
    client.batch_execute(BEGIN).await?;
    let rows = &batch.inbox;
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &CONSUMER,
        &rows.event_id,
        &rows.aggregate_type,
        &rows.aggregate_id,
        &rows.seq,
        &rows.event_type,
        &rows.payload,
        &rows.payload_raw,
        &rows.position,
        &rows.stream,
        &rows.entry_id,
    ];
    let row = client.query_one(insert, &parameters).await?;
    let transaction: String = row.try_get("transaction_id")?;
    let rows = &batch.projection;
    let (none, nothing) = (Vec::<bool>::new(), Vec::<&str>::new());
    let parameters: [&(dyn ToSql + Sync); 17] = [
        &rows.event_id,
        &rows.aggregate_type,
        &rows.aggregate_id,
        &rows.seq,
        &rows.event_type,
        &rows.is_jsonb,
        &rows.payload,
        &rows.payload_raw,
        &rows.headers,
        &rows.time,
        &rows.position,
        &rows.time,
        &rows.stream,
        &rows.entry_id,
        &rows.extra,
        // no event replaces another: the shorter arrays count as NULLs
        &none,
        &nothing,
    ];
    client.execute(projection, &parameters).await?;
    let (streams, last) = (vec![batch.stream], vec![batch.last.as_str()]);
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&CONSUMER, &streams, &last, &last, &Some(transaction), &vec![0_i64]];
    let position = client.execute(position, &parameters);
    tokio::try_join!(client.batch_execute("CLOSE ALL"), position)?;
    client.batch_execute("COMMIT").await?;
    Ok(())
}
