//! `outflow conflicts resolve`: writes down what a person decided.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use outflow_inbox::conflicts::{self, Conflict, Filter};
use serde::Serialize;
use tokio_postgres::Client;

use super::select::Selection;
use crate::failure::Refused;

/// Most conflicts that one call settles.
const MOST: usize = 10_000;

/// How often to look how a replacement goes on.
const LOOK: Duration = Duration::from_millis(200);

/// Settles conflicts
///
/// Who, when and why are kept with the conflict, and so are both payloads.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What holds
    #[arg(value_enum)]
    decision: Decision,
    #[command(flatten)]
    selection: Selection,
    /// All open conflicts of the consumer
    #[arg(long)]
    all: bool,
    /// Why, for whoever looks at it later
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: String,
    /// Who decided [default: the login and the database role that run this]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    by: Option<String>,
    /// How long to follow a replacement that a worker carries out; 0s: only ask for it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Show what would be settled, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Decision {
    /// The event that was applied holds; nothing but the decision is written
    Keep,
    /// The event that was refused holds: a worker of the consumer applies it, and is told what it replaces
    Replace,
}

/// What was settled.
#[derive(Debug, Serialize)]
struct Report {
    consumer: String,
    decision: &'static str,
    dry_run: bool,
    by: String,
    reason: String,
    /// Settled, or to be settled by a run without --dry-run.
    conflicts: Vec<i64>,
    /// Replacements that the handler or the database refused, with the reason; nothing was changed.
    failed: BTreeMap<i64, String>,
    /// Replacements that no worker has carried out yet.
    waiting: Vec<i64>,
    /// Chosen by id, and not open (any more).
    not_open: Vec<i64>,
}

/// Runs the command.
pub(super) async fn run(
    args: &Args,
    consumer_id: String,
    client: &Client,
) -> anyhow::Result<ExitCode> {
    if args.selection.is_everything() && !args.all {
        let message = "choose conflicts by their ids or by a flag, or take --all";
        return Err(Refused(message.to_owned()).into());
    }
    let filter = args.selection.filter(consumer_id.clone())?;
    let found = conflicts::list(client, &filter, false, MOST + 1).await?;
    if found.len() > MOST {
        return Err(
            Refused(format!("more than {MOST} conflicts match: narrow the selection")).into()
        );
    }
    let open: Vec<i64> = found.iter().map(|conflict: &Conflict| conflict.conflict_id).collect();
    let by = match &args.by {
        Some(by) => by.clone(),
        None => super::somebody(client).await?,
    };
    let settled = match args.decision {
        _ if args.dry_run || open.is_empty() => open,
        Decision::Keep => conflicts::keep(client, &consumer_id, &open, &by, &args.reason).await?,
        Decision::Replace => {
            conflicts::request_replace(client, &consumer_id, &open, &by, &args.reason).await?
        }
    };
    let mut followed = Followed::default();
    if args.decision == Decision::Replace && !args.dry_run {
        followed = follow(client, &consumer_id, &settled, args.wait).await?;
    }
    let chosen = filter.conflict_ids.unwrap_or_default();
    let report = Report {
        consumer: consumer_id,
        decision: match args.decision {
            Decision::Keep => "keep",
            Decision::Replace => "replace",
        },
        failed: followed.failed,
        waiting: followed.waiting,
        dry_run: args.dry_run,
        by,
        reason: args.reason.clone(),
        not_open: chosen.into_iter().filter(|id| !settled.contains(id)).collect(),
        conflicts: settled,
    };
    let report = report.without_unfinished();
    if args.json {
        crate::output::json(&report)?;
    } else {
        crate::output::text(&report.to_string())?;
    }
    if !report.failed.is_empty() || !report.waiting.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if report.conflicts.is_empty() {
        return Err(Refused("no open conflict matches: nothing was settled".to_owned()).into());
    }
    Ok(ExitCode::SUCCESS)
}

/// How replacements ended.
#[derive(Debug, Default)]
struct Followed {
    failed: BTreeMap<i64, String>,
    waiting: Vec<i64>,
}

/// Follows replacements until a worker has carried out all of them, or for as long as `wait`.
async fn follow(
    client: &Client,
    consumer_id: &str,
    ids: &[i64],
    wait: Duration,
) -> anyhow::Result<Followed> {
    let since = Instant::now();
    loop {
        let filter = Filter {
            consumer_id: consumer_id.to_owned(),
            conflict_ids: Some(ids.to_vec()),
            ..Filter::default()
        };
        let mut followed = Followed::default();
        for conflict in conflicts::list(client, &filter, false, MOST).await? {
            match (conflict.requested, conflict.failure) {
                (None, Some(failure)) => {
                    followed.failed.insert(conflict.conflict_id, failure);
                }
                _ => followed.waiting.push(conflict.conflict_id),
            }
        }
        if followed.waiting.is_empty() || since.elapsed() >= wait {
            return Ok(followed);
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Report {
    fn without_unfinished(mut self) -> Self {
        let (failed, waiting) = (&self.failed, &self.waiting);
        self.conflicts.retain(|id| !failed.contains_key(id) && !waiting.contains(id));
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.dry_run { "would be settled" } else { "settled" };
        for id in &self.conflicts {
            writeln!(f, "conflict {id}: {verb}, {}", self.decision)?;
        }
        for (id, why) in &self.failed {
            writeln!(f, "conflict {id}: not replaced, nothing was changed: {why}")?;
        }
        for id in &self.waiting {
            writeln!(
                f,
                "conflict {id}: no worker of consumer `{}` has carried it out yet: does one run that reads its \
                 stream? It stays asked for; `outflow conflicts show {id}` tells how it ends",
                self.consumer
            )?;
        }
        for id in &self.not_open {
            writeln!(f, "conflict {id}: not open, left as it is")?;
        }
        if self.dry_run {
            return writeln!(f, "nothing was changed: run this again without --dry-run");
        }
        Ok(())
    }
}
