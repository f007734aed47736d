//! Offsets: the stored point from which a connector resumes, and the ledger of earlier ones.

mod configured;
mod postgres;
mod redis;
pub mod reset;
mod script;

pub use self::configured::ConfiguredStore;
pub use self::postgres::PostgresOffsetStore;
pub use self::redis::RedisOffsetStore;
pub use self::script::{dead_letter_key, ledger_key, offset_key, save_command, script_outcome};

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outflow_event::{EntryId, Epoch, Lsn, Position};
use serde::{Deserialize, Serialize};

use crate::config::ConnectorConfig;
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
    /// LSN of every event that the slot will deliver. Also the offset's `end_lsn` while the
    /// snapshot lasts.
    pub lsn: String,
    /// The slot's consistent point, where streaming begins once the snapshot is complete; `None`
    /// while the slot is still to be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Values of the ordering columns of the last published row, as text, in the order of the
    /// snapshot's ordering; empty before the first row.
    pub last_key: Vec<String>,
}

impl SnapshotProgress {
    pub(crate) fn to_json(&self) -> String {
        // texts and lists of texts: there is nothing in it that JSON could not hold
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|error| format!("the progress of the snapshot: {error}"))
    }
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
    /// Events of the incomplete transaction that are published; 0 between transactions. During
    /// the snapshot: 0 before the slot exists, then one more than the rows that are published, so
    /// that every step of the snapshot lies above the one before.
    pub published: u64,
}

impl Offset {
    /// Where the stream of events goes on.
    #[must_use]
    pub fn resume_point(&self) -> ResumePoint {
        if let Some(progress) = &self.snapshot {
            let rows = self.position.map_or(0, |position| position.index.saturating_add(1));
            let slot = u64::from(!progress.visible.is_empty());
            let published = rows.saturating_add(slot);
            return ResumePoint { epoch: self.epoch, lsn: self.end_lsn, published };
        }
        match self.position {
            Some(position) if position.commit_lsn >= self.end_lsn => ResumePoint {
                epoch: self.epoch,
                lsn: position.commit_lsn,
                published: position.index.saturating_add(1),
            },
            _ => ResumePoint { epoch: self.epoch, lsn: self.end_lsn, published: 0 },
        }
    }

    /// The offset once every row of the snapshot is published: streaming begins at the slot's
    /// consistent point. An offset without a snapshot stays as it is.
    ///
    /// # Errors
    /// [`Error::BadRecord`] when the slot's consistent point is not known: the snapshot has not
    /// begun.
    pub fn after_snapshot(mut self) -> Result<Self, Error> {
        let Some(progress) = self.snapshot.take() else { return Ok(self) };
        let start = progress.start.as_deref().and_then(|start| start.parse().ok());
        self.end_lsn = start.ok_or_else(|| Error::BadRecord {
            what: "the progress of the snapshot".to_owned(),
            why: format!("`{:?}` is no position to start streaming from", progress.start),
        })?;
        Ok(self)
    }
}

impl std::fmt::Display for ResumePoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.lsn)?;
        if self.published > 0 {
            write!(f, " after {} events", self.published)?;
        }
        if self.epoch > Epoch::default() {
            write!(f, " (epoch {})", self.epoch)?;
        }
        Ok(())
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

/// The stored offset of a connector, from the store that its configuration names.
///
/// # Errors
/// As for [`OffsetStore::load`].
pub async fn load(config: &ConnectorConfig) -> Result<Option<Offset>, Error> {
    ConfiguredStore::new(config).load().await
}

/// The stored offset is not the one that was to be replaced.
fn replaced_meanwhile(connector: &str) -> Error {
    Error::Refused(format!(
        "the stored offset of connector `{connector}` changed meanwhile, nothing was replaced: stop \
         the connector and look again"
    ))
}

/// Tells when the ledger is due for its next line.
#[derive(Debug, Clone)]
pub struct LedgerPace {
    interval: SignedDuration,
    last: Option<Timestamp>,
}

impl LedgerPace {
    /// At most one line per `interval`.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        let interval = SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX);
        Self { interval, last: None }
    }

    /// Whether an offset taken `at` that time should get a line.
    #[must_use]
    pub fn due(&self, at: Timestamp) -> bool {
        // a clock that was set back must not silence the ledger
        self.last.is_none_or(|last| at < last || at.duration_since(last) >= self.interval)
    }

    /// A line for an offset taken `at` that time was written.
    pub fn written(&mut self, at: Timestamp) {
        self.last = Some(at);
    }
}

#[cfg(test)]
mod tests;
