//! Where to resume: compares the stored offset with the slot and the server.
//!
//! PostgreSQL accepts a start below what the slot has confirmed and silently skips ahead, and it
//! accepts a start beyond the end of its log and silently streams nothing (PostgreSQL
//! documentation, "Streaming Replication Protocol", START_REPLICATION). Every way in which offset,
//! slot and server can disagree is therefore decided here, before the first byte is asked for.
//!
//! [`decide`] is a pure function of what [`inspect`] has found: a table of cases, tested as one.
//! It never chooses a start above the stored one, so nothing that is not published is skipped.

mod facts;
mod refusal;
mod rehearsal;

pub use facts::{Facts, Server, Slot, inspect};
pub use refusal::{Fork, Refusal, Wait};
pub(crate) use refusal::{bytes, size};
pub use rehearsal::refusal;

use outflow_event::{Epoch, Lsn};

use crate::config::SnapshotMode;
use crate::offset::Offset;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Create the slot, with a snapshot of the rows that are there if the configuration asks for
    /// it.
    Bootstrap {
        /// The slot was created by an attempt that crashed: drop it first. Its snapshot is gone
        /// and nothing was published from it.
        drop_slot: bool,
        /// Epoch of the entries.
        epoch: Epoch,
    },
    /// Publish the rest of the rows that are older than the slot, then stream.
    ContinueSnapshot {
        /// The stored offset, with the server's timeline.
        from: Offset,
    },
    /// Stream from the position of a slot that was there before this connector. Rows that are
    /// older than the slot are not published.
    Adopt {
        /// The offset to begin with.
        from: Offset,
    },
    /// Stream from the stored offset.
    Resume {
        /// The offset to go on from: `end_lsn` is where to start, its resume point tells what the
        /// first transaction has published already, its epoch is the epoch of the next entry.
        from: Offset,
        /// Published events that the source has lost, if it has lost any.
        fork: Option<Fork>,
    },
    /// Nothing can be done now, and it may pass by itself: ask again, with growing delays.
    Wait(Wait),
    /// A person has to decide.
    Refuse(Refusal),
}

/// What follows from the stored offset, the slot and the server.
///
/// Never starts above the stored end LSN or the server's own end, and refuses wherever something
/// between the stored resume point and the slot's position could be lost.
#[must_use]
pub fn decide(facts: &Facts, stored: Option<&Offset>, mode: SnapshotMode) -> Decision {
    match try_decide(facts, stored, mode) {
        Ok(decision) => decision,
        Err(Stop::Wait(wait)) => Decision::Wait(wait),
        Err(Stop::Refuse(refusal)) => Decision::Refuse(refusal),
    }
}

/// What stands against going on.
pub(crate) enum Stop {
    Wait(Wait),
    Refuse(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

impl From<Wait> for Stop {
    fn from(wait: Wait) -> Self {
        Self::Wait(wait)
    }
}

fn try_decide(
    facts: &Facts,
    stored: Option<&Offset>,
    mode: SnapshotMode,
) -> Result<Decision, Stop> {
    let server = &facts.server;
    if server.in_recovery && server.major < 16 {
        return Err(Wait::Standby { major: server.major }.into());
    }
    let Some(stored) = stored else { return without_offset(facts) };
    let planned = stored.snapshot.as_ref().is_some_and(|progress| progress.visible.is_empty());
    if planned && same_cluster(facts, stored) {
        return begin_again(facts, stored, mode);
    }
    let (from, fork) = in_this_history(facts, stored)?;
    let slot = facts.slot.as_ref().ok_or_else(|| Refusal::SlotMissing {
        slot: facts.slot_name.clone(),
        stored: from.resume_point(),
        server: server.flush_lsn,
        snapshot: from.snapshot.is_some(),
    })?;
    let confirmed = usable(facts, slot, Some(from.end_lsn))?;
    // a snapshot is followed by the stream from the consistent point on
    let needed = match &from.snapshot {
        Some(_) => from.clone().after_snapshot().map_err(|_| Refusal::Progress)?,
        None => from.clone(),
    }
    .resume_point();
    if confirmed > needed.lsn {
        return Err(Refusal::SlotAhead {
            slot: facts.slot_name.clone(),
            stored: needed,
            confirmed,
        }
        .into());
    }
    if from.snapshot.is_some() {
        return Ok(Decision::ContinueSnapshot { from });
    }
    Ok(Decision::Resume { from, fork })
}

/// An earlier attempt meant to take a snapshot and ended before it published anything.
fn begin_again(facts: &Facts, stored: &Offset, mode: SnapshotMode) -> Result<Decision, Stop> {
    // a new epoch costs nothing yet, and keeps the offset rising where a restored server went back
    let behind = facts.server.flush_lsn < stored.end_lsn;
    let epoch = if behind { stored.epoch.next().map_err(Refusal::Epochs)? } else { stored.epoch };
    match (&facts.slot, mode) {
        (Some(slot), SnapshotMode::Never) => {
            let end_lsn = usable(facts, slot, Some(stored.end_lsn))?;
            Ok(Decision::Adopt { from: Offset { epoch, ..first_offset(facts, end_lsn) } })
        }
        _ => bootstrap(facts, epoch),
    }
}

/// No offset is stored: a first start, or a slot that was there before (C53).
fn without_offset(facts: &Facts) -> Result<Decision, Stop> {
    let Some(slot) = &facts.slot else { return bootstrap(facts, Epoch::default()) };
    let confirmed = usable(facts, slot, None)?;
    if confirmed > facts.server.flush_lsn {
        return Err(Refusal::SlotBeyondServer {
            slot: facts.slot_name.clone(),
            confirmed,
            server: facts.server.flush_lsn,
        }
        .into());
    }
    Ok(Decision::Adopt { from: first_offset(facts, confirmed) })
}

/// The offset of a connector that has published nothing, at `end_lsn` of this server.
pub(crate) fn first_offset(facts: &Facts, end_lsn: Lsn) -> Offset {
    Offset {
        system_identifier: facts.server.system_identifier.clone(),
        timeline: facts.server.timeline,
        slot: facts.slot_name.clone(),
        epoch: Epoch::default(),
        position: None,
        end_lsn,
        commit_time: None,
        published_count: 0,
        at: facts.at,
        snapshot: None,
    }
}

fn bootstrap(facts: &Facts, epoch: Epoch) -> Result<Decision, Stop> {
    if facts.server.in_recovery {
        return Err(Wait::StandbyWithoutSlot { slot: facts.slot_name.clone() }.into());
    }
    if let Some(pid) = facts.slot.as_ref().and_then(|slot| slot.active) {
        return Err(Wait::SlotActive { slot: facts.slot_name.clone(), pid }.into());
    }
    Ok(Decision::Bootstrap { drop_slot: facts.slot.is_some(), epoch })
}

pub(crate) fn same_cluster(facts: &Facts, stored: &Offset) -> bool {
    stored.system_identifier == facts.server.system_identifier
}

/// The stored offset in terms of the server's own history, with a new epoch where the source has
/// lost events that were published.
fn in_this_history(facts: &Facts, stored: &Offset) -> Result<(Offset, Option<Fork>), Refusal> {
    let server = &facts.server;
    if !same_cluster(facts, stored) {
        return Err(Refusal::OtherCluster {
            stored: stored.system_identifier.clone(),
            server: server.system_identifier.clone(),
        });
    }
    if server.timeline < stored.timeline {
        return Err(Refusal::TimelineBehind { stored: stored.timeline, server: server.timeline });
    }
    let mut from = Offset {
        timeline: server.timeline,
        slot: facts.slot_name.clone(),
        at: facts.at,
        ..stored.clone()
    };
    let mut fork = None;
    if server.timeline > stored.timeline {
        let switch = facts.history.iter().find(|switch| switch.timeline == stored.timeline).ok_or(
            Refusal::TimelineUnrelated { stored: stored.timeline, server: server.timeline },
        )?;
        fork = leave_lost_history(&mut from, switch.switch_point)?;
    }
    let point = from.resume_point();
    let highest = point.lsn.max(from.end_lsn);
    if highest > server.flush_lsn {
        return Err(Refusal::AheadOfServer { stored: highest, server: server.flush_lsn });
    }
    Ok((from, fork))
}

/// Steps back to where the server's history left the one that the offset was taken in.
///
/// Everything that committed below that point is in both histories, and everything of it that the
/// offset covers is published: so streaming goes on exactly there. What was published above is
/// lost history; new commits will come to stand at the same LSNs, hence the new epoch.
fn leave_lost_history(from: &mut Offset, switch_point: Lsn) -> Result<Option<Fork>, Refusal> {
    if from.snapshot.is_some() {
        // its rows had committed by the consistent point
        let complete = from.clone().after_snapshot().map_err(|_| Refusal::Progress)?;
        let within = complete.end_lsn <= switch_point;
        return if within { Ok(None) } else { Err(Refusal::SnapshotLost { switch_point }) };
    }
    let point = from.resume_point();
    let commit_within = point.lsn < switch_point;
    if commit_within || (point.published == 0 && point.lsn == switch_point) {
        return Ok(None);
    }
    let last = from.position.filter(|position| position.commit_lsn >= switch_point);
    from.epoch = from.epoch.next().map_err(Refusal::Epochs)?;
    from.end_lsn = from.end_lsn.min(switch_point);
    if last.is_some() {
        (from.position, from.commit_time) = (None, None);
    }
    Ok(Some(Fork { switch_point, last, epoch: from.epoch }))
}

/// Whether the slot is of the kind that a connector reads from, and may drop.
pub(crate) fn fitting(facts: &Facts, slot: &Slot) -> Result<(), Refusal> {
    let unfit = |why: String| Refusal::SlotUnfit { slot: facts.slot_name.clone(), why };
    match slot.plugin.as_deref() {
        Some("pgoutput") => {}
        Some(plugin) => return Err(unfit(format!("it belongs to the output plugin {plugin}"))),
        None => return Err(unfit("it is a physical slot".to_owned())),
    }
    if slot.database.as_deref() != Some(facts.server.database.as_str()) {
        let other = slot.database.as_deref().unwrap_or_default();
        return Err(unfit(format!(
            "it belongs to database {other}, the connector is in {}",
            facts.server.database
        )));
    }
    if slot.temporary {
        return Err(unfit("it is temporary and ends with the session that made it".to_owned()));
    }
    if slot.two_phase {
        return Err(unfit("it has two_phase, which streams what is not committed".to_owned()));
    }
    Ok(())
}

/// The slot's confirmed position, if the connector can stream from the slot now.
pub(crate) fn usable(facts: &Facts, slot: &Slot, stored: Option<Lsn>) -> Result<Lsn, Stop> {
    fitting(facts, slot)?;
    let name = facts.slot_name.clone();
    let lost = |reason: &str| Refusal::SlotLost {
        slot: name.clone(),
        reason: reason.to_owned(),
        stored,
        server: facts.server.flush_lsn,
    };
    if let Some(reason) = &slot.invalidation {
        return Err(lost(reason).into());
    }
    if let Some(pid) = slot.active {
        return Err(Wait::SlotActive { slot: name, pid }.into());
    }
    // a slot that is still being created has none
    slot.confirmed_flush_lsn.ok_or_else(|| Wait::SlotNotReady { slot: name.clone() }.into())
}

#[cfg(test)]
mod tests;
