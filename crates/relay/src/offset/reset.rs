//! The two ways out of a refusal: begin again from the rows of the outbox, or go on where the slot
//! stands.
//!
//! Both replace the stored offset by one from which [`crate::resume::decide`] goes on. [`plan`] is a
//! pure function; the stores carry it out in one step ([`RedisOffsetStore::replace`] and
//! [`PostgresOffsetStore::replace`]).
//!
//! Entry ids must keep rising, or the streams refuse them: the epoch rises by one wherever the next
//! LSN is not provably above everything that the streams hold.
//!
//! [`RedisOffsetStore::replace`]: super::RedisOffsetStore::replace
//! [`PostgresOffsetStore::replace`]: super::PostgresOffsetStore::replace

use outflow_event::{EntryId, Epoch, Lsn};

use super::{Offset, ResumePoint, SnapshotProgress};
use crate::config::SnapshotMode;
use crate::error::Error;
use crate::resume::{self, Decision, Facts, Refusal, Stop, Wait};

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetMode {
    /// The next start drops the slot if there is one, creates it anew, publishes every row of the
    /// outbox, then streams. Nothing is given up that is still in the outbox; rows that were
    /// published before come again, with their event ids.
    FromRows,
    /// The next start streams from the slot's position. What committed between the stored offset
    /// and that position is given up.
    FromSlot,
}

/// What is known besides the slot and the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// The stored offset, or the newest line of the ledger where its record cannot be read.
    pub offset: Option<&'a Offset>,
    /// Whether the record of the offset cannot be read.
    pub unreadable: bool,
    /// The highest last id of the streams, where ids are made of positions.
    pub last_id: Option<EntryId>,
}

/// What a reset does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetPlan {
    /// The offset to store.
    pub offset: Offset,
    /// The slot's confirmed position.
    pub slot: Option<Lsn>,
    /// The slot is there and will be replaced.
    pub drops_slot: bool,
    /// What is given up.
    pub gap: Option<Gap>,
    /// Why the epoch rises, if it does.
    pub raised: Option<String>,
}

/// The part of the log that is not streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Everything before this is published.
    pub from: ResumePoint,
    /// Where the stream goes on.
    pub to: Lsn,
}

impl Gap {
    /// Its size in bytes of log.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.to).saturating_sub(u64::from(self.from.lsn))
    }
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}, {} of log", self.from, self.to, resume::size(self.from.lsn, self.to))
    }
}

/// The offset that the connector is to go on from.
///
/// `snapshot` is the configured [`crate::config::SourceConfig::snapshot`].
///
/// # Errors
/// [`Error::Refused`] when a connector is connected to the slot, when the slot does not allow it, or
/// when there is nothing to reset.
pub fn plan(
    mode: ResetMode,
    facts: &Facts,
    known: Known<'_>,
    snapshot: SnapshotMode,
) -> Result<ResetPlan, Error> {
    if let Some(pid) = facts.slot.as_ref().and_then(|slot| slot.active) {
        return Err(Error::Refused(format!(
            "slot `{}` is in use by process {pid} of the server: stop the connector first",
            facts.slot_name
        )));
    }
    match mode {
        ResetMode::FromRows => from_rows(facts, known, snapshot),
        ResetMode::FromSlot => from_slot(facts, known, snapshot),
    }
}

fn from_rows(facts: &Facts, known: Known<'_>, snapshot: SnapshotMode) -> Result<ResetPlan, Error> {
    if snapshot == SnapshotMode::Never {
        return Err(Error::Refused(
            "source.snapshot is \"never\", and rows are published by the initial snapshot: set it \
             to \"initial\" for this"
                .to_owned(),
        ));
    }
    if facts.server.in_recovery {
        let wait = Wait::StandbyWithoutSlot { slot: facts.slot_name.clone() };
        return Err(Error::Refused(wait.to_string()));
    }
    if let Some(slot) = &facts.slot {
        resume::fitting(facts, slot).map_err(refused)?;
    }
    // the snapshot's events will stand at or above the end of the log
    let next = facts.server.flush_lsn;
    let (epoch, raised) = epoch(next, "the end of the server's log", facts, known)?;
    let planned = SnapshotProgress {
        visible: String::new(),
        lsn: next.to_string(),
        start: None,
        last_key: Vec::new(),
    };
    Ok(ResetPlan {
        offset: Offset { epoch, snapshot: Some(planned), ..resume::first_offset(facts, next) },
        slot: facts.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn),
        drops_slot: facts.slot.is_some(),
        gap: None,
        raised,
    })
}

fn from_slot(facts: &Facts, known: Known<'_>, snapshot: SnapshotMode) -> Result<ResetPlan, Error> {
    let name = &facts.slot_name;
    let Some(slot) = &facts.slot else {
        return Err(Error::Refused(format!(
            "slot `{name}` does not exist: use --from-rows; or, to give up everything that was \
             committed until now, create it (SELECT \
             pg_create_logical_replication_slot('{name}', 'pgoutput')) and run this again"
        )));
    };
    let next =
        resume::usable(facts, slot, known.offset.map(|offset| offset.end_lsn)).map_err(|stop| {
            match stop {
                Stop::Refuse(refusal) => refused(refusal),
                Stop::Wait(wait) => Error::Refused(wait.to_string()),
            }
        })?;
    let server = facts.server.flush_lsn;
    if next > server {
        let slot = name.clone();
        return Err(refused(Refusal::SlotBeyondServer { slot, confirmed: next, server }));
    }
    if !known.unreadable {
        let by_itself = match resume::decide(facts, known.offset, snapshot) {
            Decision::Resume { .. } => "streams from the stored offset",
            Decision::ContinueSnapshot { .. } => "goes on with the initial snapshot",
            Decision::Adopt { .. } => "begins where the slot stands",
            _ => "",
        };
        if !by_itself.is_empty() {
            return Err(Error::Refused(format!(
                "there is nothing to reset: the connector {by_itself} by itself, run `outflow \
                 relay`; to publish every row of the outbox again use --from-rows"
            )));
        }
    }
    let (epoch, raised) = epoch(next, "the slot's position", facts, known)?;
    let mut offset = Offset { epoch, ..resume::first_offset(facts, next) };
    let old = known.offset.filter(|old| resume::same_cluster(facts, old) && old.snapshot.is_none());
    if let Some(old) = known.offset {
        offset.published_count = old.published_count;
    }
    if let Some(old) = old.filter(|_| raised.is_none()) {
        (offset.position, offset.commit_time) = (old.position, old.commit_time);
    }
    let gap = known
        .offset
        .filter(|old| resume::same_cluster(facts, old))
        .map(|old| Gap { from: old.resume_point(), to: next })
        .filter(|gap| gap.from.lsn < gap.to);
    Ok(ResetPlan { offset, slot: Some(next), drops_slot: false, gap, raised })
}

/// The epoch in which ids from `next` on lie above everything that was published, and why it is not
/// the present one.
fn epoch(
    next: Lsn,
    what: &str,
    facts: &Facts,
    known: Known<'_>,
) -> Result<(Epoch, Option<String>), Error> {
    let stored = known.offset.map(Offset::resume_point);
    let streams = known.last_id.map(EntryId::to_position);
    let present = stored
        .map(|point| point.epoch)
        .into_iter()
        .chain(streams.map(|(epoch, _)| epoch))
        .max()
        .unwrap_or_default();
    let start = ResumePoint { epoch: present, lsn: next, published: 0 };
    let other = known.offset.is_some_and(|offset| !resume::same_cluster(facts, offset));
    let reason = if other {
        Some("the server is another cluster than that of the stored offset".to_owned())
    } else if let Some(stored) = stored.filter(|stored| *stored > start) {
        Some(format!("{what}, {next}, lies below the stored offset {stored}"))
    } else {
        streams
            .filter(|(epoch, last)| *epoch == present && last.commit_lsn >= next)
            .map(|(_, last)| format!("the streams hold entries up to {last}, and {what} is {next}"))
    };
    let epoch = match &reason {
        Some(_) => present.next().map_err(Refusal::Epochs).map_err(refused)?,
        None => present,
    };
    Ok((epoch, reason))
}

fn refused(refusal: Refusal) -> Error {
    Error::Refused(refusal.to_string())
}

#[cfg(test)]
mod tests;
