//! Offsets: the stored point from which a connector resumes, and the ledger of earlier ones.

mod postgres;
mod redis;

pub use self::postgres::PostgresOffsetStore;
pub use self::redis::RedisOffsetStore;

use jiff::Timestamp;
use outflow_event::{EntryId, Epoch, Lsn, Position};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How far a connector has published, and in which history.
///
/// Everything before [`Offset::resume_point`] has been acknowledged by the broker; nothing at or
/// after it needs to have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offset {
    /// `system_identifier` of the source cluster (IDENTIFY_SYSTEM), decimal.
    pub system_identifier: String,
    /// Timeline of the source when the offset was taken.
    pub timeline: u32,
    /// Replication slot that the connector reads from.
    pub slot: String,
    /// Epoch of the entry ids.
    pub epoch: Epoch,
    /// Position of the last published event; `None` until there is one.
    pub position: Option<Position>,
    /// End LSN up to which every transaction is fully published: where START_REPLICATION resumes.
    /// Below `position` while a transaction is published in part.
    pub end_lsn: Lsn,
    /// Commit time of the last published event's transaction.
    pub commit_time: Option<Timestamp>,
    /// Events published by this connector since its first start.
    pub published_count: u64,
    /// When the offset was taken, by the connector's clock.
    pub at: Timestamp,
    /// The initial snapshot, until it is complete.
    pub snapshot: Option<SnapshotProgress>,
}

/// An initial snapshot under way. It survives crashes: the rows that belong to it are told by
/// their `xmin` and [`SnapshotProgress::visible`], not by an open transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotProgress {
    /// `pg_current_snapshot()` of the slot's exported snapshot; empty while the slot is still to
    /// be created, in which case a slot that is found was created by a crashed attempt.
    pub visible: String,
    /// LSN that stands for the commit LSN in the positions of snapshot events. Below the commit
    /// LSN of every event that the slot will deliver.
    pub lsn: String,
    /// Values of the ordering columns of the last published row, as text, in the order of the
    /// snapshot's ordering; empty before the first row.
    pub last_key: Vec<String>,
}

/// The point before which everything is published: an LSN, and how many events of the
/// transaction that commits there. Ordered; also the id of the offset's record in Redis, which
/// makes Redis refuse an offset that goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResumePoint {
    /// History that the LSN belongs to.
    pub epoch: Epoch,
    /// End LSN of the last complete transaction, or the commit LSN of the incomplete one.
    pub lsn: Lsn,
    /// Events of the incomplete transaction that are published; 0 between transactions.
    pub published: u64,
}

impl Offset {
    /// Where the stream of events goes on.
    #[must_use]
    pub fn resume_point(&self) -> ResumePoint {
        match self.position {
            Some(position) if position.commit_lsn >= self.end_lsn => ResumePoint {
                epoch: self.epoch,
                lsn: position.commit_lsn,
                published: position.index.saturating_add(1),
            },
            _ => ResumePoint { epoch: self.epoch, lsn: self.end_lsn, published: 0 },
        }
    }
}

impl ResumePoint {
    /// The id under which Redis keeps the offset.
    ///
    /// # Errors
    /// When the LSN exceeds 56 bits, see [`EntryId::at`].
    pub fn entry_id(self) -> Result<EntryId, Error> {
        Ok(EntryId::at(self.epoch, Position::new(self.lsn, self.published))?)
    }
}

/// Where offsets are kept.
///
/// `save` is monotonic: a store refuses an offset whose [`ResumePoint`] lies below the stored one
/// with [`Error::Superseded`], which tells a connector that was paused that another one has taken
/// over. Saving the stored offset again succeeds.
pub trait OffsetStore: Send {
    /// The stored offset of this connector, if there is one.
    ///
    /// # Errors
    /// Transient when the store cannot be reached, fatal when its record cannot be read.
    fn load(&mut self) -> impl Future<Output = Result<Option<Offset>, Error>> + Send;

    /// Stores `offset` durably, and adds it to the ledger when the last line is old enough.
    ///
    /// # Errors
    /// [`Error::Superseded`] for an offset that goes back; transient when the outcome is unknown
    /// (save again).
    fn save(&mut self, offset: &Offset) -> impl Future<Output = Result<(), Error>> + Send;

    /// The newest `limit` lines of the ledger, newest first.
    ///
    /// # Errors
    /// As for [`OffsetStore::load`].
    fn ledger(&mut self, limit: usize) -> impl Future<Output = Result<Vec<Offset>, Error>> + Send;
}
