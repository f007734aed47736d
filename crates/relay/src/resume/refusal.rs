//! What stands against resuming, in the operator's words: the thing, the gap, the way out.

use std::fmt;

use outflow_event::{Epoch, Lsn, Position, PositionError};

use crate::offset::ResumePoint;
use crate::status::On;

/// A state that may pass by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wait {
    /// The server cannot decode its log while it is a standby.
    #[error(
        "the server is a standby (in recovery), and PostgreSQL {major} streams only from a \
         primary: waiting for its promotion; if the primary is elsewhere, correct source.url"
    )]
    Standby {
        /// Its major version.
        major: u32,
    },
    /// A slot with a snapshot can only be created on a primary.
    #[error(
        "the server is a standby (in recovery) and slot `{slot}` is still to be created there: \
         waiting for its promotion; if the primary is elsewhere, correct source.url"
    )]
    StandbyWithoutSlot {
        /// The slot.
        slot: String,
    },
    /// Another process holds the slot.
    #[error(
        "slot `{slot}` is in use by process {pid} of the server: waiting; it is free as soon as \
         that session ends. If no other connector runs, the session is a leftover: end it with \
         SELECT pg_terminate_backend({pid})"
    )]
    SlotActive {
        /// The slot.
        slot: String,
        /// The server process; 0 where unknown.
        pid: u32,
    },
    /// Another connector is at the same slot.
    #[error(
        "another connector creates slot `{slot}` or publishes its snapshot: waiting until its \
         session ends (in pg_locks: locktype advisory, classid {class})"
    )]
    OtherSnapshot {
        /// The slot.
        slot: String,
        /// First half of the key of the advisory lock.
        class: i32,
    },
    /// The offset is not the one that was decided on any more.
    #[error(
        "the offset changed while slot `{slot}` was about to be created: another connector of \
         this name is running"
    )]
    OffsetChanged {
        /// The slot.
        slot: String,
    },
    /// The servers do not meet the conditions at the moment.
    #[error("{0}")]
    Conditions(String),
    /// The slot has no position yet.
    #[error(
        "slot `{slot}` is still being created, it waits for transactions that are open: look for \
         old ones in pg_stat_activity"
    )]
    SlotNotReady {
        /// The slot.
        slot: String,
    },
}

/// Why the connector does not start. Each names what to run; nothing is changed before that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The offset was taken in another cluster (C40).
    #[error(
        "the stored offset belongs to another cluster: system identifier {stored}, the server has \
         {server}. Its positions mean nothing here. If source.url is right and the new cluster \
         is meant, begin a new epoch: `outflow offsets reset --from-rows` publishes every row of \
         its outbox, `outflow offsets reset --from-slot` only what comes after the slot's position"
    )]
    OtherCluster {
        /// Of the offset.
        stored: String,
        /// Of the server.
        server: String,
    },
    /// The server is on an older timeline than the offset.
    #[error(
        "the stored offset was taken on timeline {stored}, the server is on timeline {server}: it \
         is an old primary, or was restored to a time before the last promotion. Connect to the \
         present primary; if this server is meant, run `outflow offsets reset --from-rows`, which \
         publishes every row of its outbox"
    )]
    TimelineBehind {
        /// Of the offset.
        stored: u32,
        /// Of the server.
        server: u32,
    },
    /// The server's history does not contain the offset's timeline.
    #[error(
        "the server is on timeline {server}, whose history does not contain timeline {stored} of \
         the stored offset: which events both have in common cannot be told. `outflow offsets \
         reset --from-rows` publishes every row of its outbox; consumers with an inbox recognise \
         those that they have applied"
    )]
    TimelineUnrelated {
        /// Of the offset.
        stored: u32,
        /// Of the server.
        server: u32,
    },
    /// The snapshot's slot was created in a part of history that was lost.
    #[error(
        "the source went back to {switch_point} during the initial snapshot, to before its slot \
         was created: `outflow offsets reset --from-rows` begins again with a new slot and every \
         row of the outbox"
    )]
    SnapshotLost {
        /// Where the server's history left the one of the snapshot.
        switch_point: Lsn,
    },
    /// The progress of the snapshot cannot be read.
    #[error(
        "the stored progress of the initial snapshot lacks the slot's consistent point: was the \
         offset edited? `outflow offsets reset --from-rows` begins again with a new slot and every \
         row of the outbox"
    )]
    Progress,
    /// The offset lies beyond the end of the server's log (C49).
    #[error(
        "the stored offset {stored} lies {} beyond the end of the server's log ({server}): the \
         server was restored from a backup, or is another one. Nothing was confirmed to the \
         slot. Connect to the right server; if this one is meant, begin a new epoch: `outflow \
         offsets reset --from-rows` publishes every row of its outbox, `outflow offsets reset \
         --from-slot` only what comes after the slot's position", size(*server, *stored)
    )]
    AheadOfServer {
        /// The highest stored position.
        stored: Lsn,
        /// End of the server's log.
        server: Lsn,
    },
    /// An offset, but no slot (C39, C40).
    #[error(
        "slot `{slot}` does not exist, but this connector has published up to {stored}{}. The log \
         since then is {} and is not streamed by a new slot. Fill the gap from outbox rows: \
         `outflow offsets reset --from-rows` lets the connector create the slot and publish every \
         row of the outbox",
        if *snapshot { " (during the initial snapshot)" } else { "" },
        size(stored.lsn, *server)
    )]
    SlotMissing {
        /// The slot.
        slot: String,
        /// The stored resume point.
        stored: ResumePoint,
        /// End of the server's log.
        server: Lsn,
        /// Whether the initial snapshot was under way.
        snapshot: bool,
    },
    /// The slot was invalidated (C38).
    #[error(
        "slot `{slot}` was invalidated ({reason}): the log that it needs is gone. {} Fill it from \
         outbox rows: `outflow offsets reset --from-rows` lets the connector replace the slot and \
         publish every row of the outbox. To keep it from happening again look at \
         max_slot_wal_keep_size and idle_replication_slot_timeout",
        lost_gap(*stored, *server)
    )]
    SlotLost {
        /// The slot.
        slot: String,
        /// What PostgreSQL gives as the reason.
        reason: String,
        /// The stored end LSN.
        stored: Option<Lsn>,
        /// End of the server's log.
        server: Lsn,
    },
    /// The slot has moved past what is published (C39, C61).
    #[error(
        "slot `{slot}` stands at {confirmed}, {} beyond the stored offset {stored}: what committed \
         in between would never be streamed. Either the slot was dropped and created again or \
         advanced, or the store of the offset has lost its last writes. Fill the gap from outbox \
         rows: `outflow offsets reset --from-rows` begins a new slot and publishes every row of \
         the outbox. Or give the gap up: `outflow offsets reset --from-slot` goes on where the \
         slot stands",
        size(stored.lsn, *confirmed)
    )]
    SlotAhead {
        /// The slot.
        slot: String,
        /// The stored resume point.
        stored: ResumePoint,
        /// The slot's confirmed position.
        confirmed: Lsn,
    },
    /// The slot was confirmed beyond the end of the log (C50).
    #[error(
        "slot `{slot}` was confirmed up to {confirmed}, {} beyond the end of the server's log \
         ({server}): it will never stream again. `outflow offsets reset --from-rows` lets the \
         connector replace it and publish every row of the outbox", size(*server, *confirmed)
    )]
    SlotBeyondServer {
        /// The slot.
        slot: String,
        /// The slot's confirmed position.
        confirmed: Lsn,
        /// End of the server's log.
        server: Lsn,
    },
    /// A slot of another kind under the configured name.
    #[error(
        "slot `{slot}` cannot be used: {why}. Choose another name in source.slot, or drop it if \
         nothing else needs it"
    )]
    SlotUnfit {
        /// The slot.
        slot: String,
        /// What is wrong with it.
        why: String,
    },
    /// No epoch is left.
    #[error("the source went back in history, and no epoch is left for it: {0}")]
    Epochs(PositionError),
}

impl Refusal {
    /// What has to be mended: the slot, or else the offset, which is not one of this server.
    pub(crate) fn waits_on(&self) -> On {
        match self {
            Self::SlotMissing { .. }
            | Self::SlotLost { .. }
            | Self::SlotAhead { .. }
            | Self::SlotBeyondServer { .. }
            | Self::SlotUnfit { .. } => On::Slot,
            Self::OtherCluster { .. }
            | Self::TimelineBehind { .. }
            | Self::TimelineUnrelated { .. }
            | Self::SnapshotLost { .. }
            | Self::Progress
            | Self::AheadOfServer { .. }
            | Self::Epochs(_) => On::Offset,
        }
    }

    /// How far back the slot would have to stand, where nothing else is wrong: a rewind point at or
    /// below this position mends it.
    pub(crate) fn needs_earlier_slot(&self) -> Option<Lsn> {
        match self {
            Self::SlotAhead { stored, .. } | Self::SlotMissing { stored, snapshot: false, .. } => {
                Some(stored.lsn)
            }
            _ => None,
        }
    }
}

/// A fork of history that was resolved: the source has lost commits that the offset covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// Where the server's history left the one of the offset.
    pub switch_point: Lsn,
    /// The last published event of the lost history; `None` when none was published above the
    /// switch point.
    pub last: Option<Position>,
    /// The epoch that begins here.
    pub epoch: Epoch,
}

impl fmt::Display for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { switch_point, last, epoch } = self;
        write!(f, "the source was promoted from an older state and went back to {switch_point}: ")?;
        match last {
            Some(last) => write!(
                f,
                "events published at {switch_point} up to {last} are in the streams but no longer \
                 in the source (docs/runbook.md, \"Compare source and projection\"). "
            )?,
            None => f.write_str("no published event was lost. ")?,
        }
        write!(f, "New events go on in epoch {epoch}")
    }
}

fn lost_gap(stored: Option<Lsn>, server: Lsn) -> String {
    match stored {
        Some(stored) => format!(
            "The gap reaches from the stored offset {stored} to {server}, {} of log.",
            size(stored, server)
        ),
        None => format!("No offset is stored; the server is at {server}."),
    }
}

/// Bytes of log between two positions, readable.
pub(crate) fn size(from: Lsn, to: Lsn) -> String {
    bytes(u64::from(to).saturating_sub(u64::from(from)))
}

/// A number of bytes in the largest unit that keeps one decimal meaningful.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut tenths = count.saturating_mul(10);
    let mut unit = "B";
    for larger in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = larger;
    }
    if unit == "B" {
        format!("{count} B")
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(1_610_612_736), "1.5 GiB");
        assert_eq!(size(Lsn::from(0), Lsn::from(16 << 20)), "16.0 MiB");
        assert_eq!(size(Lsn::from(2), Lsn::from(1)), "0 B");
    }
}
