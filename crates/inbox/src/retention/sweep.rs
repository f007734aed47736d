//! Deletes in small steps: ranges of pages, each a transaction of its own.

use std::ops::Range;
use std::time::SystemTime;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::{Floor, Retention};
use crate::database::statement_failed;
use crate::error::Error;

/// Pages of a table that one statement looks at, at first; then by how many rows it found.
const PAGES: i64 = 32;
/// ... and at most.
const MOST_PAGES: i64 = 4096;

impl Retention {
    /// Deletes rows of one table in batches of neighbouring pages, each a transaction of its own: no
    /// index is needed, which every applied event would have to pay for.
    pub(super) async fn sweep(
        &self,
        client: &Client,
        rows: Rows,
        (floors, before): (&[Floor], SystemTime),
        dry_run: bool,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<u64, Error> {
        let total: i64 = client
            .query_one(
                "SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint + 1",
                &[&rows.table],
            )
            .await
            .map_err(statement_failed)?
            .get(0);
        let streams: Vec<&str> = floors.iter().map(|floor| floor.stream.as_str()).collect();
        let below: Vec<String> = floors.iter().map(|floor| floor.below.to_string()).collect();
        let (mut at, mut pages, mut removed) = (0, PAGES, 0);
        while at < total {
            let statement = rows.statement(at..at + pages, dry_run);
            let parameters: [&(dyn ToSql + Sync); 4] =
                [&self.config.consumer_id, &streams, &below, &before];
            let found = if dry_run {
                let counted = client.query_one(&statement, &parameters).await;
                counted.map(|row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
            } else {
                client.execute(&statement, &parameters).await
            };
            let found = found.map_err(not_granted)?;
            if !dry_run {
                crate::metrics::removed(&self.config.consumer_id, found);
                fail::fail_point!("inbox::retention_between_batches");
            }
            removed += found;
            at += pages;
            // about a batch of rows at a time
            if found > self.options.batch {
                pages = (pages / 2).max(1);
            } else if found < self.options.batch / 4 {
                pages = (pages * 2).min(MOST_PAGES);
            }
            progress(u64::try_from(at.min(total)).unwrap_or(0), u64::try_from(total).unwrap_or(0));
        }
        Ok(removed)
    }
}

/// Rows of one kind: where they are, when they were done with, and by which entry.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    table: &'static str,
    done_at: &'static str,
    entry_id: &'static str,
    /// What else must hold.
    and: &'static str,
}

/// An open conflict may yet replace the row that it is in conflict with.
pub(super) const APPLIED: Rows = Rows {
    table: "outflow.inbox",
    done_at: "applied_at",
    entry_id: "entry_id",
    and: "AND NOT EXISTS (SELECT FROM outflow.conflict AS c WHERE c.consumer_id = t.consumer_id \
          AND c.event_id = t.event_id AND c.resolved_at IS NULL)",
};

pub(super) const SETTLED: [Rows; 3] = [
    Rows { table: "outflow.conflict", done_at: "resolved_at", entry_id: "entry_id", and: "" },
    Rows { table: "outflow.dead_letter", done_at: "resolved_at", entry_id: "entry_id", and: "" },
    Rows { table: "outflow.lost_entries", done_at: "settled_at", entry_id: "up_to_id", and: "" },
];

impl Rows {
    /// Deletes, or counts, what may go on some pages. Parameters: consumer, streams, their floors, time.
    fn statement(self, pages: Range<i64>, count: bool) -> String {
        let Self { table, done_at, entry_id, and } = self;
        let (verb, using) =
            if count { ("SELECT count(*) FROM", ",") } else { ("DELETE FROM", " USING") };
        format!(
            "{verb} {table} AS t{using} unnest($2::text[], $3::text[]) AS floor (stream, below) \
             WHERE t.ctid >= '({},0)'::tid AND t.ctid < '({},0)'::tid \
             AND t.consumer_id = $1::text AND t.stream = floor.stream AND t.{done_at} < $4::timestamptz \
             AND string_to_array(t.{entry_id}, '-')::numeric[] < string_to_array(floor.below, '-')::numeric[] \
             {and}",
            pages.start, pages.end
        )
    }
}

/// The error of a statement that deletes.
fn not_granted(source: tokio_postgres::Error) -> Error {
    if source.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        let advice =
            Some("grant outflow_retention to the worker's role (sql/consumer/0006_retention.sql)");
        return Error::Database { source: source.into(), advice };
    }
    statement_failed(source)
}
