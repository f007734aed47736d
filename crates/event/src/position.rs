//! Where an event stands in the history of its source.
//!
//! PostgreSQL gives a row no number of its own: row LSNs repeat (COPY writes many rows at one LSN)
//! and run backwards (an early row may commit late). The one total order is the order of commits.
//! A [`Position`] is therefore the LSN of the transaction's commit record and the event's index in
//! that transaction; an [`EntryId`] is the position made into a Redis Streams id, which Redis
//! itself refuses to accept twice or out of order.

use std::fmt;
use std::str::FromStr;

/// A PostgreSQL log sequence number (PostgreSQL documentation, section "`pg_lsn` Type").
pub type Lsn = postgres_types::PgLsn;

/// The commit LSN occupies the low 56 bits of an entry id's first half: 64 PiB of WAL.
const LSN_BITS: u32 = 56;
const LSN_MASK: u64 = (1 << LSN_BITS) - 1;

/// The `index`-th event (from 0) of the transaction whose commit record stands at `commit_lsn`.
///
/// Ordered by commit, then by insertion: exactly the order in which a stream holds the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// LSN of the commit record (`Begin.final_lsn`, `Commit.commit_lsn`); never a row's LSN.
    pub commit_lsn: Lsn,
    /// Which event of the transaction, counted from 0 over published events.
    pub index: u64,
}

impl Position {
    /// The `index`-th event of the transaction that committed at `commit_lsn`.
    #[must_use]
    pub const fn new(commit_lsn: Lsn, index: u64) -> Self {
        Self { commit_lsn, index }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit_lsn, self.index)
    }
}

impl FromStr for Position {
    type Err = PositionError;

    /// Reads the form that `Display` writes: `0/16B3748:3`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || PositionError::Position(text.to_owned());
        let (lsn, index) = text.split_once(':').ok_or_else(invalid)?;
        Ok(Self {
            commit_lsn: lsn.parse().map_err(|_| invalid())?,
            index: index.parse().map_err(|_| invalid())?,
        })
    }
}

/// Counts the histories that a stream has seen (0-255): it rises when LSNs may restart or fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u8);

impl Epoch {
    /// The next epoch.
    ///
    /// # Errors
    /// [`PositionError::EpochsExhausted`] after epoch 255: publish to new streams instead.
    pub const fn next(self) -> Result<Self, PositionError> {
        match self.0.checked_add(1) {
            Some(next) => Ok(Self(next)),
            None => Err(PositionError::EpochsExhausted),
        }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A Redis Streams entry id, `<major>-<minor>` (Redis documentation, "Redis Streams", "Entry IDs").
///
/// Ids made from positions keep the epoch in the top byte of `major`, the commit LSN below it, and
/// the index in `minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// Redis calls it milliseconds; here `epoch << 56 | commit_lsn`.
    pub major: u64,
    /// Redis calls it the sequence number; here the event's index in its transaction.
    pub minor: u64,
}

impl EntryId {
    /// Below every entry: the id from which a group reads a stream from its beginning.
    pub const ZERO: Self = Self { major: 0, minor: 0 };

    /// The id of the event at `position` in `epoch`.
    ///
    /// # Errors
    /// [`PositionError::LsnTooLarge`] when the LSN needs more than 56 bits. No server that started
    /// at LSN 0 gets there; one that was reset to such an LSN must use `entry_id = "auto"`.
    pub fn at(epoch: Epoch, position: Position) -> Result<Self, PositionError> {
        let lsn = u64::from(position.commit_lsn);
        if lsn > LSN_MASK {
            return Err(PositionError::LsnTooLarge(position.commit_lsn));
        }
        Ok(Self { major: u64::from(epoch.0) << LSN_BITS | lsn, minor: position.index })
    }

    /// The highest id below this one; zero has none and stays.
    #[must_use]
    pub const fn before(self) -> Self {
        match (self.minor.checked_sub(1), self.major.checked_sub(1)) {
            (Some(minor), _) => Self { major: self.major, minor },
            (None, Some(major)) => Self { major, minor: u64::MAX },
            (None, None) => Self::ZERO,
        }
    }

    /// The lowest id above this one; the last one has none and stays.
    #[must_use]
    pub const fn after(self) -> Self {
        match (self.minor.checked_add(1), self.major.checked_add(1)) {
            (Some(minor), _) => Self { major: self.major, minor },
            (None, Some(major)) => Self { major, minor: 0 },
            (None, None) => self,
        }
    }

    /// The epoch and position that this id was made of.
    ///
    /// Only meaningful for ids that [`EntryId::at`] made; an id that Redis made from its clock
    /// decodes to some position too.
    #[must_use]
    pub fn to_position(self) -> (Epoch, Position) {
        let [epoch, ..] = self.major.to_be_bytes();
        (Epoch(epoch), Position::new(Lsn::from(self.major & LSN_MASK), self.minor))
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.major, self.minor)
    }
}

impl FromStr for EntryId {
    type Err = PositionError;

    /// Reads Redis's own form, `1526919030474-55`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || PositionError::EntryId(text.to_owned());
        let (major, minor) = text.split_once('-').ok_or_else(invalid)?;
        Ok(Self {
            major: major.parse().map_err(|_| invalid())?,
            minor: minor.parse().map_err(|_| invalid())?,
        })
    }
}

/// What cannot be a position or an entry id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PositionError {
    /// Not of the form `LSN:index`.
    #[error("`{0}` is not a position: expected <commit LSN>:<index>, for example 0/16B3748:3")]
    Position(String),
    /// Not of the form `major-minor`.
    #[error("`{0}` is not an entry id: expected <number>-<number>, for example 1526919030474-55")]
    EntryId(String),
    /// The LSN does not leave room for the epoch.
    #[error(
        "LSN {0} needs more than 56 bits and leaves no room for the epoch in an entry id: \
         set entry_id = \"auto\""
    )]
    LsnTooLarge(Lsn),
    /// 255 was the last epoch.
    #[error("epoch 255 is the last one: publish to new streams (another stream_prefix)")]
    EpochsExhausted,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_id_shows_epoch_lsn_and_index() {
        let lsn: Lsn = "0/16B3748".parse().unwrap();
        let id = EntryId::at(Epoch(2), Position::new(lsn, 3)).unwrap();
        assert_eq!(id.major, 0x0200_0000_016B_3748);
        assert_eq!(id.to_string(), "144115188099659592-3");
        assert_eq!("144115188099659592-3".parse(), Ok(id));
    }

    #[test]
    fn the_largest_lsn_and_epoch_fit_and_the_next_does_not() {
        let largest = Lsn::from((1 << 56) - 1);
        let id = EntryId::at(Epoch(255), Position::new(largest, u64::MAX)).unwrap();
        assert_eq!(id, EntryId { major: u64::MAX, minor: u64::MAX });
        let beyond = Lsn::from(1 << 56);
        assert_eq!(
            EntryId::at(Epoch(0), Position::new(beyond, 0)),
            Err(PositionError::LsnTooLarge(beyond))
        );
        assert_eq!(Epoch(255).next(), Err(PositionError::EpochsExhausted));
        assert_eq!(Epoch(0).next(), Ok(Epoch(1)));
    }

    #[test]
    fn every_id_but_the_first_and_the_last_has_neighbours() {
        let id = |major, minor| EntryId { major, minor };
        let last = id(u64::MAX, u64::MAX);
        for (low, high) in [(id(7, 2), id(7, 3)), (id(6, u64::MAX), id(7, 0))] {
            assert_eq!((low.after(), high.before()), (high, low));
        }
        assert_eq!((EntryId::ZERO.before(), last.after()), (EntryId::ZERO, last));
    }

    #[test]
    fn text_that_is_no_position_is_named() {
        for text in ["", "0/16B3748", "16B3748:1", "0/16B3748:", "0/16B3748:-1", "0/1:1:1"] {
            assert_eq!(text.parse::<Position>(), Err(PositionError::Position(text.to_owned())));
        }
        for text in ["", "1", "1-", "-1", "1-1-1", "a-b"] {
            assert_eq!(text.parse::<EntryId>(), Err(PositionError::EntryId(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn ids_sort_as_positions_do(
            a in (0..4u8, 0..1u64 << 56, any::<u64>()),
            b in (0..4u8, 0..1u64 << 56, any::<u64>()),
        ) {
            let at = |(epoch, lsn, index): (u8, u64, u64)| {
                EntryId::at(Epoch(epoch), Position::new(Lsn::from(lsn), index)).unwrap()
            };
            prop_assert_eq!(at(a).cmp(&at(b)), a.cmp(&b));
            let (epoch, position) = at(a).to_position();
            prop_assert_eq!((epoch.0, u64::from(position.commit_lsn), position.index), a);
            prop_assert_eq!(position.to_string().parse::<Position>(), Ok(position));
        }
    }
}
