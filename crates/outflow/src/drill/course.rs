//! The course of one drill: what it was told, what it did, what it found.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::given::Given;
use super::progress::Progress;
use crate::oracle::verdict::{Fault, Verdict};

/// Something that was looked at, and what was expected.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    /// When, or what.
    pub(super) at: String,
    pub(super) expected: String,
    pub(super) found: String,
    pub(super) ok: bool,
}

/// What a drill has found so far.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Looked at, in order.
    pub(super) checks: Vec<Check>,
    /// What was done, in order.
    pub(super) injected: Vec<String>,
    /// From the end of a fault until all that was committed by then was applied.
    pub(super) recoveries: Vec<Duration>,
    /// Committed events.
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) reordered: u64,
    /// What the oracle found that it should not have, in its words.
    pub(super) faults: Vec<String>,
    /// Why it was not run here.
    pub(super) skipped: Option<String>,
}

/// One run of one drill.
pub(super) struct Course {
    /// Everything random comes from it.
    pub(super) seed: u64,
    pub(super) rng: StdRng,
    /// How often a drill of random moments injects.
    pub(super) times: u32,
    /// Servers that scenes are to be set on.
    pub(super) given: Given,
    progress: Progress,
    tolerated: Vec<Fault>,
    pub(super) outcome: Outcome,
}

impl Course {
    pub(super) fn new(seed: u64, times: u32, given: Given, progress: Progress) -> Self {
        let (rng, outcome) = (StdRng::seed_from_u64(seed), Outcome::default());
        Self { seed, rng, times, given, progress, tolerated: Vec::new(), outcome }
    }

    /// Says what is being done.
    pub(super) fn say(&self, what: &str) {
        self.progress.say(what);
    }

    /// Notes a fault that was injected.
    pub(super) fn injected(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.progress.say(&what);
        self.outcome.injected.push(what);
    }

    /// Notes that this drill cannot be run here, and why.
    pub(super) fn skip(&mut self, why: String) {
        self.progress.say(&why);
        self.outcome.skipped = Some(why);
    }

    /// Notes how long it took to recover.
    pub(super) fn recovered(&mut self, took: Duration) {
        self.outcome.recoveries.push(took);
    }

    /// Notes what was found where something was expected.
    pub(super) fn check(
        &mut self,
        at: impl Into<String>,
        expected: &impl ToString,
        found: &impl ToString,
    ) {
        let (expected, found) = (expected.to_string(), found.to_string());
        let ok = expected == found;
        self.note(at, expected, found, ok);
    }

    /// Notes something that is right or wrong by itself.
    pub(super) fn holds(
        &mut self,
        at: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
        ok: bool,
    ) {
        self.note(at, expected.into(), found.into(), ok);
    }

    fn note(&mut self, at: impl Into<String>, expected: String, found: String, ok: bool) {
        let at = at.into();
        let mark = if ok { "ok" } else { "WRONG" };
        self.progress.say(&format!("{at}: {found}  {mark}"));
        self.outcome.checks.push(Check { at, expected, found, ok });
    }

    /// From here on faults of this kind are shown and are none: nobody promises otherwise in what this
    /// drill does, and says so in what it expects.
    pub(super) fn tolerate(&mut self, fault: Fault) {
        self.tolerated.push(fault);
    }

    /// Takes in what the oracle found. Exactly the `expected` faults are none: they are what the
    /// drill is about, and a drill that expects them fails when they are missing.
    pub(super) fn judge(&mut self, mut verdict: Verdict, expected: &[(Fault, u64)]) {
        for fault in self.tolerated.clone() {
            if let Some(found) = verdict.faults.remove(&fault) {
                let at = format!("the oracle on \"{}\"", fault.name());
                self.note(at, "not promised here".to_owned(), found.count.to_string(), true);
            }
        }
        for (fault, count) in expected {
            let found = verdict.faults.remove(fault).map_or(0, |found| found.count);
            self.check(format!("the oracle on \"{}\"", fault.name()), count, &found);
        }
        let outcome = &mut self.outcome;
        outcome.events += verdict.committed;
        outcome.lost += verdict.lost();
        outcome.doubled += verdict.doubled();
        outcome.reordered += verdict.count(&[Fault::Reordered]);
        if !verdict.faults.is_empty() {
            outcome.faults.push(verdict.to_string());
        }
    }
}

impl Outcome {
    /// Whether all was as expected.
    pub(super) fn passed(&self) -> bool {
        self.faults.is_empty() && self.checks.iter().all(|check| check.ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course() -> Course {
        Course::new(1, 1, Given::default(), Progress::silent())
    }

    fn verdict(faults: &[(Fault, u64)]) -> Verdict {
        let mut verdict = Verdict::new().unwrap();
        for (fault, count) in faults {
            (0..*count).for_each(|number| verdict.note(*fault, || number.to_string()));
        }
        verdict
    }

    #[test]
    fn what_is_found_and_not_expected_fails_a_drill_and_so_does_what_is_missing() {
        let mut sound = course();
        sound.judge(verdict(&[]), &[]);
        sound.check("after", &1, &1);
        assert!(sound.outcome.passed());

        let mut lost = course();
        lost.judge(verdict(&[(Fault::Lost, 2), (Fault::Doubled, 1), (Fault::Reordered, 3)]), &[]);
        let outcome = &lost.outcome;
        assert_eq!((outcome.lost, outcome.doubled, outcome.reordered), (2, 1, 3));
        assert!(!outcome.passed());

        let mut conflict = course();
        conflict.judge(verdict(&[(Fault::Conflict, 1)]), &[(Fault::Conflict, 1)]);
        assert!(conflict.outcome.passed());
        let mut swallowed = course();
        swallowed.judge(verdict(&[]), &[(Fault::Conflict, 1)]);
        assert!(!swallowed.outcome.passed());
        let mut tolerant = course();
        tolerant.tolerate(Fault::Reordered);
        tolerant.judge(verdict(&[(Fault::Reordered, 3)]), &[]);
        assert!(tolerant.outcome.passed());
        tolerant.judge(verdict(&[(Fault::Lost, 1)]), &[]);
        assert!(!tolerant.outcome.passed());
        let mut wrong = course();
        wrong.check("after", &1, &2);
        assert!(!wrong.outcome.passed());
    }
}
