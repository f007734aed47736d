//! What is going on, on standard error: bars on a terminal, a line a step elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// One bar for the step at work.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    pub(super) fn start() -> Self {
        let bar = ProgressBar::new(0);
        let template = "{spinner} {msg} [{bar:30}] {human_pos}/{human_len} {elapsed}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, terminal: io::stderr().is_terminal() }
    }

    /// A new step of `total` parts.
    pub(super) fn step(&self, what: impl Into<String>, total: u64) {
        let what = what.into();
        if !self.terminal {
            eprintln!("{what} ..");
        }
        self.bar.reset();
        self.bar.set_length(total);
        self.bar.set_message(what);
    }

    /// How many parts of it are done.
    pub(super) fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// A line that stays.
    pub(super) fn say(&self, line: &str) {
        if line.is_empty() {
            return;
        }
        if self.terminal {
            self.bar.println(line);
        } else {
            eprintln!("{line}");
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
