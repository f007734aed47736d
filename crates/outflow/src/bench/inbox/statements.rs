//! The inbox's statements without the inbox: arrays in memory, one connection, one transaction after
//! the other.
//!
//! The texts are copies: the inbox keeps its SQL to itself. A test holds them together.

use std::time::Instant;

use outflow_event::EntryId;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::super::progress::Progress;
use super::super::stage::STREAM;
use super::events::Made;

const INSERT: &str = "\
WITH inserted AS (
    INSERT INTO outflow.inbox (consumer_id, event_id, aggregate_type, aggregate_id, seq, event_type,
                               payload, payload_raw, position, stream, entry_id)
    SELECT $1::text, event_id, aggregate_type, aggregate_id, seq, event_type,
           payload::jsonb, payload_raw, position, stream, entry_id
    FROM unnest($2::text[], $3::text[], $4::text[], $5::int8[], $6::text[], $7::text[], $8::bytea[],
                $9::text[], $10::text[], $11::text[])
         AS event (event_id, aggregate_type, aggregate_id, seq, event_type, payload, payload_raw,
                   position, stream, entry_id)
    ON CONFLICT (consumer_id, event_id) DO NOTHING
    RETURNING event_id
)
SELECT count(*) AS fresh,
       CASE WHEN count(*) < cardinality($2::text[]) THEN array_agg(event_id) END AS fresh_ids,
       pg_current_xact_id()::text AS transaction_id
FROM inserted";

const POSITION: &str = "\
INSERT INTO outflow.position AS known (consumer_id, stream, entry_id, resume_id)
SELECT $1::text, stream, entry_id, resume_id
FROM unnest($2::text[], $3::text[], $4::text[]) AS reached (stream, entry_id, resume_id)
WHERE $5::text IS NULL OR $5 = pg_current_xact_id()::text
ORDER BY stream
ON CONFLICT (consumer_id, stream) DO UPDATE
SET entry_id = CASE WHEN string_to_array(excluded.entry_id, '-')::numeric[]
                         > string_to_array(known.entry_id, '-')::numeric[]
                    THEN excluded.entry_id ELSE known.entry_id END,
    resume_id = CASE WHEN string_to_array(excluded.resume_id, '-')::numeric[]
                          > string_to_array(known.resume_id, '-')::numeric[]
                     THEN excluded.resume_id ELSE known.resume_id END,
    updated_at = now()";

/// What stands in front of a projection's statement.
const EVENTS: &str = "events AS (\
SELECT ordinal, event_id, aggregate_type, aggregate_id, seq, event_type, \
CASE WHEN is_jsonb THEN payload_text::jsonb END AS payload, payload_text, payload_raw, \
headers::jsonb AS headers, created_at, position, commit_time::timestamptz AS commit_time, stream, \
entry_id, extra::jsonb AS extra \
FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::bool[], $7::text[], \
$8::bytea[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[]) \
WITH ORDINALITY AS event (event_id, aggregate_type, aggregate_id, seq, event_type, is_jsonb, \
payload_text, payload_raw, headers, created_at, position, commit_time, stream, entry_id, extra, ordinal))";

const CONSUMER: &str = "statements";

/// The columns of a batch, in the order of its event ids for the inbox, in stream order for the
/// projection.
struct Batch<'a> {
    inbox: Columns<'a>,
    projection: Columns<'a>,
    last: String,
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
    fn of(events: &[&'a Made]) -> Self {
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
            stream: same(STREAM),
            entry_id: events.iter().map(|event| event.id.to_string()).collect(),
            extra: same("{}"),
        }
    }
}

impl<'a> Batch<'a> {
    fn of(events: &'a [Made]) -> Self {
        let stream_order: Vec<&Made> = events.iter().collect();
        let mut id_order = stream_order.clone();
        id_order.sort_unstable_by(|a, b| a.event_id.cmp(&b.event_id));
        let last = events.last().map_or(EntryId::ZERO, |event| event.id).to_string();
        Self { inbox: Columns::of(&id_order), projection: Columns::of(&stream_order), last }
    }
}

/// Applies `events` in batches; events a second.
pub(super) async fn run(
    mut client: Client,
    events: &[Made],
    batch: usize,
    projection: &str,
    progress: &Progress,
) -> anyhow::Result<f64> {
    let insert = client.prepare(INSERT).await?;
    let projection = client.prepare(&format!("WITH {EVENTS} {projection}")).await?;
    let position = client.prepare(POSITION).await?;
    let batches: Vec<Batch<'_>> = events.chunks(batch).map(Batch::of).collect();
    let since = Instant::now();
    for (index, batch) in batches.iter().enumerate() {
        apply(&mut client, batch, &insert, &projection, &position).await?;
        progress.at((index as u64).saturating_mul(batch.inbox.seq.len() as u64));
    }
    Ok(events.len() as f64 / since.elapsed().as_secs_f64())
}

async fn apply(
    client: &mut Client,
    batch: &Batch<'_>,
    insert: &Statement,
    projection: &Statement,
    position: &Statement,
) -> anyhow::Result<()> {
    let tx = client.transaction().await?;
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
    let row = tx.query_one(insert, &parameters).await?;
    let transaction: String = row.try_get("transaction_id")?;
    let rows = &batch.projection;
    let parameters: [&(dyn ToSql + Sync); 15] = [
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
    ];
    tx.execute(projection, &parameters).await?;
    let (streams, last) = (vec![STREAM], vec![batch.last.as_str()]);
    tx.execute(position, &[&CONSUMER, &streams, &last, &last, &Some(transaction)]).await?;
    tx.commit().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_the_inboxs_own() {
        let inbox = include_str!("../../../../inbox/src/statements.rs");
        assert!(inbox.contains(INSERT), "copy INSERT from crates/inbox/src/statements.rs");
        assert!(inbox.contains(POSITION), "copy POSITION from crates/inbox/src/statements.rs");
        let relation = include_str!("../../../../inbox/src/projection/relation.rs");
        let relation = relation.replace("\\\n", "");
        assert!(
            relation.contains(EVENTS),
            "copy EVENTS from crates/inbox/src/projection/relation.rs"
        );
    }
}
