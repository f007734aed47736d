//! What drills have found: a table for people, one JSON object a drill for scripts, Markdown for the
//! docs.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use jiff::Timestamp;
use serde::Serialize;

use super::TIMES;
use super::course::{Check, Outcome};
use super::list::Drill;

const HEADER: [&str; 10] = [
    "drill",
    "passed",
    "faults",
    "events",
    "lost",
    "doubled",
    "reordered",
    "recovery median",
    "worst",
    "seconds",
];

/// Stands where there is neither yes nor no.
const SKIPPED: &str = "skipped";

/// A drill that was run.
pub(super) struct Done {
    pub(super) drill: &'static Drill,
    pub(super) seed: u64,
    pub(super) times: u32,
    pub(super) outcome: Outcome,
    /// Why it could not be run to its end.
    pub(super) error: Option<String>,
    pub(super) took: Duration,
}

/// The JSON form; the names are stable.
#[derive(Debug, Serialize)]
struct Json<'a> {
    drill: &'static str,
    passed: bool,
    /// Why it was not run here; then it has neither passed nor failed, and counts as passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'a str>,
    observed: &'a [Check],
    injected: &'a [String],
    faults: usize,
    events: u64,
    lost: u64,
    doubled: u64,
    reordered: u64,
    recovery_median_seconds: Option<f64>,
    recovery_worst_seconds: Option<f64>,
    /// What was found and should not have been.
    problems: Vec<&'a str>,
    seed: u64,
    seconds: f64,
}

impl Done {
    /// Whether all was as expected.
    pub(super) fn passed(&self) -> bool {
        self.error.is_none() && self.outcome.passed()
    }

    /// For a table.
    fn mark(&self) -> &'static str {
        match (self.passed(), &self.outcome.skipped) {
            (false, _) => "NO",
            (true, Some(_)) => SKIPPED,
            (true, None) => "yes",
        }
    }

    /// What is wrong, in the words of what found it.
    fn problems(&self) -> Vec<&str> {
        let faults = self.outcome.faults.iter().map(String::as_str);
        faults.chain(self.error.as_deref()).collect()
    }

    /// One JSON object on one line.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        let outcome = &self.outcome;
        let recovery = Recovery::of([self]);
        let seconds = |time: Option<Duration>| time.map(|time| rounded(time.as_secs_f64()));
        let json = Json {
            drill: self.drill.name,
            passed: self.passed(),
            skipped: outcome.skipped.as_deref(),
            observed: &outcome.checks,
            injected: &outcome.injected,
            faults: outcome.injected.len(),
            events: outcome.events,
            lost: outcome.lost,
            doubled: outcome.doubled,
            reordered: outcome.reordered,
            recovery_median_seconds: seconds(recovery.median),
            recovery_worst_seconds: seconds(recovery.worst),
            problems: self.problems(),
            seed: self.seed,
            seconds: rounded(self.took.as_secs_f64()),
        };
        Ok(serde_json::to_string(&json)? + "\n")
    }

    /// What it takes to do the same again.
    fn title(&self) -> String {
        let times = match self.times {
            TIMES => String::new(),
            times => format!(" --times {times}"),
        };
        format!("{} --seed {}{times}", self.drill.name, self.seed)
    }

    /// One line for the terminal while others are still to come.
    pub(super) fn line(&self) -> String {
        let mark = match self.mark() {
            "NO" => "FAILED",
            "yes" => "passed",
            other => other,
        };
        format!("{mark}  {}  {:.1} s", self.drill.name, self.took.as_secs_f64())
    }

    /// What was done, if that is asked for; what was looked at, each with what was expected where it is
    /// something else; then what else is wrong. Empty where only figures count.
    fn account(&self, with_faults: bool) -> String {
        let mut text = String::new();
        let done = self.outcome.injected.iter().filter(|_| with_faults);
        done.for_each(|what| text += &format!("  did   {what}\n"));
        // writing to a String cannot fail
        for Check { at, expected, found, ok } in &self.outcome.checks {
            let mark = if *ok { "ok   " } else { "WRONG" };
            let _ = writeln!(text, "  {mark} {at}\n          {found}");
            if !ok {
                let _ = writeln!(text, "          expected: {expected}");
            }
        }
        if let Some(why) = &self.outcome.skipped {
            let _ = writeln!(text, "  skipped: {why}");
        }
        for problem in self.problems() {
            let _ = writeln!(text, "  {}", problem.trim_end().replace('\n', "\n  "));
        }
        if text.is_empty() { text } else { format!("{}\n{text}\n", self.title()) }
    }
}

/// How long it took to recover from one kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recovery {
    median: Option<Duration>,
    worst: Option<Duration>,
}

impl Recovery {
    fn of<'a>(done: impl IntoIterator<Item = &'a Done>) -> Self {
        let each = done.into_iter().flat_map(|done| done.outcome.recoveries.iter().copied());
        let mut all: Vec<Duration> = each.collect();
        all.sort_unstable();
        Self { median: all.get(all.len() / 2).copied(), worst: all.last().copied() }
    }
}

/// All drills of a run.
pub(super) struct Report {
    pub(super) done: Vec<Done>,
    /// What everything random came from.
    pub(super) seed: u64,
    /// Drills were drawn: what they did is a part of the result.
    pub(super) soak: bool,
    /// Below each drill why it comes out so.
    pub(super) explain: bool,
}

impl Report {
    pub(super) fn passed(&self) -> bool {
        !self.done.is_empty() && self.done.iter().all(Done::passed)
    }

    fn summary(&self) -> String {
        let sum = |of: fn(&Outcome) -> u64| -> u64 {
            self.done.iter().map(|done| of(&done.outcome)).sum()
        };
        let failed: Vec<_> = self.done.iter().filter(|done| !done.passed()).collect();
        let skipped = self.done.iter().filter(|done| done.mark() == SKIPPED).count();
        let mut text = format!(
            "{} of {} drills passed{}: {} faults, {} events, lost {}, doubled {}, reordered {}, seed {}",
            self.done.len() - failed.len() - skipped,
            self.done.len(),
            if skipped > 0 { format!(", {skipped} skipped") } else { String::new() },
            sum(|outcome| outcome.injected.len() as u64),
            sum(|outcome| outcome.events),
            sum(|outcome| outcome.lost),
            sum(|outcome| outcome.doubled),
            sum(|outcome| outcome.reordered),
            self.seed,
        );
        for done in failed {
            // writing to a String cannot fail
            let _ = write!(text, "\nfailed, again by: outflow drill {}", done.title());
        }
        text
    }

    /// Puts the figures into a Markdown file.
    pub(super) fn write_markdown(&self, versions: &str, file: &Path) -> anyhow::Result<()> {
        crate::markdown::write(file, "outflow drill", "Drills", &self.markdown(versions))
    }

    fn markdown(&self, versions: &str) -> String {
        // tenths of a second say nothing about an hour's work
        let at = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let mut text = format!(
            "outflow {}{}, {versions}, {at}  \n{}.\n\n",
            env!("CARGO_PKG_VERSION"),
            if cfg!(debug_assertions) { " (not a release build)" } else { "" },
            self.summary()
        );
        text += "| drill | injected | faults | events | lost | doubled | reordered | recovery median | worst | passed |\n";
        text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";
        for (drill, runs) in self.by_drill() {
            let sum = |of: fn(&Outcome) -> u64| -> u64 {
                runs.iter().map(|done| of(&done.outcome)).sum()
            };
            let recovery = Recovery::of(runs.iter().copied());
            let failed = runs.iter().find(|done| !done.passed());
            let passed = failed.or(runs.first()).map_or("", |done| done.mark());
            // writing to a String cannot fail
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {passed} |",
                drill.name,
                drill.injects,
                sum(|outcome| outcome.injected.len() as u64),
                sum(|outcome| outcome.events),
                sum(|outcome| outcome.lost),
                sum(|outcome| outcome.doubled),
                sum(|outcome| outcome.reordered),
                show(recovery.median),
                show(recovery.worst),
            );
        }
        text
    }

    /// The runs of each drill, in the order of the first ones.
    fn by_drill(&self) -> Vec<(&'static Drill, Vec<&Done>)> {
        let mut all: Vec<(&'static Drill, Vec<&Done>)> = Vec::new();
        for done in &self.done {
            match all.iter_mut().find(|(drill, _)| drill.name == done.drill.name) {
                Some((_, runs)) => runs.push(done),
                None => all.push((done.drill, vec![done])),
            }
        }
        all
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(HEADER);
        for done in &self.done {
            let (outcome, recovery) = (&done.outcome, Recovery::of([done]));
            table.add_row([
                done.drill.name.to_owned(),
                done.mark().to_owned(),
                outcome.injected.len().to_string(),
                outcome.events.to_string(),
                outcome.lost.to_string(),
                outcome.doubled.to_string(),
                outcome.reordered.to_string(),
                show(recovery.median),
                show(recovery.worst),
                format!("{:.1}", done.took.as_secs_f64()),
            ]);
        }
        for column in 2..HEADER.len() {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for done in &self.done {
            write!(f, "{}", done.account(self.soak))?;
        }
        writeln!(f, "{table}\n{}", self.summary())?;
        if self.explain {
            for (drill, _) in self.by_drill() {
                write!(f, "\n{}", explanation(drill))?;
            }
        }
        Ok(())
    }
}

/// A drill, what must be true after it, and why.
pub(super) fn explanation(drill: &Drill) -> String {
    let Drill { name, injects, expects, why, breaks, .. } = drill;
    let mut text = format!("{name}\n  injected: {injects}\n  expected: {expects}\n  why: {why}\n");
    if !breaks.is_empty() {
        let servers: Vec<_> = breaks.iter().map(|server| server.name()).collect();
        text += &format!("  breaks {} itself: throwaway servers only\n", servers.join(" and "));
    }
    text
}

fn show(time: Option<Duration>) -> String {
    time.map_or_else(String::new, |time| format!("{:.1} s", time.as_secs_f64()))
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests;
