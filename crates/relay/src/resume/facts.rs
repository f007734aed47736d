//! What the decision is made of, as the server tells it.

use jiff::Timestamp;
use outflow_event::Lsn;
use outflow_pgoutput::{ReplicationClient, SlotInfo, TimelineSwitch};

use crate::error::Error;
use crate::offset::Offset;

/// What the decision depends on besides the stored offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server.
    pub server: Server,
    /// Name of the configured slot.
    pub slot_name: String,
    /// The slot, if there is one of that name.
    pub slot: Option<Slot>,
    /// Ancestors of the server's timeline, oldest first; empty where they are not needed.
    pub history: Vec<TimelineSwitch>,
    /// When this was found out, by the connector's clock.
    pub at: Timestamp,
}

/// The server at the other end of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `system_identifier` of its cluster, decimal.
    pub system_identifier: String,
    /// Its timeline.
    pub timeline: u32,
    /// End of its flushed log.
    pub flush_lsn: Lsn,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// Its major version.
    pub major: u32,
    /// The connected database.
    pub database: String,
}

/// A replication slot (PostgreSQL documentation, `pg_replication_slots`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Output plugin of a logical slot.
    pub plugin: Option<String>,
    /// Database of a logical slot.
    pub database: Option<String>,
    /// Dropped when its session ends.
    pub temporary: bool,
    /// Streams transactions when they are prepared, not when they commit.
    pub two_phase: bool,
    /// Synchronised to standbys.
    pub failover: bool,
    /// The process that uses it; 0 where the server does not say which.
    pub active: Option<u32>,
    /// Up to here the server will never stream again.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Why it can no longer be used.
    pub invalidation: Option<String>,
}

/// Finds out what [`decide`](super::decide) needs, over a link that does not stream.
///
/// # Errors
/// As for the statements of [`ReplicationClient`]: connect again and ask again when transient.
///
/// # Cancel safety
/// Not cancel safe: drop the link.
pub async fn inspect(
    link: &mut ReplicationClient,
    slot_name: &str,
    stored: Option<&Offset>,
) -> Result<Facts, Error> {
    outflow_pgoutput::validate_slot_name(slot_name)?;
    let identity = link.identify_system().await?;
    // two_phase came with PostgreSQL 14; the name was checked above and needs no quoting
    let sql = format!(
        "SELECT pg_catalog.pg_is_in_recovery(), (SELECT pg_catalog.to_jsonb(s) ->> 'two_phase' \
         FROM pg_catalog.pg_replication_slots s WHERE slot_name = '{slot_name}')"
    );
    let rows = link.simple_query(&sql).await?;
    let flag = |column, yes| rows.first().and_then(|row| row.get(column)) == Some(yes);
    let (in_recovery, two_phase) = (flag(0, "t"), flag(1, "true"));
    let slot = link.slot(slot_name).await?.map(|slot| Slot::new(slot, two_phase));
    let history = match stored {
        Some(stored) if stored.timeline < identity.timeline => {
            link.timeline_history(identity.timeline).await?
        }
        _ => Vec::new(),
    };
    let server = Server {
        system_identifier: identity.system_identifier,
        timeline: identity.timeline,
        flush_lsn: identity.flush_lsn,
        in_recovery,
        major: link.server_major(),
        database: identity.database.unwrap_or_default(),
    };
    Ok(Facts { server, slot_name: slot_name.to_owned(), slot, history, at: Timestamp::now() })
}

impl Slot {
    fn new(slot: SlotInfo, two_phase: bool) -> Self {
        Self {
            plugin: slot.plugin,
            database: slot.database,
            temporary: slot.temporary,
            two_phase,
            failover: slot.failover,
            active: slot.active.then(|| slot.active_pid.unwrap_or(0)),
            confirmed_flush_lsn: slot.confirmed_flush_lsn,
            invalidation: slot.invalidation_reason,
        }
    }
}
