//! `outflow dead-letters retry` and `discard`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use outflow_inbox::dead_letters::{self, DeadLetter, Filter};
use serde::Serialize;

use super::list::{Line, Lines, state};
use super::select::Selection;
use super::{Store, explain};
use crate::failure::Refused;

/// How often to look what has become of a retry.
const LOOK: Duration = Duration::from_millis(200);
/// Letters of one transaction.
const CHUNK: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    selection: Selection,
    /// All open letters
    #[arg(long)]
    every: bool,
    /// Show what would be tried again, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until a worker has tried them, and say what came of it; at most SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60")]
    wait: Option<u64>,
    /// Who asks, for the record [default: the user of this process]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct DiscardArgs {
    #[command(flatten)]
    selection: Selection,
    /// All open letters
    #[arg(long)]
    every: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    note: Option<String>,
    /// Show what would be given up, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Who decides, for the record [default: the user of this process]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// What came of it; the field names are stable.
#[derive(Debug, Serialize)]
struct Report {
    /// Nothing was changed.
    dry_run: bool,
    /// The letters that the command is about.
    letters: Vec<Line>,
    /// Of these, malformed entries: they are no events and cannot be tried again.
    malformed: usize,
    /// Letters for which it was done.
    done: usize,
}

pub(super) async fn retry(args: &RetryArgs, store: &Store) -> anyhow::Result<ExitCode> {
    check(&args.selection, args.every)?;
    let letters = args.selection.open(store).await?;
    let malformed = letters.iter().filter(|letter| letter.event_id.is_none()).count();
    let mut done = Vec::new();
    if !args.dry_run {
        let by = by(args.by.as_deref());
        for ids in ids(&letters).chunks(CHUNK) {
            let asked = dead_letters::retry(&store.client, &store.consumer_id, ids, &by).await;
            done.extend(explain(asked)?);
        }
    }
    let (letters, code) = match args.wait {
        Some(seconds) if !args.dry_run => {
            let letters = follow(store, &done, Duration::from_secs(seconds)).await?;
            // a duplicate has had its effect, by another delivery
            let had_effect = |letter: &DeadLetter| {
                matches!(letter.resolution.as_deref(), Some("applied" | "duplicate"))
            };
            let failed = !letters.iter().all(had_effect);
            (letters, if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        _ => (letters, ExitCode::SUCCESS),
    };
    let what = if args.wait.is_some() { "tried again" } else { "to be tried again by a worker" };
    report(args.json, args.dry_run, &letters, malformed, done.len(), what)?;
    Ok(code)
}

pub(super) async fn discard(args: &DiscardArgs, store: &mut Store) -> anyhow::Result<ExitCode> {
    check(&args.selection, args.every)?;
    let letters = args.selection.open(store).await?;
    let mut done = 0;
    if !args.dry_run {
        let (by, note) = (by(args.by.as_deref()), args.note.as_deref());
        for ids in ids(&letters).chunks(CHUNK) {
            let Store { client, consumer_id } = store;
            let discarded = dead_letters::discard(client, consumer_id, ids, &by, note).await;
            done += explain(discarded)?.len();
        }
    }
    report(args.json, args.dry_run, &letters, 0, done, "discarded")?;
    Ok(ExitCode::SUCCESS)
}

/// Everything at once must be asked for by name.
fn check(selection: &Selection, every: bool) -> Result<(), Refused> {
    if selection.is_everything() && !every {
        return Err(Refused(
            "name the letters: ids, --ids-from, --letter, --event, --type, --aggregate, --reason, --since, --before, \
             or --every"
                .to_owned(),
        ));
    }
    Ok(())
}

fn ids(letters: &[DeadLetter]) -> Vec<i64> {
    letters.iter().map(|letter| letter.id).collect()
}

fn by(name: Option<&str>) -> String {
    let user = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
    name.map(str::to_owned).or_else(user).unwrap_or_else(|| "unknown".to_owned())
}

fn report(
    json: bool,
    dry_run: bool,
    letters: &[DeadLetter],
    malformed: usize,
    done: usize,
    what: &str,
) -> anyhow::Result<()> {
    let lines: Vec<Line> = letters.iter().map(Line::from).collect();
    if json {
        return crate::output::json(&Report { dry_run, letters: lines, malformed, done });
    }
    let mut text = if lines.is_empty() { String::new() } else { Lines(lines).to_string() };
    if dry_run {
        text.push_str(&format!("dry run: {} would be {what}\n", letters.len() - malformed));
    } else {
        text.push_str(&format!("{done} {what}\n"));
    }
    if malformed > 0 {
        text.push_str(&format!(
            "note: {malformed} of them are no events: correct the producer and publish them anew, or discard them\n"
        ));
    }
    crate::output::text(&text)
}

/// Waits until none of `ids` is to be tried any more; what they have come to.
async fn follow(store: &Store, ids: &[i64], patience: Duration) -> anyhow::Result<Vec<DeadLetter>> {
    let filter = Filter { ids: ids.to_vec(), resolved: true, ..Filter::default() };
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let progress = bar(ids.len());
    let since = Instant::now();
    loop {
        let Store { client, consumer_id } = store;
        let letters =
            explain(dead_letters::list(client, consumer_id, &filter, false, ids.len()).await)?;
        let waits = letters.iter().filter(|letter| state(letter) == "retrying").count();
        progress.set_position(u64::try_from(ids.len() - waits.min(ids.len()))?);
        if waits == 0 {
            progress.finish_and_clear();
            return Ok(letters);
        }
        if since.elapsed() > patience {
            progress.finish_and_clear();
            let seconds = patience.as_secs();
            return Err(Refused(format!(
                "{waits} of {} were not tried within {seconds} s: does a worker of `{}` run that reads their streams?",
                ids.len(),
                store.consumer_id
            ))
            .into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn bar(length: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(length).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("  {wide_bar} {pos}/{len} tried") {
        bar.set_style(style);
    }
    bar
}
