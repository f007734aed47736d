//! Dead letters, for the person who decides what becomes of them.
//!
//! A retry is asked for here and made by a worker of the consumer, which has the handler and the
//! stream: in the order of the aggregate, between two batches, in one transaction with the inbox row.
//! The event keeps its id; it has no inbox row, so that deduplication cannot swallow the retry. If
//! its id has been applied meanwhile, by another delivery, the letter is resolved as a duplicate and
//! says so.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};

const LETTERS: &str = include_str!("sql/letters.sql");
const RETRY: &str = include_str!("sql/retry.sql");
const ADVANCE: &str = include_str!("sql/advance.sql");

/// Which dead letters; everything that is set must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Numbers of letters. Empty together with `event_ids`: any.
    pub ids: Vec<i64>,
    /// Or these event ids.
    pub event_ids: Vec<String>,
    /// Type of the event.
    pub event_type: Option<String>,
    /// Type of the aggregate.
    pub aggregate_type: Option<String>,
    /// Id of the aggregate.
    pub aggregate_id: Option<String>,
    /// A part of the reason, or an SQLSTATE.
    pub reason: Option<String>,
    /// Dead since this time or later, as PostgreSQL reads it.
    pub since: Option<String>,
    /// Dead before this time, as PostgreSQL reads it.
    pub before: Option<String>,
    /// Also those that are resolved.
    pub resolved: bool,
}

/// A dead letter. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// The delivery.
    pub stream: String,
    /// The delivery.
    pub entry_id: String,
    /// `None`: the entry is malformed and names no event.
    pub event_id: Option<String>,
    /// What the event is about.
    pub aggregate_type: Option<String>,
    /// What the event is about.
    pub aggregate_id: Option<String>,
    /// The producer's number within the aggregate.
    pub seq: Option<i64>,
    /// What happened.
    pub event_type: Option<String>,
    /// Where it stood in the source.
    pub position: Option<String>,
    /// Metadata.
    pub headers: Option<String>,
    /// The entry as it was delivered: name, value, name, value, ...
    pub fields: Vec<Vec<u8>>,
    /// Why it was set aside: the error with everything that caused it.
    pub reason: String,
    /// The database's code, where the reason came from there.
    pub sqlstate: Option<String>,
    /// How often it was tried.
    pub attempts: i32,
    /// In how many of them its worker ended without an answer.
    pub crashes: i32,
    /// Whether later events of its aggregate wait for it, and how many do.
    pub holds: bool,
    /// How many events wait behind it.
    pub behind: i64,
    /// First attempt.
    pub first_at: Option<String>,
    /// Last attempt.
    pub last_at: Option<String>,
    /// When it became a dead letter.
    pub dead_at: String,
    /// A retry was asked for and has not been made yet.
    pub retry_requested_at: Option<String>,
    /// Who asked for it.
    pub retry_requested_by: Option<String>,
    /// When it was settled; open while `None`.
    pub resolved_at: Option<String>,
    /// `applied`, `duplicate`, `conflict` or `discarded`.
    pub resolution: Option<String>,
    /// Who settled it.
    pub resolved_by: Option<String>,
    /// Why.
    pub note: Option<String>,
}

impl DeadLetter {
    /// The value of a field of the entry.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let mut pairs = self.fields.chunks_exact(2);
        let found = pairs.find(|pair| pair.first().is_some_and(|key| key == name.as_bytes()))?;
        found.get(1).map(Vec::as_slice)
    }
}

/// Lists dead letters of a consumer, the oldest first, at most `limit`.
///
/// Headers and the entry as it was delivered are read only `with_fields`: a payload may be megabytes.
///
/// # Errors
/// What the database says; a time in the filter that it cannot read is among that.
pub async fn list(
    client: &Client,
    consumer_id: &str,
    filter: &Filter,
    with_fields: bool,
    limit: usize,
) -> Result<Vec<DeadLetter>, Error> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters: [&(dyn ToSql + Sync); 12] = [
        &consumer_id,
        &filter.ids,
        &filter.event_ids,
        &filter.event_type,
        &filter.aggregate_type,
        &filter.aggregate_id,
        &filter.reason,
        &filter.since,
        &filter.before,
        &filter.resolved,
        &with_fields,
        &limit,
    ];
    client.query(LETTERS, &parameters).await?.iter().map(letter).collect()
}

/// Asks for another attempt of each of `ids`, in one transaction. Returns those for which one was
/// asked: malformed entries, resolved letters, and those for which it has been asked already are left
/// out.
///
/// Any worker that reads the letter's stream makes the attempt, within a second or so; one that fails
/// is counted and leaves the letter open. Follow it with [`list`].
///
/// # Errors
/// What the database says; then nothing was asked for.
pub async fn retry(
    client: &Client,
    consumer_id: &str,
    ids: &[i64],
    by: &str,
) -> Result<Vec<i64>, Error> {
    let rows = client.query(RETRY, &[&consumer_id, &ids, &by]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Gives up the events of `ids`, in one transaction: they will have no effect, and what waited behind
/// them goes on. Returns those that were open.
///
/// # Errors
/// What the database says; then nothing was discarded.
pub async fn discard(
    client: &mut Client,
    consumer_id: &str,
    ids: &[i64],
    by: &str,
    note: Option<&str>,
) -> Result<Vec<i64>, Error> {
    let tx = client.transaction().await?;
    // a retry that is under way is waited for, and may have settled the letter
    tx.execute(
        "DELETE FROM outflow.parked WHERE consumer_id = $1 AND dead_letter_id = ANY ($2)",
        &[&consumer_id, &ids],
    )
    .await?;
    let rows = tx
        .query(
            "UPDATE outflow.dead_letter SET resolved_at = now(), resolution = 'discarded', \
             resolved_by = $3, resolution_note = $4 \
             WHERE consumer_id = $1 AND dead_letter_id = ANY ($2) AND resolved_at IS NULL \
             RETURNING dead_letter_id, aggregate_type, aggregate_id",
            &[&consumer_id, &ids, &by, &note],
        )
        .await?;
    let (mut types, mut aggregates) = (Vec::new(), Vec::new());
    let mut discarded = Vec::new();
    for row in &rows {
        discarded.push(row.try_get(0)?);
        if let (Some(kind), Some(id)) =
            (row.try_get::<_, Option<String>>(1)?, row.try_get::<_, Option<String>>(2)?)
        {
            types.push(kind);
            aggregates.push(id);
        }
    }
    tx.execute(ADVANCE, &[&consumer_id, &types, &aggregates]).await?;
    tx.commit().await?;
    Ok(discarded)
}

fn letter(row: &Row) -> Result<DeadLetter, Error> {
    Ok(DeadLetter {
        id: row.try_get("dead_letter_id")?,
        stream: row.try_get("stream")?,
        entry_id: row.try_get("entry_id")?,
        event_id: row.try_get("event_id")?,
        aggregate_type: row.try_get("aggregate_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        seq: row.try_get("seq")?,
        event_type: row.try_get("event_type")?,
        position: row.try_get("position")?,
        headers: row.try_get("headers")?,
        fields: row.try_get::<_, Option<_>>("raw_fields")?.unwrap_or_default(),
        reason: row.try_get("reason")?,
        sqlstate: row.try_get("sqlstate")?,
        attempts: row.try_get("attempts")?,
        crashes: row.try_get("crashes")?,
        holds: row.try_get("holds")?,
        behind: row.try_get("behind")?,
        first_at: row.try_get("first_at")?,
        last_at: row.try_get("last_at")?,
        dead_at: row.try_get("dead_at")?,
        retry_requested_at: row.try_get("retry_requested_at")?,
        retry_requested_by: row.try_get("retry_requested_by")?,
        resolved_at: row.try_get("resolved_at")?,
        resolution: row.try_get("resolution")?,
        resolved_by: row.try_get("resolved_by")?,
        note: row.try_get("resolution_note")?,
    })
}
