//! Where in a stream a moment lies.

use crate::position::EntryId;

/// A search by halves for the last entry that is older than some moment. Commit times rise with entry
/// ids, so a stream of millions of entries is searched by reading a few dozen of them.
///
/// The one who reads the stream asks [`AgeSearch::next`] where to look, and tells what stands there.
///
/// ```
/// # use outflow_event::{AgeSearch, EntryId};
/// let id = |major| EntryId { major, minor: 0 };
/// let stream = [10, 20, 30, 40]; // each entry's id is its age
/// let mut search = AgeSearch::new(id(10), id(40));
/// while let Some((above, up_to)) = search.next() {
///     match stream.iter().find(|entry| id(**entry) > above && id(**entry) <= up_to) {
///         Some(entry) if *entry < 25 => search.older(id(*entry)),
///         _ => search.newer(),
///     }
/// }
/// assert_eq!(search.found(), id(20));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct AgeSearch {
    /// Every entry up to here is older.
    older: EntryId,
    /// Every entry above this is not.
    newer: EntryId,
    middle: EntryId,
}

impl AgeSearch {
    /// A search among the entries from `first` to `last`.
    #[must_use]
    pub fn new(first: EntryId, last: EntryId) -> Self {
        let older = first.before();
        Self { older, newer: last.max(older), middle: halfway(older, last.max(older)) }
    }

    /// Look for the first entry above the first id, up to the second one, that tells its age; `None`
    /// when the search is over.
    #[must_use]
    pub fn next(&self) -> Option<(EntryId, EntryId)> {
        (self.older < self.newer).then_some((self.middle, self.newer))
    }

    /// The entry `id` stands there, and is older.
    pub fn older(&mut self, id: EntryId) {
        self.older = id.clamp(self.older, self.newer);
        self.middle = halfway(self.older, self.newer);
    }

    /// The entry that stands there is not older; or there is none, and what does not tell its age
    /// counts as not older.
    pub fn newer(&mut self) {
        self.newer = self.middle;
        self.middle = halfway(self.older, self.newer);
    }

    /// The highest id up to which every entry is older: just below the first entry if none is.
    #[must_use]
    pub fn found(&self) -> EntryId {
        self.older
    }
}

/// The id halfway between two, rounded down: `low` itself where they are neighbours.
fn halfway(low: EntryId, high: EntryId) -> EntryId {
    let number = |id: EntryId| u128::from(id.major) << 64 | u128::from(id.minor);
    let middle = number(low) + (number(high) - number(low)) / 2;
    let part = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or(u64::MAX);
    EntryId { major: part(middle >> 64), minor: part(middle) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any stream, some of whose entries tell no age: the cut lies where the first entry that is not
        /// older, or the untold ones right before it, begin.
        #[test]
        fn the_cut_is_found_in_few_steps(
            ids in prop::collection::btree_set((any::<u64>(), any::<u64>()), 1..40),
            untold in prop::collection::vec(any::<bool>(), 40),
            cut in 0..41_usize,
        ) {
            let ids: Vec<_> = ids.into_iter().map(|(major, minor)| EntryId { major, minor }).collect();
            let tells = |n: usize| !untold[n];
            let (first, last) = (ids[0], ids[ids.len() - 1]);
            let mut search = AgeSearch::new(first, last);
            let mut steps = 0;
            while let Some((above, up_to)) = search.next() {
                let there = (0..ids.len()).find(|n| ids[*n] > above && ids[*n] <= up_to && tells(*n));
                match there {
                    Some(n) if n < cut => search.older(ids[n]),
                    _ => search.newer(),
                }
                steps += 1;
                prop_assert!(steps <= 130);
            }
            let last_old = (0..ids.len()).rfind(|n| *n < cut && tells(*n));
            prop_assert_eq!(search.found(), last_old.map_or(first.before(), |n| ids[n]));
        }
    }
}
