//! The rows that are older than the slot, published before anything the slot delivers.
//!
//! No transaction stays open over the snapshot, and a crash resumes it where it stood. The slot's
//! exported snapshot is looked at once, while the slot is created, and kept as text
//! ([`SnapshotProgress::visible`]). From then on the rows are read in pages, each in a short
//! transaction of its own; a row belongs to the snapshot when the transaction that wrote it
//! (`xmin`) had committed in the eyes of that text. This is exact, savepoints included, because
//! the snapshot of a new slot lists every transaction and subtransaction that is not known to
//! have committed (`SnapBuildInitialSnapshot`, src/backend/replication/logical/snapbuild.c), and
//! whatever it does not list is older than the slot and will not be streamed. So snapshot and
//! stream meet without a gap and without a double.
//!
//! What follows from reading late: a row that is deleted while the snapshot runs, before its page
//! is read, is not in it; neither is a row that is updated, for its new version was written by a
//! transaction after the slot. An outbox row is a fact, so neither should happen; where it does
//! (a polling relay that marks rows, a clean-up job), stop it for the time of the snapshot. The
//! reader warns when it notices.
//!
//! Events of the snapshot have positions `(lsn, 0..)` with an LSN that was taken before the slot
//! was created, below the commit of everything that the slot delivers. The commit order of old
//! rows is not known; they are published in the order of the columns of [`SnapshotReader::order`].

mod bootstrap;
pub(crate) mod order;
mod publish;
pub(crate) mod sql;

pub use bootstrap::{Bootstrap, bootstrap, lock};
pub use publish::publish;

use std::pin::pin;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};
use tracing::warn;

use crate::config::{SourceConfig, TableName};
use crate::error::Error;
use crate::offset::SnapshotProgress;
use order::Order;
pub(crate) use sql::{identifier, literal, qualified};

/// Rows of the first page, until their size is known.
const FIRST_PAGE: usize = 100;
/// [`outbox_rows`] counts up to here.
const COUNT_LIMIT: u64 = 1_000_000;

/// Reads the rows of a snapshot, in order, page by page.
#[derive(Debug)]
pub struct SnapshotReader {
    /// Its session holds the lock that keeps a second connector from the same snapshot.
    client: Client,
    table: TableName,
    columns: Vec<String>,
    order: Order,
    visible: String,
    last_key: Vec<String>,
    /// Rows asked for next, from the size of the rows so far.
    page: usize,
    complete: bool,
    /// Updates and deletes of the outbox when the reader was opened.
    changes: i64,
}

/// A row of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Values in the order of [`SnapshotReader::columns`], in the text form that the log has too;
    /// `None` is SQL NULL.
    pub columns: Vec<Option<Bytes>>,
    /// What [`SnapshotProgress::last_key`] becomes when this row is published.
    pub key: Vec<String>,
}

impl SnapshotReader {
    /// Opens a snapshot at `progress`, over a connection of its own. `progress` must come from
    /// [`bootstrap`] or be what a crashed run had stored.
    ///
    /// # Errors
    /// [`Error::NotYet`] when another connector is at it: try again. [`Error::Refused`] when the
    /// rows cannot be put into a total order. Otherwise as for any statement.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn open(
        client: Client,
        source: &SourceConfig,
        progress: &SnapshotProgress,
    ) -> Result<Self, Error> {
        bootstrap::lock(&client, &source.slot).await?;
        pin_session(&client).await?;
        let order = order::choose(&client, source).await?;
        if !progress.last_key.is_empty() && progress.last_key.len() != order.columns.len() {
            return Err(Error::BadRecord {
                what: "the progress of the snapshot".to_owned(),
                why: format!(
                    "it holds {} ordering values, and the order is {order}: set source.order_by \
                     back to what it was when the snapshot began",
                    progress.last_key.len()
                ),
            });
        }
        let columns = published_columns(&client, source).await?;
        let changes = changes(&client, &source.table).await?;
        Ok(Self {
            client,
            table: source.table.clone(),
            columns,
            order,
            visible: progress.visible.clone(),
            last_key: progress.last_key.clone(),
            page: FIRST_PAGE,
            complete: false,
            changes,
        })
    }

    /// Names of the columns, in the order in which rows deliver their values: those that the
    /// publication carries.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The columns that order the rows, for the log.
    #[must_use]
    pub fn order(&self) -> String {
        self.order.to_string()
    }

    /// The next rows: at most `limit`, and no more after `max_bytes` of values; at least one while
    /// there is one. No row means that the snapshot is complete.
    ///
    /// # Errors
    /// As for any statement; after a transient one open the reader again at the stored progress.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call reads the same page again.
    pub async fn next_page(
        &mut self,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<SnapshotRow>, Error> {
        if self.complete {
            return Ok(Vec::new());
        }
        let wanted = self.page.clamp(1, limit.max(1));
        let (rows, bytes, cut) = self.read(wanted, max_bytes).await?;
        if rows.len() < wanted && !cut {
            self.complete = true;
            self.look_for_changes().await?;
        }
        if let Some(last) = rows.last() {
            self.last_key.clone_from(&last.key);
            // as many rows as will fit, but no leap on the evidence of a few small ones
            let fitting = max_bytes.saturating_mul(rows.len()) / bytes.max(1);
            self.page = fitting.clamp(1, wanted.saturating_mul(4));
        }
        Ok(rows)
    }

    async fn read(
        &self,
        wanted: usize,
        max_bytes: usize,
    ) -> Result<(Vec<SnapshotRow>, usize, bool), Error> {
        let failed = || Error::sql("reading a page of the snapshot");
        let stream = self.client.simple_query_raw(&self.page_query(wanted)).await;
        let mut stream = pin!(stream.map_err(failed())?);
        let (mut rows, mut bytes) = (Vec::new(), 0usize);
        while let Some(message) = stream.next().await {
            let SimpleQueryMessage::Row(row) = message.map_err(failed())? else { continue };
            if !rows.is_empty() && bytes >= max_bytes {
                return Ok((rows, bytes, true));
            }
            let row = self.row(&row)?;
            bytes += row.columns.iter().flatten().map(Bytes::len).sum::<usize>();
            rows.push(row);
        }
        Ok((rows, bytes, false))
    }

    /// The simple query protocol gives every value in the form of its type's output function,
    /// which is what the log carries; a cast to text would not (`t` and `true`, padded `char`).
    fn page_query(&self, wanted: usize) -> String {
        let keys: Vec<String> =
            self.order.columns.iter().map(|column| identifier(&column.name)).collect();
        let columns: Vec<String> = self.columns.iter().map(|name| identifier(name)).collect();
        let after = if self.last_key.is_empty() {
            String::new()
        } else {
            let values: Vec<String> = self
                .order
                .columns
                .iter()
                .zip(&self.last_key)
                .map(|(column, value)| format!("{}::{}", literal(value), column.type_name))
                .collect();
            format!(" AND ({}) > ({})", keys.join(", "), values.join(", "))
        };
        // xmin has 32 bits; a row that is visible now was written before the present xmax, which
        // supplies the upper ones
        format!(
            "WITH now AS MATERIALIZED (\
               SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint \
               AS xmax) \
             SELECT {columns} FROM {table} \
             WHERE pg_catalog.pg_visible_in_snapshot(\
               ((SELECT xmax FROM now) - (((SELECT xmax FROM now) - xmin::text::bigint) \
               & 4294967295))::text::xid8, {visible}::pg_snapshot){after} \
             ORDER BY {keys} LIMIT {wanted}",
            columns = [columns.as_slice(), keys.as_slice()].concat().join(", "),
            table = qualified(&self.table),
            visible = literal(&self.visible),
            keys = keys.join(", "),
        )
    }

    fn row(&self, row: &SimpleQueryRow) -> Result<SnapshotRow, Error> {
        let value = |index: usize| {
            row.try_get(index).map_err(|_| Error::BadRecord {
                what: format!("a row of {}", self.table),
                why: "it holds bytes that are not UTF-8 (the database's encoding is probably \
                      SQL_ASCII): set source.snapshot = \"never\" and emit old rows again \
                      (docs/runbook.md, \"Publish rows again\")"
                    .to_owned(),
            })
        };
        let columns = (0..self.columns.len())
            .map(|index| Ok(value(index)?.map(|text| Bytes::copy_from_slice(text.as_bytes()))))
            .collect::<Result<_, Error>>()?;
        let keys = self.columns.len()..self.columns.len() + self.order.columns.len();
        let key = keys
            .map(|index| {
                value(index)?.map(ToOwned::to_owned).ok_or_else(|| {
                    Error::Refused(format!(
                        "a row of {} has NULL in one of the columns that order the snapshot \
                         ({}): name columns without NULL in source.order_by",
                        self.table, self.order
                    ))
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(SnapshotRow { columns, key })
    }

    async fn look_for_changes(&self) -> Result<(), Error> {
        let changed = changes(&self.client, &self.table).await?.saturating_sub(self.changes);
        if changed > 0 {
            warn!(
                table = %self.table,
                "about {changed} rows of the outbox were updated or deleted while the snapshot \
                 ran: those that were not yet published are not in it. Compare outbox \
                 and consumers (docs/runbook.md, \"Compare source and projection\"), and stop \
                 whatever changes outbox rows"
            );
        }
        Ok(())
    }
}

/// Rows of the outbox: the exact number up to a million.
///
/// # Errors
/// As for any statement, also when the role may not SELECT.
pub async fn outbox_rows(client: &Client, table: &TableName) -> Result<RowCount, Error> {
    let sql = format!(
        "SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS rows",
        qualified(table),
        COUNT_LIMIT + 1
    );
    let row = client.query_one(&sql, &[]).await.map_err(Error::sql("counting outbox rows"))?;
    Ok(RowCount(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
}

/// A number of rows that was counted up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCount(u64);

impl std::fmt::Display for RowCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 > COUNT_LIMIT { write!(f, "more than {COUNT_LIMIT}") } else { self.0.fmt(f) }
    }
}

/// Pins what the text of values depends on to what the replication link uses, and lifts limits
/// that are meant for applications.
pub(crate) async fn pin_session(client: &Client) -> Result<(), Error> {
    client
        .batch_execute(
            "SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; \
             SET bytea_output = 'hex'; SET extra_float_digits = 3; \
             SET default_transaction_isolation = 'read committed'; \
             SET statement_timeout = 0; SET lock_timeout = 0; \
             SET row_security = off",
        )
        .await
        .map_err(Error::sql("preparing the connection of the snapshot"))
}

/// The columns that the log carries for the table: without generated ones (unless the publication
/// of PostgreSQL 18 includes them), and only those of the publication's column list.
async fn published_columns(client: &Client, source: &SourceConfig) -> Result<Vec<String>, Error> {
    let sql = "\
        SELECT a.attname::text FROM pg_catalog.pg_attribute a \
        WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped \
          AND (a.attgenerated = '' OR (a.attgenerated = 's' AND EXISTS ( \
            SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = $2 \
            AND pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's'))) \
          AND NOT EXISTS ( \
            SELECT FROM pg_catalog.pg_publication p \
            JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid \
            WHERE p.pubname = $2 AND r.prrelid = a.attrelid \
              AND pg_catalog.jsonb_typeof(pg_catalog.to_jsonb(r) -> 'prattrs') = 'array' \
              AND NOT pg_catalog.to_jsonb(r) -> 'prattrs' @> pg_catalog.to_jsonb(a.attnum)) \
        ORDER BY a.attnum";
    let rows = client
        .query(sql, &[&qualified(&source.table), &source.publication])
        .await
        .map_err(Error::sql("reading the columns of the outbox"))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Rows updated and deleted so far, from the cumulative statistics: a hint, not a count.
async fn changes(client: &Client, table: &TableName) -> Result<i64, Error> {
    let sql = "\
        SELECT COALESCE(sum(pg_catalog.pg_stat_get_tuples_updated(relation) \
          + pg_catalog.pg_stat_get_tuples_deleted(relation)), 0)::bigint \
        FROM (SELECT $1::text::regclass::oid AS relation UNION \
          SELECT relid FROM pg_catalog.pg_partition_tree($1::text::regclass)) AS relations";
    let row = client
        .query_one(sql, &[&qualified(table)])
        .await
        .map_err(Error::sql("reading the statistics of the outbox"))?;
    Ok(row.get(0))
}
