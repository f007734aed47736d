//! All figures of a run: a table for people, JSON for scripts, Markdown for the docs.

use std::fmt;
use std::fmt::Write as _;
use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use jiff::Timestamp;
use serde::Serialize;

use super::Options;
use super::figure::Figure;
use super::machine::Machine;

const HEADER: [&str; 7] = ["scenario", "case", "figure", "median", "range", "target", "met"];

/// All of it; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of outflow.
    outflow: &'static str,
    /// Versions of the servers.
    postgres: String,
    redis: String,
    /// When the run ended.
    at: Timestamp,
    machine: Machine,
    options: Options,
    pub(super) figures: Vec<Figure>,
    /// Scenarios that could not be measured, and why.
    pub(super) failures: Vec<String>,
}

impl Report {
    pub(super) fn new(
        machine: Machine,
        (postgres, redis): (String, String),
        options: Options,
        figures: Vec<Figure>,
        failures: Vec<String>,
    ) -> Self {
        let outflow = env!("CARGO_PKG_VERSION");
        // tenths of a second say nothing about an hour's work
        let at = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        Self { outflow, postgres, redis, at, machine, options, figures, failures }
    }

    /// What was measured, on what.
    fn conditions(&self) -> String {
        let Self { machine, options, .. } = self;
        let mut text = format!(
            "outflow {}{}, PostgreSQL {}, Redis {}, {}\n{}, {} cores, {} GiB, {}, load before {}\n",
            self.outflow,
            if machine.release_build { "" } else { " (not a release build)" },
            self.postgres,
            self.redis,
            self.at,
            machine.cpu,
            machine.cores,
            machine.memory_gib,
            machine.kernel,
            machine.load_before,
        );
        let _ = write!(
            text,
            "events a backlog: {}, rounds: {}{}",
            options.events,
            options.rounds,
            if options.quick { ", quick" } else { "" }
        );
        if !options.overrides.is_empty() {
            let _ = write!(text, ", with {}", options.overrides.join(", "));
        }
        text
    }

    fn verdict(&self) -> String {
        let judged = self.figures.iter().filter(|figure| figure.met.is_some()).count();
        let missed = self.figures.iter().filter(|figure| figure.is_missed()).count();
        let mut text = format!("{} of {judged} targets met", judged - missed);
        for failure in &self.failures {
            let _ = write!(text, "\nfailed: {failure}");
        }
        text
    }
}

fn cells(figure: &Figure) -> [String; 7] {
    let met = match figure.met {
        None => "",
        Some(true) => "yes",
        Some(false) => "NO",
    };
    [
        figure.scenario.to_owned(),
        figure.case.clone(),
        figure.name.to_owned(),
        figure.unit.show(figure.median),
        figure.show_range(),
        figure.show_target(),
        met.to_owned(),
    ]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(HEADER);
        let mut above = None;
        for figure in &self.figures {
            let mut cells = cells(figure);
            let place = (figure.scenario, figure.case.as_str());
            if above.replace(place) == Some(place) {
                // said in the row above
                for cell in cells.iter_mut().take(2) {
                    cell.clear();
                }
            }
            table.add_row(cells);
        }
        for column in 3..6 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(f, "{table}\n{}\n{}", self.conditions(), self.verdict())
    }
}

/// Puts the results between the marks of `file`, or makes the file of them.
pub(super) fn write_markdown(report: &Report, file: &Path) -> anyhow::Result<()> {
    crate::markdown::write(file, "outflow bench", "Benchmarks", &markdown(report))
}

fn markdown(report: &Report) -> String {
    let mut text = String::new();
    for line in report.conditions().lines() {
        let _ = writeln!(text, "{line}  ");
    }
    let _ = writeln!(text, "{}.\n", report.verdict());
    let _ = writeln!(text, "| {} |", HEADER.join(" | "));
    let _ = writeln!(text, "| --- | --- | --- | ---: | ---: | ---: | --- |");
    for figure in &report.figures {
        let _ = writeln!(text, "| {} |", cells(figure).join(" | "));
    }
    text
}
