//! Shows how far the demo is: bars on a terminal, a line a second elsewhere. On standard error, which
//! leaves standard output to the proof.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::watch::Sample;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// Where progress is shown.
pub(super) struct Display {
    bars: Option<Bars>,
    since: Instant,
    /// When the last plain line was written.
    line: Mutex<Option<Instant>>,
}

struct Bars {
    all: MultiProgress,
    committed: ProgressBar,
    entries: ProgressBar,
    inbox: ProgressBar,
    rest: ProgressBar,
}

impl Display {
    /// Nothing is shown until there is something to show.
    pub(super) fn new() -> Self {
        let bars = io::stderr().is_terminal().then(MultiProgress::new);
        Self { bars: bars.map(Bars::new), since: Instant::now(), line: Mutex::new(None) }
    }

    /// Begins to show bars, of this many events if that is known.
    pub(super) fn begin(&self, events: Option<u64>) {
        let Some(bars) = &self.bars else { return };
        for bar in [&bars.committed, &bars.entries, &bars.inbox] {
            bar.set_length(events.unwrap_or(0));
        }
        for bar in [&bars.committed, &bars.entries, &bars.inbox, &bars.rest] {
            bars.all.add(bar.clone());
        }
    }

    /// Says something that stays.
    pub(super) fn say(&self, text: &str) {
        let line = format!("{:6.1} s  {text}", self.since.elapsed().as_secs_f64());
        match &self.bars {
            // a terminal that went away has nothing to be told
            Some(bars) => drop(bars.all.println(line)),
            None => eprintln!("{line}"),
        }
    }

    /// Shows a sample.
    pub(super) fn update(&self, sample: &Sample) {
        let lag = HumanCount(sample.committed.saturating_sub(sample.inbox));
        let Some(bars) = &self.bars else {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            if line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
                *line = Some(Instant::now());
                let Sample { committed, entries, inbox, kills, .. } = *sample;
                let [committed, entries, inbox] = [committed, entries, inbox].map(HumanCount);
                self.say(&format!(
                    "committed {committed}  entries {entries}  inbox {inbox}  lag {lag}  kills {kills}"
                ));
            }
            return;
        };
        for (bar, count) in [
            (&bars.committed, sample.committed),
            (&bars.entries, sample.entries),
            (&bars.inbox, sample.inbox),
        ] {
            if bar.length().is_none_or(|length| length < sample.committed) {
                bar.set_length(sample.committed);
            }
            bar.set_position(count);
        }
        bars.rest.set_message(format!("lag {lag}   kills {}", sample.kills));
    }

    /// Takes the bars away.
    pub(super) fn end(&self) {
        if let Some(bars) = &self.bars {
            for bar in [&bars.committed, &bars.entries, &bars.inbox, &bars.rest] {
                bar.finish_and_clear();
            }
        }
    }
}

impl Bars {
    fn new(all: MultiProgress) -> Self {
        let bar = |name: &'static str, template: &str| {
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::hidden().with_style(style).with_prefix(name)
        };
        let counted = |name| bar(name, "{prefix:>11} {bar:40} {human_pos} of {human_len}");
        Self {
            all,
            committed: counted("committed"),
            entries: counted("entries"),
            inbox: counted("inbox"),
            rest: bar("", "{prefix:>11} {msg}"),
        }
    }
}
