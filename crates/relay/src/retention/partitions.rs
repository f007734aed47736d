//! Partitions of the outbox that go as a whole.

use tokio_postgres::Client;

use super::outbox::{Leaf, Pass};
use crate::error::Error;
use crate::metrics;
use crate::snapshot::{literal, qualified};

/// Waiting longer than this for the lock would make the application's inserts queue behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '500ms'";

impl Pass<'_> {
    /// Drops a partition if none of its rows has to stay and none will come to it; `false` if it stays,
    /// and its rows are deleted one by one.
    ///
    /// No row will come to a range by time that has ended before the replay floor, nor to a range of
    /// numbers above which others have been written. The rows are looked at under a lock that nobody
    /// can insert through.
    pub(super) async fn drop_partition(
        &self,
        leaf: &Leaf,
        created_at: &str,
    ) -> Result<bool, Error> {
        let failed = || Error::sql("dropping a partition of the outbox");
        if !self.is_over(leaf).await? {
            return Ok(false);
        }
        let (table, now, may_go) = (&leaf.name, Self::NOW, self.may_go(created_at));
        let stays =
            format!("SELECT EXISTS (SELECT FROM {table} AS t, {now} WHERE ({may_go}) IS NOT TRUE)");
        if self.dry_run {
            let row = self.sql.query_one(&stays, &[]).await.map_err(failed())?;
            return Ok(!row.get::<_, bool>(0));
        }
        let begin = format!("BEGIN; {LOCK_TIMEOUT}; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        let work = async {
            self.sql.batch_execute(&begin).await?;
            if self.sql.query_one(&stays, &[]).await?.get(0) {
                return Ok(false);
            }
            let drop = format!("DROP TABLE {table}; COMMIT");
            self.sql.batch_execute(&drop).await?;
            Ok::<_, tokio_postgres::Error>(true)
        };
        let done = work.await;
        match done {
            Ok(true) => {
                metrics::partition_dropped();
                tracing::info!(
                    partition = table,
                    "dropped: all its rows were applied and old enough"
                );
                Ok(true)
            }
            Ok(false) => rolled_back(self.sql).await.map(|()| false),
            Err(error) if error.as_db_error().is_some() => {
                tracing::info!(
                    partition = table,
                    "not dropped, its rows are deleted instead: {error}; dropping needs its owner, and a \
                     moment without locks on it"
                );
                rolled_back(self.sql).await.map(|()| false)
            }
            Err(error) => Err(failed()(error)),
        }
    }

    /// Whether its range has ended. Other kinds of partitions, and the default one, never end.
    async fn is_over(&self, leaf: &Leaf) -> Result<bool, Error> {
        let row = self
            .sql
            .query_opt(
                "SELECT (pg_catalog.regexp_match(pg_catalog.pg_get_expr(c.relpartbound, c.oid), \
                         '^FOR VALUES FROM \\(.*\\) TO \\(''?([^,'']+)''?\\)$'))[1], \
                        a.attname, pg_catalog.format_type(a.atttypid, NULL) \
                 FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid \
                 JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = i.inhparent \
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhparent AND a.attnum = p.partattrs[0] \
                 WHERE c.oid = $1::text::regclass AND p.partstrat = 'r' AND p.partnatts = 1",
                &[&leaf.name],
            )
            .await
            .map_err(Error::sql("looking at a partition of the outbox"))?;
        let Some(row) = row else { return Ok(false) };
        let (Some(end), column, kind): (Option<String>, String, String) =
            (row.get(0), row.get(1), row.get(2))
        else {
            return Ok(false);
        };
        if end == "MAXVALUE" {
            return Ok(false);
        }
        let column = crate::snapshot::identifier(&column);
        let over = match kind.as_str() {
            "timestamp with time zone" | "timestamp without time zone" | "date" => format!(
                "SELECT {}::timestamptz <= {}::timestamptz",
                literal(&end),
                literal(self.before)
            ),
            "bigint" | "integer" => format!(
                "SELECT EXISTS (SELECT FROM {} WHERE {column} >= {}::bigint)",
                qualified(&self.source.table),
                literal(&end)
            ),
            _ => return Ok(false),
        };
        let row = self.sql.query_one(&over, &[]).await;
        Ok(row.map_err(Error::sql("looking at a partition of the outbox"))?.get(0))
    }
}

async fn rolled_back(sql: &Client) -> Result<(), Error> {
    sql.batch_execute("ROLLBACK").await.map_err(Error::sql("leaving a partition as it is"))
}
