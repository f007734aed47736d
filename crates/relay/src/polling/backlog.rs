//! How far polling is behind, for those who watch it from outside.

use serde::Serialize;
use tokio_postgres::Client;

use super::config::PollingConfig;
use crate::config::{Column, SourceConfig};
use crate::error::Error;
use crate::snapshot::{identifier, qualified};

/// Rows are counted up to here: a count of everything would read all of a large backlog.
pub const COUNTED: u64 = 100_000;

const INSTALLED: &str = "\
    SELECT count(*) FILTER (WHERE attname = ANY ($2::text[])), \
      count(*) FILTER (WHERE attname = $3::text \
        AND atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype)) \
    FROM pg_catalog.pg_attribute \
    WHERE attrelid = pg_catalog.to_regclass($1::text) AND attnum > 0 AND NOT attisdropped";

/// What waits to be published, and who is at it. Ages are in seconds, by the server's clock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Backlog {
    /// Rows that are not marked published; counted up to [`COUNTED`].
    pub unpublished: u64,
    /// Age of the oldest of them; `None` without any, or in a table without creation time.
    pub oldest_seconds: Option<f64>,
    /// Rows of them with a claim that holds; counted likewise.
    pub claimed: u64,
    /// Rows of them with a claim that has run out: whoever held them was killed or cut off.
    pub lapsed: u64,
    /// Relays that hold claims.
    pub relays: u64,
    /// Since a row was last marked published; `None`: none is marked.
    pub last_marked_seconds: Option<f64>,
}

/// Looks at the outbox of `source`; `None`: it has no columns for claims.
///
/// The counts go through the partial indexes that polling has anyway.
///
/// # Errors
/// As for any statement: look again when transient.
///
/// # Cancel safety
/// Reads only; dropping the future changes nothing.
pub async fn backlog(
    client: &Client,
    source: &SourceConfig,
    polling: &PollingConfig,
) -> Result<Option<Backlog>, Error> {
    let failed = Error::sql("looking at what waits to be polled");
    let names = polling.columns.with_types().map(|(name, _)| name.to_owned()).to_vec();
    let created_at = match &source.columns.created_at {
        Column::Required(name) | Column::IfPresent(name) => Some(name.as_str()),
        Column::None => None,
    };
    let row = client
        .query_one(INSTALLED, &[&qualified(&source.table), &names, &created_at])
        .await
        .map_err(Error::sql("looking for the columns of polling"))?;
    let (own, times): (i64, i64) = (row.get(0), row.get(1));
    if usize::try_from(own) != Ok(names.len()) {
        return Ok(None);
    }
    let created_at = created_at.filter(|_| times > 0);
    let row = client.query_one(&look(source, polling, created_at), &[]).await.map_err(failed)?;
    let count = |column: usize| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
    Ok(Some(Backlog {
        unpublished: count(0),
        oldest_seconds: row.get(1),
        claimed: count(2),
        lapsed: count(3),
        relays: count(4),
        last_marked_seconds: row.get(5),
    }))
}

fn look(source: &SourceConfig, polling: &PollingConfig, created_at: Option<&str>) -> String {
    let columns = &polling.columns;
    let (table, by) = (qualified(&source.table), identifier(&columns.claimed_by));
    let (until, at) = (identifier(&columns.claimed_until), identifier(&columns.published_at));
    let created = created_at.map_or("NULL::timestamptz".to_owned(), identifier);
    let since = |time: &str| format!("extract(epoch FROM now() - {time})::float8");
    format!(
        "SELECT count(*), CASE WHEN min(created) IS NOT NULL THEN greatest({oldest}, 0) END, \
           count(*) FILTER (WHERE until > now()), count(*) FILTER (WHERE until <= now()), \
           count(DISTINCT by) FILTER (WHERE until > now()), \
           (SELECT {marked} FROM {table} WHERE {at} IS NOT NULL) \
         FROM (SELECT {by} AS by, {until} AS until, {created}::timestamptz AS created \
               FROM {table} WHERE {at} IS NULL LIMIT {COUNTED}) AS waiting",
        oldest = since("min(created)"),
        marked = since(&format!("max({at})")),
    )
}
