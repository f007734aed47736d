//! A backlog of events in the log, behind a slot that is only ever copied.
//!
//! A slot cannot go back, but its copies begin where it stands: every round reads the same bytes of
//! the log, from the same place, through a slot of its own.

use anyhow::Context;

use super::progress::Progress;
use super::stage::{AGGREGATE_TYPE, Stage};

/// Aggregates that the events are spread over.
pub(super) const AGGREGATES: u64 = 1000;
/// Events between two steps of the progress bar.
const CHUNK: u64 = 20_000;
/// Fills a payload up to about 200 bytes, and an event up to about 300.
pub(super) const MEMO: &str =
    "paid by card, delivered to the pick-up point, invoice sent by mail, no returns so far";

/// Events in the log that nobody has read.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Stands before the first event.
    slot: String,
    pub(super) events: u64,
    /// End of the last transaction.
    pub(super) end_lsn: String,
}

impl Backlog {
    /// Writes `events` events in transactions of `rows`, and makes sure that nothing of the writing
    /// is left to do when it returns.
    pub(super) async fn write(
        stage: &Stage,
        events: u64,
        rows: u64,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let slot = stage.fresh_name();
        create_slot(stage, &slot).await?;
        progress.step(format!("writing {events} events, {rows} a transaction"), events);
        // the writing is not measured: no commit has to wait for the disk
        stage.sql.batch_execute("SET synchronous_commit = off").await?;
        let chunk = (CHUNK / rows).max(1).saturating_mul(rows);
        let mut from = 1;
        while from <= events {
            let to = events.min(from.saturating_add(chunk - 1));
            stage.sql.batch_execute(&transactions(from, to, rows)).await?;
            progress.at(to);
            from = to.saturating_add(1);
        }
        stage.sql.batch_execute("SET synchronous_commit = on").await?;
        let end_lsn = stage.sql.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await?;
        let end_lsn = end_lsn.try_get(0)?;
        // something beyond the end: pg_recvlogical ends once it hears of it
        stage.sql.batch_execute("SELECT pg_logical_emit_message(true, 'bench', 'end')").await?;
        stage.sql.batch_execute("CHECKPOINT").await?;
        Ok(Self { slot, events, end_lsn })
    }

    /// A slot of its own that stands before the first event.
    pub(super) async fn slot(&self, stage: &Stage) -> anyhow::Result<String> {
        let copy = stage.fresh_name();
        stage
            .sql
            .execute("SELECT pg_copy_logical_replication_slot($1, $2)", &[&self.slot, &copy])
            .await
            .with_context(|| format!("slot {} cannot be copied", self.slot))?;
        Ok(copy)
    }

    /// Forgets the events.
    pub(super) async fn discard(self, stage: &Stage) -> anyhow::Result<()> {
        stage.drop_slot(&self.slot).await?;
        stage.sql.batch_execute("TRUNCATE outflow.outbox; CHECKPOINT").await?;
        Ok(())
    }
}

/// A slot at the end of the log.
pub(super) async fn create_slot(stage: &Stage, name: &str) -> anyhow::Result<()> {
    const CREATE: &str = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    stage.sql.execute(CREATE, &[&name]).await?;
    Ok(())
}

/// Writes the events `from` to `to`, in transactions of `rows`.
fn transactions(from: u64, to: u64, rows: u64) -> String {
    let insert = insert("first", &format!("LEAST(first + {rows} - 1, {to})"));
    format!(
        "DO $$ DECLARE first bigint; BEGIN \
         FOR first IN SELECT generate_series({from}, {to}, {rows}) LOOP {insert}; COMMIT; END LOOP; \
         END $$"
    )
}

/// The statement that writes the events `from` to `to` (SQL expressions) in the form of the demo's
/// ledger, of which the demo's projection makes turnovers.
pub(super) fn insert(from: &str, to: &str) -> String {
    format!(
        "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, seq, event_type, payload, headers) \
         SELECT gen_random_uuid()::text, '{AGGREGATE_TYPE}', 'c-' || n % {AGGREGATES}, n / {AGGREGATES} + 1, 'Posted', \
                jsonb_build_object('journal_id', 'j-' || n, 'consumer', 'c-' || n % {AGGREGATES}, \
                                   'currency', 'EUR', 'amount', 100 + n % 9900, 'memo', '{MEMO}'), \
                jsonb_build_object('trace', md5(n::text)) \
         FROM generate_series({from}, {to}) AS n"
    )
}
