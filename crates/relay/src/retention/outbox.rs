//! Deletes outbox rows that everybody has applied and no replay is to bring back.
//!
//! A row does not know the position at which it committed, and its `created_at` is older than its
//! commit, by as much as its transaction lasted. So a [`Mark`] is taken: at one moment, the oldest
//! transaction that is still running, and the end of the log. Whatever an earlier transaction wrote was
//! committed before that end. Once the connector has published up to there, and every consumer has
//! acknowledged what the streams held then, rows of those transactions are applied everywhere, however
//! old they are; of these the ones go that are older than `retention.outbox`.

use std::collections::BTreeMap;

use outflow_broker::Connection;
use outflow_event::{EntryId, Lsn};
use tokio_postgres::Client;

use super::broker;
use super::floor::Facts;
use super::{OutboxReport, Progress, RetentionConfig};
use crate::config::{Column, SourceConfig};
use crate::error::Error;
use crate::metrics;
use crate::offset::Offset;
use crate::snapshot::{identifier, qualified};

/// Pages of a table that one statement looks at, at first; then by how many rows it found.
const PAGES: i64 = 32;

/// A moment in the source, and what must be done before rows from before it may go.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    /// Transactions below this one had ended.
    xmin: i64,
    /// All of them had committed below this.
    lsn: Lsn,
    system_identifier: String,
    /// The last ids of the streams, once everything up to `lsn` was published.
    streams: Option<BTreeMap<String, EntryId>>,
}

impl Mark {
    /// Takes a mark now.
    pub(super) async fn take(sql: &Client) -> Result<Self, Error> {
        let row = sql
            .query_one(
                "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint, \
                        pg_catalog.pg_current_wal_insert_lsn(), \
                        (SELECT system_identifier::text FROM pg_catalog.pg_control_system())",
                &[],
            )
            .await
            .map_err(Error::sql("marking a moment for retention"))?;
        Ok(Self { xmin: row.get(0), lsn: row.get(1), system_identifier: row.get(2), streams: None })
    }

    /// Whether everything from before the mark is published and acknowledged; if not, what is missing.
    pub(super) async fn is_passed(
        &mut self,
        offset: Option<&Offset>,
        redis: &mut Connection,
        streams: impl Iterator<Item = &String>,
        config: &RetentionConfig,
    ) -> Result<Result<(), String>, Error> {
        let Some(offset) = offset else {
            return Ok(Err("the connector has not stored an offset".to_owned()));
        };
        if offset.snapshot.is_some() {
            return Ok(Err("the initial snapshot is under way".to_owned()));
        }
        if offset.system_identifier != self.system_identifier {
            return Ok(Err("the stored offset belongs to another cluster".to_owned()));
        }
        if offset.end_lsn < self.lsn {
            let (stored, mark) = (offset.end_lsn, self.lsn);
            return Ok(Err(format!(
                "the connector has published up to {stored}, not to {mark} yet"
            )));
        }
        let mut facts = BTreeMap::new();
        for stream in streams {
            facts.insert(stream.clone(), broker::facts(redis, stream).await?);
        }
        if facts.is_empty() {
            return Ok(Err("there is no stream: nobody can have applied anything".to_owned()));
        }
        let ends = self.streams.get_or_insert_with(|| {
            facts.iter().map(|(stream, facts)| (stream.clone(), facts.last)).collect()
        });
        Ok(behind(ends, &facts, &config.consumers).map_or(Ok(()), Err))
    }
}

/// The first group that has not acknowledged a stream up to its `end`.
fn behind(
    ends: &BTreeMap<String, EntryId>,
    facts: &BTreeMap<String, Facts>,
    expected: &[String],
) -> Option<String> {
    for (stream, end) in ends {
        let Some(facts) = facts.get(stream) else {
            return Some(format!("{stream} is gone"));
        };
        if facts.groups.is_empty() {
            return Some(format!("no consumer has a group in {stream}"));
        }
        if let Some(name) =
            expected.iter().find(|name| !facts.groups.iter().any(|group| group.name == **name))
        {
            return Some(format!(
                "consumer `{name}` (retention.consumers) has no group in {stream}"
            ));
        }
        if let Some(group) = facts.groups.iter().find(|group| group.done < *end) {
            return Some(format!(
                "consumer `{}` has acknowledged {stream} up to {}, not to {end} yet",
                group.name, group.done
            ));
        }
    }
    None
}

/// A table with rows: the outbox, or one of its partitions.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Quoted, with its schema.
    pub(super) name: String,
    pub(super) is_partition: bool,
    pages: i64,
}

/// One pass over the outbox.
pub(super) struct Pass<'a> {
    pub(super) sql: &'a Client,
    pub(super) source: &'a SourceConfig,
    pub(super) config: &'a RetentionConfig,
    pub(super) mark: &'a Mark,
    /// Rows created at this time or later stay.
    pub(super) before: &'a str,
    pub(super) dry_run: bool,
}

impl Pass<'_> {
    pub(super) async fn run(&self, progress: &mut Progress<'_>) -> Result<OutboxReport, Error> {
        let mut report = OutboxReport {
            table: self.source.table.to_string(),
            before: Some(self.before.to_owned()),
            ..OutboxReport::default()
        };
        let Some(created_at) = self.created_at().await? else {
            report.held_by = Some(
                "the table has no column that tells when a row was created \
                 (source.columns.created_at)"
                    .to_owned(),
            );
            return Ok(report);
        };
        let leaves = self.leaves().await?;
        let total: i64 = leaves.iter().map(|leaf| leaf.pages).sum();
        let mut done = 0;
        for leaf in leaves {
            if leaf.is_partition && self.drop_partition(&leaf, &created_at).await? {
                report.partitions_dropped.push(leaf.name);
                continue;
            }
            report.removed += self.sweep(&leaf, &created_at, (done, total), progress).await?;
            done += leaf.pages;
        }
        Ok(report)
    }

    /// Whether a row may go, as a condition of SQL. `xmin` has 32 bits; a row that is visible now was
    /// written before the present xmax, which supplies the upper ones.
    pub(super) fn may_go(&self, created_at: &str) -> String {
        format!(
            "(now.xmax - ((now.xmax - t.xmin::text::bigint) & 4294967295)) < {} \
             AND t.{created_at}::timestamptz < {}::timestamptz",
            self.mark.xmin,
            crate::snapshot::literal(self.before),
        )
    }

    pub(super) const NOW: &'static str = "(SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS xmax) AS now";

    async fn created_at(&self) -> Result<Option<String>, Error> {
        let column = match &self.source.columns.created_at {
            Column::None => return Ok(None),
            Column::IfPresent(name) | Column::Required(name) => name,
        };
        let found = self
            .sql
            .query_opt(
                "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = $1::text::regclass \
                 AND attname = $2 AND NOT attisdropped",
                &[&qualified(&self.source.table), column],
            )
            .await
            .map_err(Error::sql("looking for the column that tells a row's age"))?;
        Ok(found.map(|_| identifier(column)))
    }

    async fn leaves(&self) -> Result<Vec<Leaf>, Error> {
        let rows = self
            .sql
            .query(
                "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relispartition, \
                        pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::bigint + 1 \
                 FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.relkind = 'r' AND (c.oid = $1::text::regclass OR c.oid IN \
                     (SELECT relid FROM pg_catalog.pg_partition_tree($1::text::regclass) WHERE isleaf)) \
                 ORDER BY c.oid",
                &[&qualified(&self.source.table)],
            )
            .await
            .map_err(Error::sql("looking for the tables of the outbox"))?;
        let leaf = |row: &tokio_postgres::Row| Leaf {
            name: row.get(0),
            is_partition: row.get(1),
            pages: row.get(2),
        };
        Ok(rows.iter().map(leaf).collect())
    }

    /// Deletes in batches of neighbouring pages, each a transaction of its own: no index is needed, and
    /// no batch looks at what another one has cleared.
    async fn sweep(
        &self,
        leaf: &Leaf,
        created_at: &str,
        (done, total): (i64, i64),
        progress: &mut Progress<'_>,
    ) -> Result<u64, Error> {
        let (mut at, mut pages, mut removed) = (0, PAGES, 0);
        while at < leaf.pages {
            let range = format!("t.ctid >= '({at},0)'::tid AND t.ctid < '({},0)'::tid", at + pages);
            let (table, may_go) = (&leaf.name, self.may_go(created_at));
            let now = Self::NOW;
            let found = if self.dry_run {
                let count =
                    format!("SELECT count(*) FROM {table} AS t, {now} WHERE {range} AND {may_go}");
                let row = self.sql.query_one(&count, &[]).await;
                row.map(|row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
            } else {
                let delete =
                    format!("DELETE FROM {table} AS t USING {now} WHERE {range} AND {may_go}");
                self.sql.execute(&delete, &[]).await
            };
            let found = found.map_err(Error::sql(
                "deleting outbox rows (GRANT outflow_retention \
                 to the connector's role, see sql/producer/0007_retention.sql)",
            ))?;
            if !self.dry_run {
                metrics::removed("outbox", found);
                fail::fail_point!("relay::retention_between_batches");
            }
            removed += found;
            at += pages;
            // about a batch of rows at a time
            let batch = u64::from(self.config.batch);
            pages = if found > batch {
                (pages / 2).max(1)
            } else if found < batch / 4 {
                (pages * 2).min(4096)
            } else {
                pages
            };
            let (done, total) = (u64::try_from(done + at.min(leaf.pages)), u64::try_from(total));
            progress.step(&leaf.name, done.unwrap_or(0), total.unwrap_or(0));
        }
        Ok(removed)
    }

    /// The time of the oldest row that is left; `None`: there is none.
    pub(super) async fn oldest(&self) -> Result<Option<String>, Error> {
        let Some(created_at) = self.created_at().await? else { return Ok(None) };
        let oldest = format!(
            "SELECT pg_catalog.to_char(min({created_at}::timestamptz) AT TIME ZONE 'UTC', \
                    'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM {}",
            qualified(&self.source.table)
        );
        let row = self.sql.query_one(&oldest, &[]).await;
        Ok(row.map_err(Error::sql("looking for the oldest outbox row"))?.get(0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::floor::Group;
    use super::*;

    #[test]
    fn c96_rows_stay_until_every_consumer_has_come_so_far() {
        let id = |major| EntryId { major, minor: 0 };
        let ends = BTreeMap::from([("s".to_owned(), id(5))]);
        let facts = |groups: &[(&str, u64)]| {
            let group =
                |(name, done): &(&str, u64)| Group { name: (*name).into(), done: id(*done) };
            let groups = groups.iter().map(group).collect();
            let facts = Facts { entries: 1, first: Some(id(1)), last: id(9), groups };
            BTreeMap::from([("s".to_owned(), facts)])
        };
        assert_eq!(behind(&ends, &facts(&[("a", 5), ("b", 9)]), &[]), None);
        let said = behind(&ends, &facts(&[("a", 5), ("b", 4)]), &[]).unwrap();
        assert!(said.starts_with("consumer `b` has acknowledged s up to 4-0"), "{said}");
        assert!(behind(&ends, &facts(&[]), &[]).unwrap().contains("no consumer"));
        assert!(behind(&ends, &facts(&[("a", 5)]), &["c".into()]).unwrap().contains("`c`"));
        assert!(behind(&ends, &BTreeMap::new(), &[]).unwrap().contains("s is gone"));
    }
}
