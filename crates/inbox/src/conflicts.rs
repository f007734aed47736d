//! Conflicts: looked at, and settled by a person.
//!
//! A conflict is a delivery of a known event id with another payload. It was stored with both payloads
//! and acknowledged; nothing waits for it. Somebody decides which of the two events is the true one:
//!
//! - [`keep`]: the event that was applied. Only the decision is written down.
//! - [`request_replace`]: the event that was refused. A worker of the consumer applies it, in one
//!   transaction in which the inbox binds the id to its payload and the conflict keeps the row that was
//!   there. The projection still has the effect of the first event, and the handler is told what that
//!   was: [`Delivery::replaced_payload`](crate::Delivery::replaced_payload).
//!
//! Both payloads stay in `outflow.conflict` for as long as the row does.

mod diff;

use std::time::SystemTime;

use tokio_postgres::{Client, Row};

use crate::database::statement_failed;
use crate::error::Error;

pub use diff::{Difference, differences};

const LIST: &str = include_str!("sql/conflicts.sql");
const KEEP: &str = include_str!("sql/keep.sql");
const REQUEST: &str = include_str!("sql/request.sql");

/// Whether a conflict waits for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// Not settled yet.
    #[default]
    Open,
    /// Settled.
    Resolved,
    /// Both.
    All,
}

impl Which {
    const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Resolved => "resolved",
            Self::All => "all",
        }
    }
}

/// Which conflicts of a consumer to look at; what is not set does not restrict.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The consumer.
    pub consumer_id: String,
    /// Their own ids.
    pub conflict_ids: Option<Vec<i64>>,
    /// Ids of their events.
    pub event_ids: Option<Vec<String>>,
    /// Type of the aggregate.
    pub aggregate_type: Option<String>,
    /// Id of the aggregate.
    pub aggregate_id: Option<String>,
    /// Detected at this time or later.
    pub since: Option<SystemTime>,
    /// Detected before this time.
    pub until: Option<SystemTime>,
    /// Open ones, settled ones, or both.
    pub which: Which,
}

/// One of the two events that share an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Key of the stream.
    pub stream: String,
    /// The delivery.
    pub entry_id: String,
    /// The payload as JSON text; `None` where it is no JSON, or there is none.
    pub payload: Option<String>,
    /// The payload's bytes where `jsonb` cannot hold it.
    pub payload_raw: Option<Vec<u8>>,
}

impl Side {
    /// Reads it from columns whose names begin with `prefix`.
    fn read(row: &Row, prefix: &str) -> Result<Self, tokio_postgres::Error> {
        let column = |name| format!("{prefix}{name}");
        Ok(Self {
            stream: row.try_get(&*column("stream"))?,
            entry_id: row.try_get(&*column("entry_id"))?,
            payload: row.try_get(&*column("payload"))?,
            payload_raw: row.try_get(&*column("payload_raw"))?,
        })
    }

    /// The payload as text, for people: bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let raw = || self.payload_raw.as_ref().map(|raw| String::from_utf8_lossy(raw).into_owned());
        self.payload.clone().or_else(raw)
    }
}

/// A conflict as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// Its own id.
    pub conflict_id: i64,
    /// The id that two events share.
    pub event_id: String,
    /// Type of the refused event's aggregate.
    pub aggregate_type: String,
    /// Id of the refused event's aggregate.
    pub aggregate_id: String,
    /// The refused event's number within its aggregate.
    pub seq: Option<i64>,
    /// The refused event's type.
    pub event_type: String,
    /// The refused event's headers.
    pub headers: Option<String>,
    /// The refused event's position.
    pub position: Option<String>,
    /// What was applied.
    pub applied: Side,
    /// When it was applied.
    pub applied_at: SystemTime,
    /// What was refused.
    pub refused: Side,
    /// When it was refused.
    pub detected_at: SystemTime,
    /// When a replacement was asked for, and by whom.
    pub requested: Option<(SystemTime, String)>,
    /// Why the last try of a replacement failed.
    pub failure: Option<String>,
    /// How it was settled; `None`: it is open.
    pub resolution: Option<Resolution>,
}

/// How a conflict was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// `keep` or `replace`; other words where somebody settled it by hand.
    pub what: String,
    /// When.
    pub at: SystemTime,
    /// By whom.
    pub by: Option<String>,
    /// Why, in their words.
    pub reason: Option<String>,
}

impl Conflict {
    /// Where the two payloads differ.
    #[must_use]
    pub fn differences(&self) -> Vec<Difference> {
        differences(self.applied.text().as_deref(), self.refused.text().as_deref())
    }

    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let requested: Option<SystemTime> = row.try_get("requested_at")?;
        let requested_by: Option<String> = row.try_get("requested_by")?;
        let resolved: Option<SystemTime> = row.try_get("resolved_at")?;
        let resolution = resolved
            .map(|at| {
                let what = row.try_get::<_, Option<_>>("resolution")?.unwrap_or_default();
                let (by, reason) = (row.try_get("resolved_by")?, row.try_get("reason")?);
                Ok::<_, tokio_postgres::Error>(Resolution { what, at, by, reason })
            })
            .transpose()?;
        Ok(Self {
            conflict_id: row.try_get("conflict_id")?,
            event_id: row.try_get("event_id")?,
            aggregate_type: row.try_get("aggregate_type")?,
            aggregate_id: row.try_get("aggregate_id")?,
            seq: row.try_get("seq")?,
            event_type: row.try_get("event_type")?,
            headers: row.try_get("headers")?,
            position: row.try_get("position")?,
            applied: Side::read(row, "applied_")?,
            applied_at: row.try_get("applied_at")?,
            refused: Side::read(row, "")?,
            detected_at: row.try_get("detected_at")?,
            requested: requested.map(|at| (at, requested_by.unwrap_or_default())),
            failure: row.try_get("failure")?,
            resolution,
        })
    }
}

/// The first `limit` conflicts that `filter` selects, in the order in which they were detected.
///
/// Payloads and headers are read only `with_payloads`: a payload may be megabytes.
///
/// # Errors
/// [`Error::Database`], with what to do where waiting does not help.
pub async fn list(
    client: &Client,
    filter: &Filter,
    with_payloads: bool,
    limit: usize,
) -> Result<Vec<Conflict>, Error> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = client
        .query(
            LIST,
            &[
                &filter.consumer_id,
                &filter.conflict_ids,
                &filter.event_ids,
                &filter.aggregate_type,
                &filter.aggregate_id,
                &filter.since,
                &filter.until,
                &filter.which.name(),
                &with_payloads,
                &limit,
            ],
        )
        .await
        .map_err(statement_failed)?;
    rows.iter().map(Conflict::read).collect::<Result<_, _>>().map_err(statement_failed)
}

/// Settles conflicts: the events that were applied hold. Projection and inbox stay as they are.
///
/// Returns the conflicts that were settled by this call: those of `conflict_ids` that were open, also
/// where a replacement had been asked for. Durable when it returns.
///
/// # Errors
/// [`Error::Database`]; then none was settled.
///
/// # Cancel safety
/// Dropping the future leaves it open whether they were settled: look again.
pub async fn keep(
    client: &Client,
    consumer_id: &str,
    conflict_ids: &[i64],
    by: &str,
    reason: &str,
) -> Result<Vec<i64>, Error> {
    decide(client, KEEP, consumer_id, conflict_ids, by, reason).await
}

/// Asks the consumer's workers to replace what was applied by what was refused; the one that reads the
/// refused event's stream looks every second.
///
/// Of several replacements of one event each takes the place of the one before. Events of the aggregate that
/// are held back come behind it.
///
/// Returns the conflicts of `conflict_ids` that were open: their `resolution` or `failure` tells the end
/// of it. A replacement that fails changes nothing, and has to be asked for again.
///
/// # Errors
/// [`Error::Database`]; then none was asked for.
///
/// # Cancel safety
/// Dropping the future leaves it open whether it was asked for: look again.
pub async fn request_replace(
    client: &Client,
    consumer_id: &str,
    conflict_ids: &[i64],
    by: &str,
    reason: &str,
) -> Result<Vec<i64>, Error> {
    decide(client, REQUEST, consumer_id, conflict_ids, by, reason).await
}

async fn decide(
    client: &Client,
    statement: &str,
    consumer_id: &str,
    conflict_ids: &[i64],
    by: &str,
    reason: &str,
) -> Result<Vec<i64>, Error> {
    let rows = client
        .query(statement, &[&consumer_id, &conflict_ids, &by, &reason])
        .await
        .map_err(statement_failed)?;
    let id = |row: &Row| row.try_get("conflict_id");
    let mut ids = rows.iter().map(id).collect::<Result<Vec<i64>, _>>().map_err(statement_failed)?;
    ids.sort_unstable();
    Ok(ids)
}
