//! Replication slots, the server's identity, and timelines.
//!
//! Source: PostgreSQL documentation, "Streaming Replication Protocol" and "pg_replication_slots".

use crate::{
    Error, Lsn, ReplicationClient,
    query::{identifier, literal},
};

/// What to do with the snapshot that goes with a new slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Snapshot {
    /// None.
    #[default]
    Nothing,
    /// Exports it: another session can read the tables as of the slot's start with
    /// `SET TRANSACTION SNAPSHOT`. It lasts until the next command on this link.
    Export,
    /// Uses it in the transaction that is open on this link (`BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ`).
    Use,
}

/// Options of [`ReplicationClient::create_slot`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CreateSlotOptions {
    /// Its snapshot.
    pub snapshot: Snapshot,
    /// Dropped when the link closes.
    pub temporary: bool,
    /// Synchronised to standbys. PostgreSQL 17 and later.
    pub failover: bool,
}

/// A slot that was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Its name.
    pub name: String,
    /// Transactions that commit after this position will be streamed.
    pub consistent_point: Lsn,
    /// Name of the exported snapshot.
    pub snapshot_name: Option<String>,
}

/// Answer to `IDENTIFY_SYSTEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Differs between clusters that do not descend from one `initdb`.
    pub system_identifier: String,
    /// Rises with each promotion.
    pub timeline: u32,
    /// End of the flushed log.
    pub flush_lsn: Lsn,
    /// The database of the session.
    pub database: Option<String>,
}

/// One line of a timeline's history: the parent and where it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The parent timeline.
    pub timeline: u32,
    /// Where the next timeline branched off: what the parent wrote above it is not part of this history.
    pub switch_point: Lsn,
    /// Why, as noted by the server.
    pub reason: String,
}

/// One row of `pg_replication_slots`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// Its name.
    pub name: String,
    /// Output plugin; none for physical slots.
    pub plugin: Option<String>,
    /// `logical` or `physical`.
    pub slot_type: String,
    /// Database of a logical slot.
    pub database: Option<String>,
    /// Dropped when its session ends.
    pub temporary: bool,
    /// In use.
    pub active: bool,
    /// By this process.
    pub active_pid: Option<u32>,
    /// Oldest log that the slot still needs; none if it was lost.
    pub restart_lsn: Option<Lsn>,
    /// What the consumer has confirmed: nothing up to here will be sent again.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of log that can still be written before the slot may be lost; none without a limit.
    pub safe_wal_size: Option<i64>,
    /// Why the slot can no longer be used: `wal_removed`, `rows_removed`, `wal_level_insufficient`,
    /// `idle_timeout` (17 and later), `conflict` (16), `wal_removed` (15, from `wal_status`).
    pub invalidation_reason: Option<String>,
    /// Synchronised to standbys (17 and later).
    pub failover: bool,
    /// Streams transactions when they are prepared, not when they commit: not what this crate reads.
    pub two_phase: bool,
}

/// Checks a slot name by PostgreSQL's own rule
/// (PostgreSQL documentation, "Querying and Manipulating Replication Slots").
///
/// # Errors
/// [`Error::SlotName`].
pub fn validate_slot_name(name: &str) -> Result<(), Error> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if (1..=63).contains(&name.len()) && name.bytes().all(good) {
        return Ok(());
    }
    Err(Error::SlotName { name: name.to_owned() })
}

impl ReplicationClient {
    /// `IDENTIFY_SYSTEM`.
    ///
    /// # Errors
    /// [`Error::Pooler`] if the other side does not know the command, else as of
    /// [`Self::simple_query`].
    ///
    /// # Cancel safety
    /// Not cancel safe, see [`Self::simple_query`].
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, Error> {
        let rows = match self.simple_query("IDENTIFY_SYSTEM").await {
            // a pooler that swallows the replication parameter hands out an ordinary session
            Err(Error::Server(e)) if e.code.code() == "42601" => {
                return Err(Error::Pooler { host: self.session.host.clone(), reason: e.message });
            }
            other => other?,
        };
        let row =
            rows.first().ok_or_else(|| Error::Protocol("no answer to IDENTIFY_SYSTEM".into()))?;
        Ok(SystemIdentity {
            system_identifier: row.text(0, "systemid")?,
            timeline: row.parsed(1, "timeline")?,
            flush_lsn: row.lsn(2).ok_or_else(|| Error::Protocol("no xlogpos".into()))?,
            database: row.get(3).map(str::to_owned),
        })
    }

    /// `TIMELINE_HISTORY`: the ancestors of a timeline, oldest first. Timeline 1 has none.
    ///
    /// # Errors
    /// [`Error::Server`] if the server does not have the history file.
    ///
    /// # Cancel safety
    /// Not cancel safe, see [`Self::simple_query`].
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<TimelineSwitch>, Error> {
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let rows = self.simple_query(&format!("TIMELINE_HISTORY {timeline}")).await?;
        let content = rows.first().and_then(|row| row.get(1)).unwrap_or_default();
        parse_history(content)
    }

    /// Creates a logical slot for `pgoutput`. It waits until the transactions that are open now have ended; on
    /// a standby (16 and later) until the primary has logged its own, `pg_log_standby_snapshot()` there.
    ///
    /// The publication must exist, committed, before: the slot sees the catalog as it was when each
    /// transaction ran, and a publication created later does not exist for earlier ones.
    ///
    /// # Errors
    /// [`Error::SlotName`], [`Error::Unsupported`], or [`Error::Server`]: 42710 it exists, 53400 no slot is
    /// free, 55000 `wal_level` is not logical, 42501 the role lacks REPLICATION.
    ///
    /// # Cancel safety
    /// Not cancel safe: a slot may be left behind; look with [`Self::slot`].
    pub async fn create_slot(
        &mut self,
        name: &str,
        options: CreateSlotOptions,
    ) -> Result<CreatedSlot, Error> {
        validate_slot_name(name)?;
        let has = self.server_major();
        if options.failover && has < 17 {
            return Err(Error::Unsupported { what: "a failover slot", needs: 17, has });
        }
        let snapshot = match options.snapshot {
            Snapshot::Nothing => "nothing",
            Snapshot::Export => "export",
            Snapshot::Use => "use",
        };
        let command = format!(
            "CREATE_REPLICATION_SLOT {}{} LOGICAL pgoutput (SNAPSHOT '{snapshot}'{})",
            identifier(name),
            if options.temporary { " TEMPORARY" } else { "" },
            if options.failover { ", FAILOVER true" } else { "" },
        );
        let rows = match self.simple_query(&command).await {
            Ok(rows) => rows,
            Err(e) => return Err(self.explain(e).await),
        };
        let row = rows
            .first()
            .ok_or_else(|| Error::Protocol("no answer to CREATE_REPLICATION_SLOT".into()))?;
        Ok(CreatedSlot {
            name: row.text(0, "slot_name")?,
            consistent_point: row
                .lsn(1)
                .ok_or_else(|| Error::Protocol("no consistent_point".into()))?,
            snapshot_name: row.get(2).map(str::to_owned),
        })
    }

    /// Drops a slot; with `wait`, after its present user has let go of it.
    ///
    /// # Errors
    /// [`Error::Server`]: 42704 no such slot, 55006 it is in use and `wait` is false.
    ///
    /// # Cancel safety
    /// Not cancel safe, see [`Self::simple_query`].
    pub async fn drop_slot(&mut self, name: &str, wait: bool) -> Result<(), Error> {
        validate_slot_name(name)?;
        let wait = if wait { " WAIT" } else { "" };
        let command = format!("DROP_REPLICATION_SLOT {}{wait}", identifier(name));
        self.simple_query(&command).await.map(|_| ())
    }

    /// Sets whether a slot that nobody uses is synchronised to standbys. PostgreSQL 17 and later;
    /// copies of a slot are not, whatever it is
    /// (PostgreSQL documentation, `ALTER_REPLICATION_SLOT`, `pg_copy_logical_replication_slot`).
    ///
    /// # Errors
    /// [`Error::SlotName`], [`Error::Unsupported`], or [`Error::Server`]: 42704 no such slot, 55006 it
    /// is in use, 42501 the role lacks REPLICATION.
    ///
    /// # Cancel safety
    /// Not cancel safe, see [`Self::simple_query`].
    pub async fn set_failover(&mut self, name: &str, failover: bool) -> Result<(), Error> {
        validate_slot_name(name)?;
        let has = self.server_major();
        if has < 17 {
            return Err(Error::Unsupported { what: "a failover slot", needs: 17, has });
        }
        let command = format!("ALTER_REPLICATION_SLOT {} (FAILOVER {failover})", identifier(name));
        self.simple_query(&command).await.map(|_| ())
    }

    /// What the server knows about a slot; `None` if there is none of that name.
    ///
    /// # Errors
    /// As of [`Self::simple_query`].
    ///
    /// # Cancel safety
    /// Not cancel safe, see [`Self::simple_query`].
    pub async fn slot(&mut self, name: &str) -> Result<Option<SlotInfo>, Error> {
        // the last two columns came with 16 and 17
        let late = match self.server_major() {
            17.. => "invalidation_reason, failover",
            16 => {
                "CASE WHEN conflicting AND restart_lsn IS NOT NULL THEN 'conflict' WHEN wal_status = 'lost' THEN 'wal_removed' END, false"
            }
            _ => "CASE WHEN wal_status = 'lost' THEN 'wal_removed' END, false",
        };
        let sql = format!(
            "SELECT plugin, slot_type, database, temporary, active, active_pid, restart_lsn, \
             confirmed_flush_lsn, wal_status, safe_wal_size, two_phase, {late} \
             FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
            literal(name)
        );
        let rows = self.simple_query(&sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let text = |column| row.get(column).map(str::to_owned);
        let flag = |column| row.get(column) == Some("t");
        Ok(Some(SlotInfo {
            name: name.to_owned(),
            plugin: text(0),
            slot_type: row.text(1, "slot_type")?,
            database: text(2),
            temporary: flag(3),
            active: flag(4),
            active_pid: row.get(5).and_then(|pid| pid.parse().ok()),
            restart_lsn: row.lsn(6),
            confirmed_flush_lsn: row.lsn(7),
            wal_status: text(8),
            safe_wal_size: row.get(9).and_then(|size| size.parse().ok()),
            two_phase: flag(10),
            invalidation_reason: text(11),
            failover: flag(12),
        }))
    }
}

/// Lines of `timeline <tab> lsn <tab> reason`, with comments and empty lines.
fn parse_history(content: &str) -> Result<Vec<TimelineSwitch>, Error> {
    let lines = content.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let bad = |line: &str| Error::Protocol(format!("line {line:?} in a timeline history"));
    lines
        .map(|line| {
            let mut parts = line.splitn(3, '\t');
            let timeline = parts.next().and_then(|t| t.trim().parse().ok());
            let switch_point = parts.next().and_then(|l| l.trim().parse().ok());
            let reason = parts.next().unwrap_or_default().trim().to_owned();
            match (timeline, switch_point) {
                (Some(timeline), Some(switch_point)) => {
                    Ok(TimelineSwitch { timeline, switch_point, reason })
                }
                _ => Err(bad(line)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_names_follow_the_servers_rule() {
        for good in ["a", "ob_slot", "0_9", &"x".repeat(63)] {
            assert!(validate_slot_name(good).is_ok(), "{good}");
        }
        for bad in ["", "Ob", "a-b", "a b", "ä", "a\"; drop", &"x".repeat(64)] {
            assert!(validate_slot_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_timeline_history_is_read() {
        let content = "# made by hand\n1\t0/3000060\tno recovery target specified\n\n2\t1/A0\tbefore 2024-01-01\tx\n";
        let history = parse_history(content).unwrap();
        assert_eq!(history.len(), 2);
        assert_eq!((history[0].timeline, history[0].switch_point), (1, Lsn::from(0x300_0060)));
        assert_eq!(
            (history[1].timeline, history[1].switch_point),
            (2, Lsn::from((1 << 32) | 0xA0))
        );
        assert!(parse_history("2\tnonsense\tx").is_err());
    }
}
