//! The inbox's own SQL, prepared once per connection.
//!
//! A batch needs one statement: INSERT .. ON CONFLICT DO NOTHING tells which events are fresh, and
//! an answer of one row is enough to say "all of them". Only when some were not inserted a second
//! one tells duplicates from conflicts. It has to be a second one: the row that stood in the way may
//! have been committed after the first one's snapshot was taken, by another worker that the INSERT
//! waited for, and then only a later snapshot sees it (PostgreSQL documentation, section
//! "Read Committed Isolation Level").

use outflow_event::EntryId;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use crate::delivery::{Delivery, MalformedEntry};
use crate::encoded::{EncodeError, Encoded, memory_for};

const INSERT: &str = include_str!("sql/insert.sql");

const JUDGE: &str = include_str!("sql/judge.sql");

const DEAD_LETTER: &str = include_str!("sql/dead_letter.sql");

// the row is locked from here to the end of the commit: this statement comes last
const POSITION: &str = include_str!("sql/position.sql");

pub(crate) struct Statements {
    insert: Statement,
    judge: Statement,
    dead_letter: Statement,
    position: Statement,
}

/// What [`Statements::insert`] found.
pub(crate) enum Fresh {
    All,
    /// The event ids that were inserted.
    Only(Vec<String>),
}

/// What [`Statements::judge`] found about one delivery.
pub(crate) struct Judged {
    pub(crate) ordinal: usize,
    pub(crate) same: bool,
    pub(crate) applied_stream: String,
    pub(crate) applied_entry_id: String,
}

impl Statements {
    pub(crate) async fn prepare(client: &Client) -> Result<Self, Error> {
        let (insert, judge, dead_letter, position) = futures_util::try_join!(
            client.prepare(INSERT),
            client.prepare(JUDGE),
            client.prepare(DEAD_LETTER),
            client.prepare(POSITION),
        )?;
        Ok(Self { insert, judge, dead_letter, position })
    }

    /// Inserts the inbox rows and returns which of them were fresh, and the transaction's id.
    pub(crate) async fn insert(
        &self,
        tx: &Client,
        consumer_id: &str,
        rows: &InboxRows,
    ) -> Result<(Fresh, String), Error> {
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&consumer_id];
        parameters.extend(rows.columns.iter().map(|column| column as &(dyn ToSql + Sync)));
        let row = tx.query_one(&self.insert, &parameters).await?;
        let count: i64 = row.try_get("fresh")?;
        let fresh = if usize::try_from(count) == Ok(rows.ordinals.len()) {
            Fresh::All
        } else {
            Fresh::Only(row.try_get::<_, Option<_>>("fresh_ids")?.unwrap_or_default())
        };
        Ok((fresh, row.try_get("transaction_id")?))
    }

    /// Compares `deliveries` with the inbox rows of their event ids, and stores the conflicts.
    ///
    /// A delivery without an inbox row is left out of the answer.
    pub(crate) async fn judge(
        &self,
        tx: &Client,
        consumer_id: &str,
        deliveries: &[&Delivery],
    ) -> Result<Vec<Judged>, Error> {
        let columns = Columns::of(deliveries);
        let ordinals: Vec<i64> =
            deliveries.iter().map(|d| i64::try_from(d.ordinal).unwrap_or(i64::MAX)).collect();
        let headers: Vec<_> = deliveries.iter().map(|d| d.entry.event.headers.as_deref()).collect();
        let parameters: [&(dyn ToSql + Sync); 13] = [
            &consumer_id,
            &ordinals,
            &columns.event_id,
            &columns.aggregate_type,
            &columns.aggregate_id,
            &columns.seq,
            &columns.event_type,
            &columns.payload,
            &columns.payload_raw,
            &headers,
            &columns.position,
            &columns.stream,
            &columns.entry_id,
        ];
        let judged = |row: &Row| {
            Ok(Judged {
                ordinal: usize::try_from(row.try_get::<_, i64>("ordinal")?).unwrap_or(usize::MAX),
                same: row.try_get("same")?,
                applied_stream: row.try_get("applied_stream")?,
                applied_entry_id: row.try_get("applied_entry_id")?,
            })
        };
        tx.query(&self.judge, &parameters).await?.iter().map(judged).collect()
    }

    /// Sets a malformed entry aside, with its raw bytes.
    pub(crate) async fn dead_letter(
        &self,
        tx: &Client,
        consumer_id: &str,
        stream: &str,
        entry: &MalformedEntry,
    ) -> Result<(), Error> {
        let id = entry.id.to_string();
        tx.execute(&self.dead_letter, &[&consumer_id, &stream, &id, &entry.raw, &entry.reason])
            .await?;
        Ok(())
    }

    /// Moves positions forward, never back. Nothing is written of a stream that is held under another
    /// token by now, nor, with a `transaction_id`, unless that is the current transaction. Returns how
    /// many rows were written.
    pub(crate) async fn position(
        &self,
        client: &Client,
        consumer_id: &str,
        reached: &[Reached<'_>],
        transaction_id: Option<&str>,
    ) -> Result<u64, Error> {
        let streams: Vec<_> = reached.iter().map(|reached| reached.stream).collect();
        let entries: Vec<_> = reached.iter().map(|reached| reached.entry.to_string()).collect();
        let resumes: Vec<_> = reached.iter().map(|reached| reached.resume.to_string()).collect();
        let tokens: Vec<_> = reached.iter().map(|reached| reached.token).collect();
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&consumer_id, &streams, &entries, &resumes, &transaction_id, &tokens];
        client.execute(&self.position, &parameters).await
    }
}

/// The inbox rows of a batch, ready to be sent: made while another transaction runs.
#[derive(Debug, Default)]
pub(crate) struct InboxRows {
    /// Which deliveries they stand for: of those with the same event id only the first.
    pub(crate) ordinals: Vec<usize>,
    columns: Vec<Encoded>,
}

impl InboxRows {
    /// In the order of the event ids, so that two workers with the same events wait for each other
    /// in one direction only.
    pub(crate) fn of(deliveries: &[Delivery]) -> Result<Self, EncodeError> {
        let mut first: Vec<_> = deliveries.iter().collect();
        first.sort_unstable_by(|a, b| {
            a.entry.event.event_id.cmp(&b.entry.event.event_id).then(a.ordinal.cmp(&b.ordinal))
        });
        first.dedup_by(|later, first| later.entry.event.event_id == first.entry.event.event_id);
        let memory = &mut memory_for(first.iter().copied());
        let columns = Columns::of(&first);
        let columns = vec![
            Encoded::new(&columns.event_id, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.aggregate_type, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.aggregate_id, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.seq, &Type::INT8_ARRAY, memory)?,
            Encoded::new(&columns.event_type, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.payload, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.payload_raw, &Type::BYTEA_ARRAY, memory)?,
            Encoded::new(&columns.position, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.stream, &Type::TEXT_ARRAY, memory)?,
            Encoded::new(&columns.entry_id, &Type::TEXT_ARRAY, memory)?,
        ];
        Ok(Self { ordinals: first.iter().map(|delivery| delivery.ordinal).collect(), columns })
    }
}

/// How far a consumer has come in one stream.
pub(crate) struct Reached<'a> {
    pub(crate) stream: &'a str,
    /// The highest entry applied.
    pub(crate) entry: EntryId,
    /// Every entry up to here is applied.
    pub(crate) resume: EntryId,
    /// Under which the stream was read.
    pub(crate) token: i64,
}

/// Deliveries turned into columns, ready to be sent as arrays.
struct Columns<'a> {
    event_id: Vec<&'a str>,
    aggregate_type: Vec<&'a str>,
    aggregate_id: Vec<&'a str>,
    seq: Vec<Option<i64>>,
    event_type: Vec<&'a str>,
    payload: Vec<Option<&'a str>>,
    payload_raw: Vec<Option<&'a [u8]>>,
    position: Vec<Option<String>>,
    stream: Vec<&'a str>,
    entry_id: Vec<String>,
}

impl<'a> Columns<'a> {
    fn of(deliveries: &[&'a Delivery]) -> Self {
        let event = |delivery: &&'a Delivery| &delivery.entry.event;
        Self {
            event_id: deliveries.iter().map(|d| event(d).event_id.as_str()).collect(),
            aggregate_type: deliveries.iter().map(|d| event(d).aggregate_type.as_str()).collect(),
            aggregate_id: deliveries.iter().map(|d| event(d).aggregate_id.as_str()).collect(),
            seq: deliveries.iter().map(|d| event(d).seq).collect(),
            event_type: deliveries.iter().map(|d| event(d).event_type.as_str()).collect(),
            payload: deliveries.iter().map(|d| d.payload_json()).collect(),
            payload_raw: deliveries.iter().map(|d| d.payload_raw()).collect(),
            position: deliveries.iter().map(|d| d.entry.position.map(|p| p.to_string())).collect(),
            stream: deliveries.iter().map(|d| &*d.stream).collect(),
            entry_id: deliveries.iter().map(|d| d.entry.id.to_string()).collect(),
        }
    }
}
