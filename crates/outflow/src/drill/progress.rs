//! What is being done, on standard error: a spinner with the last line on a terminal, lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Where progress is shown; cloning gives another handle.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    plain: bool,
    /// Every line stays on a terminal too.
    verbose: bool,
}

impl Progress {
    /// Counts `drills` drills, of an unknown number where there is none.
    pub(super) fn start(drills: Option<u64>, verbose: bool) -> Self {
        if !io::stderr().is_terminal() {
            return Self { bar: None, plain: true, verbose };
        }
        let bar = drills.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = match drills {
            Some(_) => "{spinner} {human_pos}/{human_len} {prefix}: {wide_msg} {elapsed}",
            None => "{spinner} {human_pos} done, {prefix}: {wide_msg} {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar: Some(bar), plain: false, verbose }
    }

    /// Says nothing.
    #[cfg(test)]
    pub(super) fn silent() -> Self {
        Self { bar: None, plain: false, verbose: false }
    }

    /// A drill begins.
    pub(super) fn begin(&self, name: &'static str, seed: u64) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(name);
            bar.set_message("");
        }
        if self.plain || self.verbose {
            self.line(&format!("{name}, seed {seed}"));
        }
    }

    /// Something is being done, or was found.
    pub(super) fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.lines().next().unwrap_or_default().to_owned());
        }
        if self.plain || self.verbose {
            self.line(&format!("  {what}"));
        }
    }

    /// A drill is over; the line stays.
    pub(super) fn done(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        self.line(line);
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if self.plain => eprintln!("{text}"),
            None => {}
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
