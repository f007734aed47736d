//! What stands in the servers at one moment, counted: the persistent state that a window leaves.

use std::fmt;

/// The counts that the windows are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Events that producers committed.
    pub(super) committed: u64,
    /// How many of them the relay knows to be published: by its marks, or by the stored offset.
    pub(super) known: u64,
    /// Entries in the stream.
    pub(super) entries: u64,
    /// Different event ids in them.
    pub(super) ids: u64,
    /// Entries that were delivered and not acknowledged.
    pub(super) pending: u64,
    /// Events that wait in the consumer's database, because they failed.
    pub(super) parked: u64,
    /// Rows in the inbox.
    pub(super) inbox: u64,
    /// Events that the projection has counted.
    pub(super) effects: u64,
    /// Sum of the amounts in the projection.
    pub(super) turnover: u64,
    /// Conflicts that nobody has resolved.
    pub(super) conflicts: u64,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, known, entries, ids, pending, .. } = self;
        let Self { parked, inbox, effects, turnover, conflicts, .. } = self;
        write!(f, "committed {committed}, known as published {known}, entries {entries}")?;
        write!(f, " (event ids {ids}), pending {pending}, ")?;
        // what is rare is said where it is so
        for (count, what) in [(parked, "parked"), (conflicts, "conflicts")] {
            if *count > 0 {
                write!(f, "{what} {count}, ")?;
            }
        }
        write!(f, "inbox {inbox}, effects {effects}, turnover {turnover}")
    }
}
