//! What was measured, by scenario, figure and competitor.

use serde::Serialize;

use crate::bench::figure::{Unit, spread};

/// One figure of one competitor; the field names are stable.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Found {
    pub(super) scenario: String,
    pub(super) subject: String,
    pub(super) figure: &'static str,
    pub(super) unit: Unit,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The value of each round.
    pub(super) rounds: Vec<f64>,
}

/// A line of a chart.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Series {
    pub(super) scenario: String,
    pub(super) subject: String,
    /// What it shows: `latency by percentile`, `lag over time`.
    pub(super) chart: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// Figures and lines in the order in which they were found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tally {
    pub(super) figures: Vec<Found>,
    pub(super) series: Vec<Series>,
}

impl Tally {
    /// Adds the value of a round.
    pub(super) fn add(
        &mut self,
        scenario: &str,
        subject: &str,
        (figure, unit, value): (&'static str, Unit, f64),
    ) {
        let known = self.figures.iter_mut().find(|found| {
            found.scenario == scenario && found.subject == subject && found.figure == figure
        });
        if let Some(found) = known {
            found.rounds.push(value);
            (found.median, found.min, found.max) = spread(&found.rounds);
            return;
        }
        self.figures.push(Found {
            scenario: scenario.to_owned(),
            subject: subject.to_owned(),
            figure,
            unit,
            median: value,
            min: value,
            max: value,
            rounds: vec![value],
        });
    }

    /// Adds a line; of several rounds the last one stays.
    pub(super) fn line(
        &mut self,
        scenario: &str,
        subject: &str,
        chart: &'static str,
        points: Vec<(f64, f64)>,
    ) {
        self.series.retain(|line| {
            line.scenario != scenario || line.subject != subject || line.chart != chart
        });
        let (scenario, subject) = (scenario.to_owned(), subject.to_owned());
        self.series.push(Series { scenario, subject, chart, points });
    }

    /// The lines of a chart.
    pub(super) fn lines(&self, scenario: &str, chart: &str) -> Vec<&Series> {
        let own = self.series.iter();
        own.filter(|line| line.scenario == scenario && line.chart == chart).collect()
    }

    /// Adds several.
    pub(super) fn add_all(
        &mut self,
        scenario: &str,
        subject: &str,
        values: impl IntoIterator<Item = (&'static str, Unit, f64)>,
    ) {
        for value in values {
            self.add(scenario, subject, value);
        }
    }

    /// Scenarios in the order in which they were measured.
    pub(super) fn scenarios(&self) -> Vec<&str> {
        distinct(self.figures.iter().map(|found| found.scenario.as_str()))
    }

    /// Competitors of a scenario.
    pub(super) fn subjects(&self, scenario: &str) -> Vec<&str> {
        let own = self.figures.iter().filter(|found| found.scenario == scenario);
        distinct(own.map(|found| found.subject.as_str()))
    }

    /// Figures of a scenario.
    pub(super) fn names(&self, scenario: &str) -> Vec<&'static str> {
        let own = self.figures.iter().filter(|found| found.scenario == scenario);
        distinct(own.map(|found| found.figure))
    }

    pub(super) fn find(&self, scenario: &str, subject: &str, figure: &str) -> Option<&Found> {
        self.figures.iter().find(|found| {
            found.scenario == scenario && found.subject == subject && found.figure == figure
        })
    }
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_one_figure_are_gathered() {
        let mut tally = Tally::default();
        for value in [3.0, 1.0, 2.0] {
            tally.add("idle", "connector", ("x", Unit::Count, value));
        }
        tally.add("idle", "polling", ("x", Unit::Count, 9.0));
        assert_eq!(tally.find("idle", "connector", "x").unwrap().median, 2.0);
        assert_eq!(tally.subjects("idle"), ["connector", "polling"]);
        assert_eq!(tally.names("idle"), ["x"]);
        for round in [1.0, 2.0] {
            tally.line("idle", "connector", "lag over time", vec![(0.0, round)]);
        }
        let lines = tally.lines("idle", "lag over time");
        assert_eq!((lines.len(), lines[0].points[0]), (1, (0.0, 2.0)));
    }
}
