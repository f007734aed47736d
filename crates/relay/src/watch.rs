//! Looks after publication, table and slot while the pipeline runs.
//!
//! What the stream does not say is asked for here: a table that is no longer published, or was
//! replaced by another of the same name, makes the log silent, not faulty, and a confirmed
//! position would give up whatever it should have held. So a fault found here means that nothing
//! may be confirmed any more.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use outflow_event::Lsn;
use serde::Serialize;
use tokio::time::MissedTickBehavior;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::config::SourceConfig;
use crate::error::Error;
use crate::patience::{SLOW, watched};
use crate::preflight::{Finding, Publication, Report, Severity, Table};
use crate::resume::bytes;
use crate::status::{On, Reporter, State};

/// A check that takes longer than this has failed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

const CHECKING: &str = "checking publication and slot";

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WatchReport {
    /// When, by the connector's clock.
    pub at: Timestamp,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// The slot, if it exists.
    pub slot: Option<SlotHealth>,
    /// OID of the table that has the outbox's name now. Relation messages carry the OID of the
    /// table that is streamed.
    pub table: Option<u32>,
}

/// The state of the slot (PostgreSQL documentation, `pg_replication_slots`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotHealth {
    /// The process that uses it.
    pub active_pid: Option<u32>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that can still be written before the slot may be lost; `None` without a limit.
    pub safe_wal_size: Option<u64>,
    /// Bytes of log that the server keeps for it.
    pub retained_bytes: Option<u64>,
    /// Up to here the server will never stream again, in PostgreSQL's form.
    pub confirmed_flush_lsn: Option<String>,
}

impl WatchReport {
    /// Why nothing may be confirmed any more; `None` if all is well.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let faults: Vec<String> = self
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Refuse)
            .map(ToString::to_string)
            .collect();
        if faults.is_empty() { None } else { Some(faults.join("; ")) }
    }
}

/// Checks every `check_interval` until `shutdown`, and gives every report to `report`.
///
/// `walsender` is the server process of the replication link, for telling it from another
/// connector's. Has a connection of its own. A check that fails is left out: a server that cannot
/// be asked does not stream either, and the replication link notices that by itself. A server that
/// does not answer is another matter, because silence is what an idle link brings too: `reporter` is
/// told, and told again when it answers.
///
/// # Cancel safety
/// Reads only; dropping the future changes nothing.
pub async fn run(
    source: &SourceConfig,
    walsender: u32,
    shutdown: &CancellationToken,
    reporter: &Reporter,
    mut report: impl FnMut(WatchReport) + Send,
) {
    let mut ticks = tokio::time::interval(source.check_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watcher = Watcher { source, walsender, sql: None, first: None };
    let mut said = false;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let asked = Instant::now();
        let check = watched(reporter, (On::Source, CHECKING), State::Streaming, watcher.check());
        let check = tokio::time::timeout(CHECK_TIMEOUT, check);
        let checked = tokio::select! {
            () = shutdown.cancelled() => return,
            checked = check => checked,
        };
        said |= asked.elapsed() >= SLOW;
        match checked {
            Ok(Ok(found)) => {
                if std::mem::take(&mut said) {
                    reporter.recovered(On::Source, State::Streaming);
                }
                report(found);
            }
            Ok(Err(error)) => {
                debug!("publication and slot could not be checked: {error}");
                watcher.sql = None;
            }
            // what stands still has been said
            Err(_) => watcher.sql = None,
        }
    }
}

struct Watcher<'a> {
    source: &'a SourceConfig,
    walsender: u32,
    sql: Option<Client>,
    /// The first report: what was known from the start is not said again.
    first: Option<WatchReport>,
}

impl Watcher<'_> {
    async fn check(&mut self) -> Result<WatchReport, Error> {
        let sql = match self.sql.take() {
            Some(sql) if !sql.is_closed() => sql,
            _ => self.source.connect.connect_sql().await?.client,
        };
        let mut found = look(self.source, self.sql.insert(sql)).await?;
        self.compare(&mut found);
        Ok(found)
    }

    /// Adds what only shows against what was there before.
    fn compare(&mut self, found: &mut WatchReport) {
        let mut report = Report::default();
        let other = found.slot.as_ref().and_then(|slot| slot.active_pid);
        if let Some(pid) = other.filter(|pid| *pid != self.walsender) {
            report.refuse(
                "slot_taken",
                format!("slot `{}` is in use by another process, {pid}", self.source.slot),
                "end the other connector, or give each one a slot of its own",
            );
        }
        let Some(first) = &self.first else {
            found.findings.extend(report.findings);
            self.first = Some(found.clone());
            return;
        };
        if let (Some(before), Some(now)) = (first.table, found.table)
            && before != now
        {
            report.warn(
                "table_replaced",
                format!("{} is another table than when the connector started", self.source.table),
                "rows that were inserted before the publication carried it are missing: publish \
                 them again (docs/runbook.md, \"Publish rows again\")",
            );
        }
        found.findings.extend(report.findings);
        for finding in found.findings.iter().filter(|f| f.severity == Severity::Warn) {
            // texts carry sizes that change from check to check
            if !first.findings.iter().any(|known| known.code == finding.code) {
                warn!(code = finding.code, "{finding}");
            }
        }
        self.first = Some(WatchReport { table: first.table, ..found.clone() });
    }
}

/// Checks once: whether the publication carries the outbox, whole, and whether the slot is sound.
///
/// # Errors
/// As for any statement: check again when transient.
///
/// # Cancel safety
/// Reads only; dropping the future changes nothing.
pub async fn look(source: &SourceConfig, sql: &Client) -> Result<WatchReport, Error> {
    let mut report = Report::default();
    let table = Table::find(sql, &source.table).await?;
    let row = sql
        .query_one("SELECT current_setting('server_version_num')::int", &[])
        .await
        .map_err(Error::sql("checking the server"))?;
    let publication = Publication::find(sql, source, table.as_ref(), row.get(0)).await?;
    match (&table, &publication) {
        (None, _) => report.refuse(
            "table_missing",
            format!("table {} was dropped or renamed", source.table),
            "bring it back under that name, or name the new one in source.table",
        ),
        (_, None) => report.refuse(
            "publication_missing",
            format!("publication {} was dropped", source.publication),
            "create it again (`outflow init`). If the outbox was written meanwhile, the connector \
             says how to get past that part of the log",
        ),
        (table, Some(publication)) => publication.check(&mut report, source, table.as_ref()),
    }
    let slot = slot_health(source, sql).await?;
    check_slot(&mut report, source, slot.as_ref());
    Ok(WatchReport {
        at: Timestamp::now(),
        findings: report.findings,
        slot,
        table: table.map(|table| table.oid),
    })
}

async fn slot_health(source: &SourceConfig, sql: &Client) -> Result<Option<SlotHealth>, Error> {
    let statement = "\
        SELECT active_pid, wal_status, safe_wal_size, confirmed_flush_lsn, \
            pg_catalog.pg_wal_lsn_diff( \
                CASE WHEN pg_catalog.pg_is_in_recovery() \
                    THEN pg_catalog.pg_last_wal_replay_lsn() \
                    ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)::bigint \
        FROM pg_catalog.pg_replication_slots WHERE slot_name = $1";
    let row = sql
        .query_opt(statement, &[&source.slot])
        .await
        .map_err(Error::sql("looking at the slot"))?;
    let count = |number: Option<i64>| number.map(|number| u64::try_from(number).unwrap_or(0));
    Ok(row.map(|row| SlotHealth {
        active_pid: row.get::<_, Option<i32>>(0).and_then(|pid| u32::try_from(pid).ok()),
        wal_status: row.get(1),
        safe_wal_size: count(row.get(2)),
        retained_bytes: count(row.get(4)),
        confirmed_flush_lsn: row.get::<_, Option<Lsn>>(3).map(|lsn| lsn.to_string()),
    }))
}

fn check_slot(report: &mut Report, source: &SourceConfig, slot: Option<&SlotHealth>) {
    let name = &source.slot;
    let Some(slot) = slot else {
        report.refuse(
            "slot_missing",
            format!("slot `{name}` was dropped"),
            "the connector tells at its next start what the gap is and how to fill it",
        );
        return;
    };
    let retained = slot.retained_bytes.unwrap_or(0);
    match slot.wal_status.as_deref() {
        Some("lost") => report.refuse(
            "slot_lost",
            format!("slot `{name}` was invalidated, the log that it needs is gone"),
            "the connector tells at its next start what the gap is and how to fill it",
        ),
        Some("unreserved") => report.warn(
            "slot_unreserved",
            format!(
                "slot `{name}` holds back {} of log, more than max_slot_wal_keep_size: the next \
                 checkpoint may invalidate it",
                bytes(retained)
            ),
            "raise max_slot_wal_keep_size now (ALTER SYSTEM SET, SELECT pg_reload_conf()), and \
             look at what the connector waits for",
        ),
        _ => {
            // the last fifth of what is allowed
            if let Some(left) = slot.safe_wal_size.filter(|left| *left < retained / 4) {
                report.warn(
                    "slot_near_limit",
                    format!(
                        "slot `{name}` holds back {} of log and is lost after {} more",
                        bytes(retained),
                        bytes(left)
                    ),
                    "raise max_slot_wal_keep_size, and look at what the connector waits for",
                );
            }
        }
    }
}
