//! Processes that die, pause or come back, while producers commit.

mod dead_letter;
mod gaps;
mod random;
mod snapshot;
mod standby;
mod zombies;

use super::list::Drill;

/// Gaps first, then moments that nobody chose, then processes that are not as dead as they seem.
pub(super) const DRILLS: &[Drill] = &[
    gaps::CONNECTOR,
    gaps::CONNECTOR_APART,
    gaps::CONNECTOR_AUTO,
    gaps::POLLING,
    gaps::CONSUMER,
    snapshot::DRILL,
    dead_letter::DRILL,
    random::CONNECTOR,
    random::POLLING,
    zombies::CONNECTOR,
    zombies::POLLING,
    zombies::WORKER,
    standby::DRILL,
];
