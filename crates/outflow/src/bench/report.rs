//! All figures of a run: a table for people, JSON for scripts, Markdown for the docs.

use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use jiff::Timestamp;
use serde::Serialize;

use super::Options;
use super::figure::Figure;
use super::machine::Machine;

/// In a Markdown file the results stand between these.
const BEGIN: &str = "<!-- results: written by outflow bench --markdown -->";
const END: &str = "<!-- end of results -->";

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
    let name = || file.display().to_string();
    let old =
        if file.exists() { fs::read_to_string(file).with_context(name)? } else { String::new() };
    fs::write(file, place(&old, &markdown(report), BEGIN, "Benchmarks")).with_context(name)
}

/// `old` with `results` in place of what stands between `begin` and [`END`].
pub(super) fn place(old: &str, results: &str, begin: &str, title: &str) -> String {
    let results = format!("{begin}\n{results}{END}");
    let around =
        old.split_once(begin).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    match around {
        Some((head, tail)) => format!("{head}{results}{tail}"),
        None if old.is_empty() => format!("# {title}\n\n{results}\n"),
        None => format!("{}\n\n{results}\n", old.trim_end()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_replace_results_and_nothing_else() {
        let place = |old: &str, results: &str| place(old, results, BEGIN, "Benchmarks");
        let first = place("# Title\n\ntext\n", "one\n");
        assert_eq!(first, format!("# Title\n\ntext\n\n{BEGIN}\none\n{END}\n"));
        let second = place(&format!("{first}\nmore\n"), "two\n");
        assert_eq!(second, format!("# Title\n\ntext\n\n{BEGIN}\ntwo\n{END}\n\nmore\n"));
        assert_eq!(place("", "x\n"), format!("# Benchmarks\n\n{BEGIN}\nx\n{END}\n"));
    }
}
