//! One figure: the rounds that it was taken in, their median and range, and the target.

use serde::Serialize;

/// What a figure counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    /// One rate over another.
    #[serde(rename = "ratio")]
    Ratio,
    /// Events a second.
    #[serde(rename = "events/s")]
    Rate,
    /// Microseconds of CPU time an event.
    #[serde(rename = "us/event")]
    Cpu,
    /// Mebibytes.
    #[serde(rename = "MiB")]
    Memory,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Time,
    /// Bytes an event.
    #[serde(rename = "B/event")]
    Bytes,
    /// Bytes a second.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// A number of things.
    #[serde(rename = "count")]
    Count,
    /// Things a second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Milliseconds of CPU time a second.
    #[serde(rename = "ms/s")]
    Load,
}

impl Unit {
    /// A value with its unit.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Rate => format!("{}/s", thousands(value)),
            Self::Cpu => format!("{value:.1} us"),
            Self::Memory => format!("{value:.1} MiB"),
            Self::Time => format!("{value:.2} ms"),
            Self::Bytes => format!("{value:.0} B"),
            Self::BytesPerSecond => format!("{value:.0} B/s"),
            Self::Count => thousands(value),
            Self::PerSecond => format!("{value:.1}/s"),
            Self::Load => format!("{value:.1} ms/s"),
        }
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// A measured value; the field names are stable.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    pub(super) scenario: &'static str,
    /// Under which conditions.
    pub(super) case: String,
    /// What was measured.
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The value of each round.
    pub(super) rounds: Vec<f64>,
    pub(super) target: Option<Target>,
    /// Whether the median (of memory: the maximum) meets the target; none without one.
    pub(super) met: Option<bool>,
}

impl Figure {
    /// A figure of these rounds, of which there must be one at least.
    pub(super) fn new(
        scenario: &'static str,
        case: impl Into<String>,
        name: &'static str,
        unit: Unit,
        rounds: Vec<f64>,
    ) -> Self {
        let (median, min, max) = spread(&rounds);
        let case = case.into();
        Self { scenario, case, name, unit, median, min, max, rounds, target: None, met: None }
    }

    /// The same figure with a target, if there is one. Memory must not pass it in any round.
    pub(super) fn target(mut self, target: Option<Target>) -> Self {
        let judged = if self.unit == Unit::Memory { self.max } else { self.median };
        self.target = target;
        self.met = target.map(|target| match target {
            Target::AtLeast(least) => judged >= least,
            Target::AtMost(most) => judged <= most,
        });
        self
    }

    pub(super) fn is_missed(&self) -> bool {
        self.met == Some(false)
    }

    /// `>= 1.10`, or nothing.
    pub(super) fn show_target(&self) -> String {
        match self.target {
            None => String::new(),
            Some(Target::AtLeast(least)) => format!(">= {}", self.unit.show(least)),
            Some(Target::AtMost(most)) => format!("<= {}", self.unit.show(most)),
        }
    }

    /// The range over the rounds, or nothing where there was one round.
    pub(super) fn show_range(&self) -> String {
        if self.rounds.len() < 2 {
            return String::new();
        }
        format!("{} - {}", self.unit.show(self.min), self.unit.show(self.max))
    }
}

/// Median, least and greatest; of an even number of values the mean of the middle two.
pub(super) fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let last = sorted.len().saturating_sub(1);
    ((at(last / 2) + at(last.div_ceil(2))) / 2.0, at(0), at(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread(&[4.0, 1.0]), (2.5, 1.0, 4.0));
        assert_eq!(spread(&[7.0]), (7.0, 7.0, 7.0));
    }

    #[test]
    fn a_target_is_met_by_the_median() {
        let figure = |target| {
            Figure::new("drain", "x", "ratio", Unit::Ratio, vec![0.9, 1.2, 1.3]).target(target)
        };
        assert_eq!(figure(Some(Target::AtLeast(1.2))).met, Some(true));
        assert!(figure(Some(Target::AtMost(1.1))).is_missed());
        assert!(!figure(None).is_missed());
        assert_eq!(figure(Some(Target::AtLeast(1.1))).show_target(), ">= 1.10");
        assert_eq!(figure(None).show_range(), "0.90 - 1.30");
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(Unit::Rate.show(1_234_567.4), "1,234,567/s");
        assert_eq!(Unit::Rate.show(999.0), "999/s");
        assert_eq!(Unit::Rate.show(1000.0), "1,000/s");
    }
}
