//! How far a stream may be trimmed, and who says so: pure.

use outflow_event::EntryId;

/// A group of a stream, as Redis knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: String,
    /// Every entry up to here was delivered and acknowledged.
    pub(super) done: EntryId,
}

/// A stream, as Redis knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) entries: u64,
    /// The first entry; `None`: the stream is empty.
    pub(super) first: Option<EntryId>,
    /// The last id that the stream gave.
    pub(super) last: EntryId,
    pub(super) groups: Vec<Group>,
}

/// A consumer needs this entry and those after it: an open dead letter, an event that is held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) consumer: String,
    pub(super) entry_id: EntryId,
    pub(super) reason: String,
}

/// Entries below `below` may go; what holds those above it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Floor {
    pub(super) below: EntryId,
    pub(super) held_by: String,
}

/// The lowest of all floors: of each group, of each hold, of the entries that are `kept` for their age.
///
/// A stream without groups is not trimmed: whoever will read it has not begun. Nor is one that lacks a
/// group of `expected`.
pub(super) fn floor(
    facts: &Facts,
    holds: &[Hold],
    expected: &[String],
    kept: (EntryId, &str),
) -> Floor {
    let mut floor = Floor { below: kept.0, held_by: kept.1.to_owned() };
    let mut lower = |below: EntryId, held_by: String| {
        if below < floor.below {
            floor = Floor { below, held_by };
        }
    };
    if facts.groups.is_empty() {
        lower(EntryId::ZERO, "no consumer has a group in it".to_owned());
    }
    for name in
        expected.iter().filter(|name| !facts.groups.iter().any(|group| group.name == **name))
    {
        lower(EntryId::ZERO, format!("consumer `{name}` (retention.consumers) has no group in it"));
    }
    for group in &facts.groups {
        lower(
            group.done.after(),
            format!("consumer `{}` has not acknowledged what comes next", group.name),
        );
    }
    // the hold of a consumer whose group was destroyed holds nobody up
    for hold in holds.iter().filter(|hold| facts.groups.iter().any(|g| g.name == hold.consumer)) {
        lower(hold.entry_id, format!("consumer `{}`: {}", hold.consumer, hold.reason));
    }
    floor
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u64) -> EntryId {
        EntryId { major: n, minor: 0 }
    }

    fn facts(groups: &[(&str, u64)]) -> Facts {
        let groups =
            groups.iter().map(|(name, done)| Group { name: (*name).into(), done: id(*done) });
        Facts { entries: 9, first: Some(id(1)), last: id(9), groups: groups.collect() }
    }

    fn hold(consumer: &str, entry: u64) -> Hold {
        Hold {
            consumer: consumer.into(),
            entry_id: id(entry),
            reason: "dead letter 7 is open".into(),
        }
    }

    const AGE: (EntryId, &str) = (EntryId { major: 8, minor: 0 }, "younger than 7days");

    #[test]
    fn c70_the_slowest_consumer_holds_everything_back_that_it_has_not_done() {
        let floor = floor(&facts(&[("fast", 9), ("slow", 3)]), &[], &[], AGE);
        assert_eq!(floor.below, id(3).after());
        assert!(floor.held_by.contains("`slow`"), "{floor:?}");
    }

    #[test]
    fn what_holds_back_is_named() {
        let said = |facts: &Facts, holds: &[Hold], expected: &[String]| {
            let floor = floor(facts, holds, expected, AGE);
            (floor.below, floor.held_by)
        };
        let done = facts(&[("a", 9)]);
        assert_eq!(said(&done, &[], &[]), (id(8), "younger than 7days".to_owned()));
        let (below, held_by) = said(&facts(&[]), &[], &[]);
        assert_eq!((below, held_by.as_str()), (id(0), "no consumer has a group in it"));
        let (below, held_by) = said(&done, &[], &["a".to_owned(), "b".to_owned()]);
        assert!(below == id(0) && held_by.contains("`b`"), "{held_by}");
        let (below, held_by) = said(&done, &[hold("a", 5), hold("gone", 2)], &[]);
        assert_eq!((below, held_by.as_str()), (id(5), "consumer `a`: dead letter 7 is open"));
    }

    proptest! {
        #[test]
        fn no_floor_is_crossed(
            groups in prop::collection::vec(0..20_u64, 0..4),
            holds in prop::collection::vec((0..4_usize, 0..20_u64), 0..4),
            kept in 0..20_u64,
        ) {
            let names: Vec<String> = (0..4).map(|n| n.to_string()).collect();
            let groups: Vec<_> =
                groups.iter().zip(&names).map(|(done, name)| (name.as_str(), *done)).collect();
            let holds: Vec<_> = holds.iter().map(|(who, entry)| hold(&names[*who], *entry)).collect();
            let facts = facts(&groups);
            let floor = floor(&facts, &holds, &[], (id(kept), "age"));
            prop_assert!(floor.below <= id(kept));
            prop_assert!(!groups.is_empty() || floor.below == id(0));
            prop_assert!(facts.groups.iter().all(|group| floor.below <= group.done.after()));
            for hold in holds.iter().filter(|hold| groups.iter().any(|(name, _)| *name == hold.consumer)) {
                prop_assert!(floor.below <= hold.entry_id);
            }
        }
    }
}
