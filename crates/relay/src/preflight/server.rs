//! The source server and the connector's role on it.

use tokio_postgres::Client;

use super::{Due, Report};
use crate::config::SourceConfig;
use crate::error::Error;
use crate::snapshot::identifier;

const FACTS: &str = "\
SELECT current_setting('server_version_num')::int,
    current_setting('wal_level'),
    current_setting('max_replication_slots')::int,
    current_setting('max_wal_senders')::int,
    (SELECT count(*)::int FROM pg_catalog.pg_replication_slots),
    (SELECT count(*)::int FROM pg_catalog.pg_stat_replication),
    current_user::text,
    r.rolsuper OR r.rolreplication OR EXISTS (
        -- managed services stand in for the attribute with a role
        SELECT FROM pg_catalog.pg_roles g WHERE g.rolname IN ('rds_replication', 'rds_superuser')
        AND pg_catalog.pg_has_role(r.oid, g.oid, 'member')),
    current_setting('server_encoding'),
    (SELECT string_agg(slot_name::text, ', ' ORDER BY slot_name)
        FROM pg_catalog.pg_replication_slots WHERE NOT active)
FROM pg_catalog.pg_roles r WHERE r.rolname = current_user";

/// Checks settings, role and free places; returns the version as `server_version_num`.
pub(super) async fn check(
    report: &mut Report,
    source: &SourceConfig,
    sql: &Client,
    due: Due,
) -> Result<i32, Error> {
    let row = sql.query_one(FACTS, &[]).await.map_err(Error::sql("checking the server"))?;
    let (version, wal_level): (i32, String) = (row.get(0), row.get(1));
    let (max_slots, max_senders): (i32, i32) = (row.get(2), row.get(3));
    let (slots, senders): (i32, i32) = (row.get(4), row.get(5));
    if wal_level != "logical" {
        report.refuse(
            "wal_level",
            format!("wal_level is {wal_level}, the log does not hold what events are read from"),
            "run ALTER SYSTEM SET wal_level = 'logical' and restart PostgreSQL",
        );
    }
    if due.slot && slots >= max_slots {
        let inactive: Option<String> = row.get(9);
        let unused = inactive.map_or_else(
            || "none is inactive".to_owned(),
            |names| format!("inactive now: {names}"),
        );
        report.refuse(
            "max_replication_slots",
            format!(
                "slot `{}` is to be created, but all {max_slots} of max_replication_slots are \
                 taken",
                source.slot
            ),
            format!(
                "drop one that nothing needs ({unused}), or run ALTER SYSTEM SET \
                 max_replication_slots = {} and restart PostgreSQL",
                max_slots.max(5).saturating_mul(2)
            ),
        );
    }
    if max_senders == 0 {
        report.refuse(
            "max_wal_senders",
            "max_wal_senders is 0, the server streams its log to nobody",
            "run ALTER SYSTEM SET max_wal_senders = 10 and restart PostgreSQL",
        );
    } else if senders >= max_senders {
        report.warn(
            "max_wal_senders",
            format!(
                "all {max_senders} of max_wal_senders are taken (this connector's own link \
                 included): a connection that breaks may not find a place again"
            ),
            format!(
                "run ALTER SYSTEM SET max_wal_senders = {} and restart PostgreSQL",
                max_senders.saturating_mul(2)
            ),
        );
    }
    let role: String = row.get(6);
    if !row.get::<_, bool>(7) {
        report.refuse(
            "role_replication",
            format!("role {role} may not use replication slots"),
            format!(
                "run ALTER ROLE {} REPLICATION (on managed services GRANT their role for it, for \
                 example rds_replication)",
                identifier(&role)
            ),
        );
    }
    if let Some(fixed) = loses_events(version) {
        report.warn(
            "server_version",
            format!(
                "PostgreSQL {} may skip events of transactions that are open while ALTER \
                 PUBLICATION runs",
                version_text(version)
            ),
            format!(
                "update to {fixed}; until then alter the publication only while nothing writes \
                 to the outbox"
            ),
        );
    }
    if due.snapshot && row.get::<_, &str>(8) == "SQL_ASCII" {
        report.warn(
            "encoding",
            "the database's encoding is SQL_ASCII: rows with bytes that are not UTF-8 stop the \
             initial snapshot",
            "set source.snapshot = \"never\" if there may be such rows, and emit the others again \
             (docs/runbook.md, \"Publish rows again\")",
        );
    }
    Ok(version)
}

/// The first version of the branch with the fix of "data loss in logical replication" (2025-05-08
/// releases), if this one lacks it.
fn loses_events(version: i32) -> Option<&'static str> {
    let (major, minor) = (version / 10_000, version % 10_000);
    let (fixed, text) = match major {
        17 => (5, "17.5"),
        16 => (9, "16.9"),
        15 => (13, "15.13"),
        14 => (18, "14.18"),
        // the branch's own fix is incomplete
        ..14 => return Some("PostgreSQL 14.18 or a later branch"),
        _ => return None,
    };
    (minor < fixed).then_some(text)
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 10_000, version % 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c20_minors_that_lose_events_are_known() {
        for affected in [170_004, 160_008, 150_012, 140_017, 130_022] {
            assert!(loses_events(affected).is_some(), "{affected}");
        }
        for fixed in [170_005, 160_009, 150_013, 140_018, 180_000] {
            assert_eq!(loses_events(fixed), None, "{fixed}");
        }
        assert_eq!(version_text(150_020), "15.20");
    }
}
