//! What a drill is, and the list of all of them.

use std::pin::Pin;

use super::course::Course;
use super::{kills, postgres, redis, windows};

/// A drill at work.
pub(super) type Running<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// One fault, or one kind of faults, and what must be true after it.
///
/// A drill is a file with one function and one of these, and an entry in its group's list.
pub(super) struct Drill {
    /// As the command line has it.
    pub(super) name: &'static str,
    /// What is done, in one line.
    pub(super) injects: &'static str,
    /// What must be true after it, in one line.
    pub(super) expects: &'static str,
    /// Why it comes out so, for a learner.
    pub(super) why: &'static str,
    /// Servers that it kills, restarts or configures: these must be throwaway ones.
    pub(super) breaks: &'static [Server],
    /// Injects, and notes what is found in the course.
    pub(super) run: for<'a> fn(&'a mut Course) -> Running<'a>,
}

/// One of the servers that drills run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    Postgres,
    Redis,
}

impl Server {
    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
        }
    }

    /// The flag that gives one.
    pub(super) const fn flag(self) -> &'static str {
        match self {
            Self::Postgres => "--postgres",
            Self::Redis => "--redis",
        }
    }
}

/// Drills of one kind.
pub(super) struct Group {
    /// As the command line has it.
    pub(super) name: &'static str,
    /// What they have in common, in one line.
    pub(super) about: &'static str,
    pub(super) drills: &'static [Drill],
}

/// All drills.
pub(super) const GROUPS: [Group; 4] = [
    Group {
        name: "windows",
        about: "the five windows between two durable steps, one event each",
        drills: windows::DRILLS,
    },
    Group {
        name: "kills",
        about: "processes that die, pause or come back, under load",
        drills: kills::DRILLS,
    },
    Group { name: "postgres", about: "what becomes of the source", drills: postgres::DRILLS },
    Group {
        name: "redis",
        about: "what becomes of the broker, and of the way to it",
        drills: redis::DRILLS,
    },
];

/// Stands for every drill on the command line.
pub(super) const ALL: &str = "all";
/// Lists instead of running.
pub(super) const LIST: &str = "list";

/// Every word that may stand on the command line.
pub(super) fn words() -> Vec<&'static str> {
    let groups = GROUPS.iter().map(|group| group.name);
    [LIST, ALL].into_iter().chain(groups).chain(all().map(|drill| drill.name)).collect()
}

/// Every drill, in the order of the list.
pub(super) fn all() -> impl Iterator<Item = &'static Drill> {
    GROUPS.iter().flat_map(|group| group.drills)
}

/// The drills that these words name, each once, in the order of the list.
pub(super) fn select(words: &[String]) -> Vec<&'static Drill> {
    let named = |name: &str| words.iter().any(|word| word == name);
    let chosen = GROUPS.iter().flat_map(|group| {
        let whole = named(ALL) || named(group.name);
        group.drills.iter().filter(move |drill| whole || named(drill.name))
    });
    chosen.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_word_means_one_thing() {
        let words = words();
        let different: HashSet<_> = words.iter().collect();
        assert_eq!(different.len(), words.len(), "{words:?}");
    }

    #[test]
    fn words_select_drills_and_groups_each_once() {
        let names = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            select(&words).into_iter().map(|drill| drill.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&["windows"]).len(), 5);
        assert_eq!(names(&["commit-unacked"]), ["commit-unacked"]);
        assert_eq!(names(&["commit-unacked", "windows"]), names(&["windows"]));
        assert_eq!(names(&["all"]).len(), all().count());
        assert!(names(&["list"]).is_empty());
    }

    #[test]
    fn every_drill_says_what_it_does_and_why() {
        for drill in all() {
            for text in [drill.injects, drill.expects, drill.why] {
                assert!(text.len() > 20, "{}", drill.name);
            }
            assert!(!drill.injects.ends_with('.') && !drill.expects.ends_with('.'));
            assert!(drill.why.ends_with('.'), "{}", drill.name);
        }
    }
}
