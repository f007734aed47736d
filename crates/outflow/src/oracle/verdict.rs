//! What the oracle counted and what it found at fault.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

/// Latencies above it, an hour, count as it.
const LONGEST: u64 = 3_600_000_000;
/// How many offenders of a kind are named; all are counted.
const NAMED: usize = 5;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    /// A producer was told that its transaction committed, and the database does not know it.
    Forgotten,
    /// A committed event that stands in no stream.
    Lost,
    /// A committed event that has no inbox row.
    NotApplied,
    /// An event that was delivered or applied again.
    Doubled,
    /// A position that two entries have.
    PositionTwice,
    /// An entry that stands behind a later one of its aggregate, or in another stream than those.
    Reordered,
    /// An entry or inbox row that does not say what was committed.
    Altered,
    /// An event in a stream, in the inbox or in the database that was never committed.
    Leaked,
    /// A known event id that came with another payload.
    Conflict,
    /// An event or entry that was set aside.
    DeadLetter,
    /// A row of the projection that does not say what the producer's tables say.
    Projection,
}

impl Fault {
    /// For people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forgotten => "forgotten by the producer's database",
            Self::Lost => "lost: in no stream",
            Self::NotApplied => "lost: not in the inbox",
            Self::Doubled => "doubled",
            Self::PositionTwice => "doubled: same position",
            Self::Reordered => "reordered",
            Self::Altered => "altered",
            Self::Leaked => "leaked, never committed",
            Self::Conflict => "conflict",
            Self::DeadLetter => "dead letter",
            Self::Projection => "projection differs",
        }
    }
}

/// The offenders of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// All of them.
    pub(crate) count: u64,
    /// The first ones.
    pub(crate) first: Vec<String>,
}

/// The result of a check.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    /// Events that the producers committed.
    pub(crate) committed: u64,
    /// Entries in the streams.
    pub(crate) entries: u64,
    /// How many of them repeat an earlier one, where that is allowed.
    pub(crate) repeated: u64,
    /// Rows in the inbox.
    pub(crate) inbox: u64,
    /// Events that the projection says it has seen.
    pub(crate) projected: u64,
    /// Everything that is wrong.
    pub(crate) faults: BTreeMap<Fault, Found>,
    /// Microseconds from the producer's commit to the consumer's, as far as both are known.
    pub(crate) latency: Histogram<u64>,
}

impl Verdict {
    /// Nothing counted, nothing found.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            committed: 0,
            entries: 0,
            repeated: 0,
            inbox: 0,
            projected: 0,
            faults: BTreeMap::new(),
            latency: Histogram::new_with_bounds(1, LONGEST, 3)?,
        })
    }

    /// Notes one offender.
    pub(crate) fn note(&mut self, fault: Fault, offender: impl FnOnce() -> String) {
        let found = self.faults.entry(fault).or_default();
        found.count += 1;
        if found.first.len() < NAMED {
            found.first.push(offender());
        }
    }

    /// How many offenders of these kinds there are.
    pub(crate) fn count(&self, faults: &[Fault]) -> u64 {
        faults.iter().filter_map(|fault| self.faults.get(fault)).map(|found| found.count).sum()
    }

    /// Committed events without an effect.
    pub(crate) fn lost(&self) -> u64 {
        self.count(&[Fault::Lost, Fault::NotApplied])
    }

    /// Second deliveries and second effects.
    pub(crate) fn doubled(&self) -> u64 {
        self.count(&[Fault::Doubled, Fault::PositionTwice])
    }

    /// Whether every count is that of the committed events.
    pub(crate) fn all_equal(&self) -> bool {
        [self.entries - self.repeated, self.inbox, self.projected] == [self.committed; 3]
    }

    /// Whether all is as it must be.
    pub(crate) fn holds(&self) -> bool {
        self.faults.is_empty() && self.all_equal()
    }
}

impl fmt::Display for Verdict {
    /// The faults, one kind a line, each with its first offenders below it; empty without faults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, found) in &self.faults {
            writeln!(f, "{}: {}", fault.name(), found.count)?;
            for offender in &found.first {
                writeln!(f, "  {offender}")?;
            }
            let unnamed = found.count.saturating_sub(found.first.len() as u64);
            if unnamed > 0 {
                writeln!(f, "  and {unnamed} more")?;
            }
        }
        Ok(())
    }
}
