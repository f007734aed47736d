//! The statements of a polling relay, for one table.
//!
//! All go through the simple query protocol: it prints every value as the log does, so that both
//! relays publish the same bytes, and it carries the mark of one batch and the claim of the next
//! in one message, which is one transaction.

use std::fmt::Write as _;
use std::time::Duration;

use super::config::PollingConfig;
use crate::config::SourceConfig;
use crate::snapshot::order::Order;
use crate::snapshot::sql::literal;
use crate::snapshot::{identifier, qualified};

/// Rows looked at for each row that is wanted: what other relays hold is passed over.
const WINDOW: usize = 4;
/// Below this many bytes as stored, a payload's text is not measured: it cannot be large.
const SMALL_PAYLOAD: usize = 500;

/// Values of the ordering columns of one row, in the text form.
pub(crate) type Key = Vec<String>;

/// The SQL of one relay on one table.
#[derive(Debug, Clone)]
pub(crate) struct Statements {
    table: String,
    /// Columns of the event.
    columns: Vec<String>,
    keys: Vec<KeyColumn>,
    aggregate: [String; 2],
    payload: String,
    claimed_by: String,
    claimed_until: String,
    published_at: String,
    lease: Duration,
}

#[derive(Debug, Clone)]
struct KeyColumn {
    quoted: String,
    type_name: String,
}

impl Statements {
    /// For the table of `source` with these event `columns`.
    pub(crate) fn new(
        source: &SourceConfig,
        polling: &PollingConfig,
        columns: Vec<String>,
        order: &Order,
    ) -> Self {
        let names = &source.columns;
        let keys = order.columns.iter().map(|column| KeyColumn {
            quoted: identifier(&column.name),
            type_name: column.type_name.clone(),
        });
        Self {
            table: qualified(&source.table),
            columns,
            keys: keys.collect(),
            aggregate: [identifier(&names.aggregate_type), identifier(&names.aggregate_id)],
            payload: identifier(&names.payload),
            claimed_by: identifier(&polling.columns.claimed_by),
            claimed_until: identifier(&polling.columns.claimed_until),
            published_at: identifier(&polling.columns.published_at),
            lease: polling.lease,
        }
    }

    /// Names of the event's columns, in the order in which a claim delivers them; the key's values
    /// follow them, and after those whether the row was taken over from a claim that had lapsed.
    pub(crate) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Number of values of a key.
    pub(crate) fn key_columns(&self) -> usize {
        self.keys.len()
    }

    /// Claims up to `wanted` rows for `claimant`, in order, of about `max_bytes` of payload.
    ///
    /// - `held`: aggregates of which somebody holds a row. `due`: the first rows that are not
    ///   published and not claimed. `free`: those of them whose aggregate nobody holds. A row that
    ///   stands before them in its aggregate is either held (so the aggregate is left out) or in
    ///   `due` itself.
    /// - `locked`: what could be locked of that, looked at again in its newest version. `whole`
    ///   leaves out every row behind one that could not be locked, so that of two relays that look
    ///   at the same moment one takes the beginning of an aggregate and the other nothing of it.
    /// - The session forbids hash joins (see [`SESSION`]), and a nested loop over two of these lists
    ///   takes time with the square of a batch. So `held` is asked by NOT IN, whose hashed subplan is
    ///   no join (an aggregate is never NULL), and `free` meets `locked` in a GROUP BY.
    /// - Claims that this relay itself has not marked hold their aggregates too.
    pub(crate) fn claim(&self, claimant: &str, wanted: usize, max_bytes: usize) -> String {
        let Self { table, payload, claimed_by, claimed_until, published_at, .. } = self;
        let [aggregate_type, aggregate_id] = &self.aggregate;
        let aggregate = format!("concat({aggregate_type}::text, chr(31), {aggregate_id}::text)");
        let named = |prefix: &str| {
            let columns = self.keys.iter().enumerate();
            columns.map(|(i, _)| format!("{prefix}key_{i}")).collect::<Vec<_>>().join(", ")
        };
        let selected = self.list(|i, key| format!("{} AS key_{i}", key.quoted));
        let selected_o = self.list(|i, key| format!("o.{} AS key_{i}", key.quoted));
        let events = self.columns.iter().enumerate();
        let events: Vec<_> =
            events.map(|(i, name)| format!("o.{} AS column_{i}", identifier(name))).collect();
        let shown: Vec<_> = (0..self.columns.len()).map(|i| format!("column_{i}")).collect();
        format!(
            "WITH held AS MATERIALIZED (\
               SELECT DISTINCT {aggregate} AS aggregate FROM {table} \
               WHERE {published_at} IS NULL AND {claimed_until} IS NOT NULL \
                 AND {claimed_until} > now()), \
             due AS MATERIALIZED (\
               SELECT {selected}, {aggregate} AS aggregate FROM {table} \
               WHERE {published_at} IS NULL \
                 AND ({claimed_until} IS NULL OR {claimed_until} <= now()) \
               ORDER BY {order} LIMIT {window}), \
             free AS MATERIALIZED (\
               SELECT * FROM due \
               WHERE due.aggregate NOT IN (SELECT aggregate FROM held) \
               ORDER BY {keys} LIMIT {wanted}), \
             locked AS MATERIALIZED (\
               SELECT {selected_o}, o.{claimed_by} IS NOT NULL AS lapsed, \
                 CASE WHEN pg_column_size(o.{payload}) < {SMALL_PAYLOAD} \
                   THEN pg_column_size(o.{payload}) ELSE octet_length(o.{payload}::text) END AS bytes \
               FROM free JOIN {table} o ON {free_is_o} \
               WHERE o.{published_at} IS NULL \
                 AND (o.{claimed_until} IS NULL OR o.{claimed_until} <= now()) \
               ORDER BY {free_keys} FOR UPDATE OF o SKIP LOCKED), \
             met AS (\
               SELECT {keys}, max(aggregate) AS aggregate, bool_or(lapsed) AS lapsed, \
                 sum(bytes) AS bytes \
               FROM (SELECT {keys}, aggregate, NULL::boolean AS lapsed, NULL::bigint AS bytes \
                     FROM free \
                     UNION ALL SELECT {keys}, NULL, lapsed, bytes FROM locked) AS each_of_both \
               GROUP BY {keys}), \
             judged AS (\
               SELECT {keys}, lapsed, \
                 bool_and(lapsed IS NOT NULL) OVER (PARTITION BY aggregate ORDER BY {keys}) AS whole, \
                 COALESCE(sum(bytes) OVER (ORDER BY {keys} \
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before \
               FROM met), \
             claimed AS (\
               UPDATE {table} o \
               SET {claimed_by} = {claimant}, {claimed_until} = now() + {lease} \
               FROM judged WHERE judged.whole AND judged.bytes_before < {max_bytes} \
                 AND {judged_is_o} \
               RETURNING {events}, {selected_o}, judged.lapsed) \
             SELECT {shown}, {keys}, lapsed FROM claimed ORDER BY {keys}",
            order = self.list(|_, key| key.quoted.clone()),
            window = wanted.saturating_mul(WINDOW),
            keys = named(""),
            free_keys = named("free."),
            free_is_o = self.joined("free"),
            judged_is_o = self.joined("judged"),
            claimant = literal(claimant),
            lease = interval(self.lease),
            events = events.join(", "),
            shown = shown.join(", "),
        )
    }

    /// Marks rows published that are still claimed by `claimant`, whether its claim has lapsed or
    /// not: a row that another relay has taken over meanwhile is that relay's to mark.
    pub(crate) fn mark(&self, claimant: &str, rows: &[Key]) -> String {
        format!(
            "UPDATE {table} o SET {published_at} = now() FROM {rows} \
             WHERE o.{claimed_by} = {claimant} AND o.{published_at} IS NULL AND {is_o}",
            table = self.table,
            published_at = self.published_at,
            claimed_by = self.claimed_by,
            claimant = literal(claimant),
            rows = self.unnest(rows),
            is_o = self.joined("done"),
        )
    }

    /// Prolongs every claim of `claimant`.
    pub(crate) fn renew(&self, claimant: &str) -> String {
        format!(
            "UPDATE {} SET {} = now() + {} WHERE {}",
            self.table,
            self.claimed_until,
            interval(self.lease),
            self.claimed(claimant)
        )
    }

    /// Gives up every claim of `claimant`.
    pub(crate) fn give_back(&self, claimant: &str) -> String {
        format!(
            "UPDATE {} SET {} = NULL, {} = NULL WHERE {}",
            self.table,
            self.claimed_by,
            self.claimed_until,
            self.claimed(claimant)
        )
    }

    /// Deletes up to `limit` rows that were published longer than `retention` ago.
    pub(crate) fn clean(&self, retention: Duration, limit: usize) -> String {
        let keys = self.list(|_, key| key.quoted.clone());
        format!(
            "DELETE FROM {table} WHERE ({keys}) IN (\
               SELECT {keys} FROM {table} \
               WHERE {published_at} IS NOT NULL AND {published_at} < now() - {retention} \
               ORDER BY {published_at} LIMIT {limit} FOR UPDATE SKIP LOCKED)",
            table = self.table,
            published_at = self.published_at,
            retention = interval(retention),
        )
    }

    fn claimed(&self, claimant: &str) -> String {
        format!(
            "{} IS NULL AND {} IS NOT NULL AND {} = {}",
            self.published_at,
            self.claimed_until,
            self.claimed_by,
            literal(claimant)
        )
    }

    fn list(&self, write: impl Fn(usize, &KeyColumn) -> String) -> String {
        let columns = self.keys.iter().enumerate();
        columns.map(|(i, key)| write(i, key)).collect::<Vec<_>>().join(", ")
    }

    fn joined(&self, with: &str) -> String {
        let columns = self.keys.iter().enumerate();
        let equal = columns.map(|(i, key)| format!("o.{} = {with}.key_{i}", key.quoted));
        equal.collect::<Vec<_>>().join(" AND ")
    }

    /// The rows as a relation `done`, one array for each column of the key.
    fn unnest(&self, rows: &[Key]) -> String {
        let arrays = self.keys.iter().enumerate().map(|(i, key)| {
            let mut array = String::from("ARRAY[");
            for (n, row) in rows.iter().enumerate() {
                let value = row.get(i).map(String::as_str).unwrap_or_default();
                let _ = write!(array, "{}{}", if n == 0 { "" } else { "," }, literal(value));
            }
            let _ = write!(array, "]::{}[]", key.type_name);
            array
        });
        let arrays = arrays.collect::<Vec<_>>().join(", ");
        format!("unnest({arrays}) AS done({})", self.list(|i, _| format!("key_{i}")))
    }
}

fn interval(duration: Duration) -> String {
    format!("'{} milliseconds'::interval", duration.as_millis())
}

/// What the session needs beyond what a snapshot's does.
///
/// - A queue's statistics are always stale: the table is empty one minute and holds a million rows
///   the next. Every statement here is meant to go through an index.
/// - A claim or a mark that a crash of the server loses repeats entries, which is what this relay
///   promises anyway; so its commits need not wait for the disk.
pub(crate) const SESSION: &str = "\
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET jit = off; SET synchronous_commit = off; SET statement_timeout = '30s'";

/// Has the server send notifications of new rows.
pub(crate) const LISTEN: &str = "LISTEN outflow_outbox";

#[cfg(test)]
mod tests;
