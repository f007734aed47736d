//! All figures of a comparison: a table for people, JSON for scripts, Markdown for the docs.

use std::fmt::{self, Write as _};
use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use jiff::Timestamp;
use serde::Serialize;

use super::plan::Plan;
use super::summary::{BESIDE_THE_FIGURES, sentences};
use super::tally::Tally;
use crate::bench::machine::Machine;

/// What was measured on; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Conditions {
    /// The machine of this program, the producers and the relays.
    pub(super) machine: Machine,
    /// Versions of the servers.
    pub(super) postgres: String,
    pub(super) redis: String,
    /// `throwaway`: of this run, on this machine; `given`: somebody else's.
    pub(super) servers: &'static str,
    pub(super) plan: Plan,
}

/// All of it; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of outflow.
    outflow: &'static str,
    /// When the run ended.
    at: Timestamp,
    #[serde(flatten)]
    conditions: Conditions,
    overrides: Vec<String>,
    #[serde(flatten)]
    pub(super) tally: Tally,
    /// Who wins where and by how much.
    pub(super) summary: Vec<String>,
    /// What no figure shows.
    beside_the_figures: [&'static str; BESIDE_THE_FIGURES.len()],
    /// Scenarios that could not be measured, and why.
    pub(super) failures: Vec<String>,
}

impl Report {
    pub(super) fn new(
        conditions: Conditions,
        overrides: Vec<String>,
        tally: Tally,
        failures: Vec<String>,
    ) -> Self {
        Self {
            outflow: env!("CARGO_PKG_VERSION"),
            at: Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default(),
            conditions,
            overrides,
            summary: sentences(&tally),
            tally,
            beside_the_figures: BESIDE_THE_FIGURES,
            failures,
        }
    }

    /// What was measured, on what.
    pub(super) fn conditions(&self) -> Vec<String> {
        let Conditions { machine, postgres, redis, servers, plan } = &self.conditions;
        let build = if machine.release_build { "" } else { " (not a release build)" };
        let show = |duration| humantime::format_duration(duration).to_string();
        let servers = match *servers {
            "given" => "servers that were given, with settings of their own",
            _ => {
                "PostgreSQL with fsync and autovacuum on, Redis without persistence, all on this machine \
                 over loopback"
            }
        };
        let rounds = match plan.rounds {
            1 => "one round".to_owned(),
            rounds => format!("medians of {rounds} rounds"),
        };
        let quick = if plan.quick { ", quick" } else { "" };
        let mut lines = vec![
            format!(
                "outflow {}{build}, PostgreSQL {postgres}, Redis {redis}, {}",
                self.outflow, self.at
            ),
            format!(
                "{}, {} cores, {} GiB, {}, load before {}",
                machine.cpu, machine.cores, machine.memory_gib, machine.kernel, machine.load_before
            ),
            servers.to_owned(),
            format!(
                "{rounds}; steady load for {}, lease {}{quick}",
                show(plan.duration),
                show(plan.lease)
            ),
            "one table with the columns and indexes of polling for both; other settings at their \
             defaults"
                .to_owned(),
            "CPU time for an event in microseconds, or for a million events in seconds".to_owned(),
        ];
        if !self.overrides.is_empty() {
            lines.push(format!("with {}", self.overrides.join(", ")));
        }
        lines.extend(self.failures.iter().map(|failure| format!("failed: {failure}")));
        lines
    }

    /// Rows of a scenario: the figure, then its median for each competitor.
    pub(super) fn rows(&self, scenario: &str) -> Vec<Vec<String>> {
        let subjects = self.tally.subjects(scenario);
        let names = self.tally.names(scenario);
        let cell = |subject: &str, name: &str| {
            let found = self.tally.find(scenario, subject, name);
            found.map_or_else(|| "-".to_owned(), |found| found.unit.show(found.median))
        };
        names
            .iter()
            .map(|name| {
                let cells = subjects.iter().map(|subject| cell(subject, name));
                std::iter::once((*name).to_owned()).chain(cells).collect()
            })
            .collect()
    }

    /// Heads of the columns of a scenario.
    pub(super) fn header(&self, scenario: &str) -> Vec<String> {
        let subjects = self.tally.subjects(scenario).into_iter().map(ToOwned::to_owned);
        std::iter::once(scenario.to_owned()).chain(subjects).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for scenario in self.tally.scenarios() {
            let mut table = Table::new();
            table.load_preset(UTF8_FULL_CONDENSED);
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_header(self.header(scenario));
            table.add_rows(self.rows(scenario));
            writeln!(f, "{table}\n")?;
        }
        for sentence in self.summary.iter().map(String::as_str).chain(BESIDE_THE_FIGURES) {
            writeln!(f, "- {sentence}")?;
        }
        writeln!(f)?;
        for line in self.conditions() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// Puts the results between the marks of `file`, or makes the file of them.
pub(super) fn write_markdown(report: &Report, file: &Path) -> anyhow::Result<()> {
    crate::markdown::write(file, "outflow compare", "Comparison", &markdown(report))
}

fn markdown(report: &Report) -> String {
    let mut text = String::new();
    for line in report.conditions() {
        let _ = writeln!(text, "{line}  ");
    }
    for scenario in report.tally.scenarios() {
        let header = report.header(scenario);
        let _ = writeln!(text, "\n| {} |", header.join(" | "));
        let _ = writeln!(text, "| --- |{}", " ---: |".repeat(header.len().saturating_sub(1)));
        for row in report.rows(scenario) {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
    text.push('\n');
    for sentence in &report.summary {
        let _ = writeln!(text, "- {sentence}");
    }
    text.push_str("\nWhat polling does better, and what else no figure shows:\n\n");
    for sentence in BESIDE_THE_FIGURES {
        let _ = writeln!(text, "- {sentence}");
    }
    text
}

#[cfg(test)]
impl Report {
    /// A report of these figures.
    pub(super) fn example(tally: Tally) -> Self {
        let conditions = Conditions {
            machine: Machine::read(),
            postgres: "15".to_owned(),
            redis: "7".to_owned(),
            servers: "throwaway",
            plan: Plan::example(),
        };
        Self::new(conditions, Vec::new(), tally, Vec::new())
    }
}
