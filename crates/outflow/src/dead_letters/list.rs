//! `outflow dead-letters list`.

use std::fmt;
use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use outflow_inbox::dead_letters::DeadLetter;
use serde::Serialize;

use super::Store;
use super::select::Selection;

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    selection: Selection,
    /// Also those that are settled
    #[arg(long)]
    all: bool,
    /// Letters at most
    #[arg(long, default_value_t = 100, value_name = "LETTERS")]
    limit: usize,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// A letter in a list; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) id: i64,
    pub(super) event_id: Option<String>,
    pub(super) event_type: Option<String>,
    pub(super) aggregate_type: Option<String>,
    pub(super) aggregate_id: Option<String>,
    stream: String,
    entry_id: String,
    attempts: i32,
    crashes: i32,
    behind: i64,
    dead_at: String,
    state: &'static str,
    pub(super) reason: String,
}

impl From<&DeadLetter> for Line {
    fn from(letter: &DeadLetter) -> Self {
        Self {
            id: letter.id,
            event_id: letter.event_id.clone(),
            event_type: letter.event_type.clone(),
            aggregate_type: letter.aggregate_type.clone(),
            aggregate_id: letter.aggregate_id.clone(),
            stream: letter.stream.clone(),
            entry_id: letter.entry_id.clone(),
            attempts: letter.attempts,
            crashes: letter.crashes,
            behind: letter.behind,
            dead_at: letter.dead_at.clone(),
            state: state(letter),
            reason: letter.reason.clone(),
        }
    }
}

/// `open`, `retrying`, or how it was settled.
pub(super) fn state(letter: &DeadLetter) -> &'static str {
    match (letter.resolution.as_deref(), &letter.retry_requested_at) {
        (Some("applied"), _) => "applied",
        (Some("duplicate"), _) => "duplicate",
        (Some("conflict"), _) => "conflict",
        (Some("discarded"), _) => "discarded",
        _ if letter.resolved_at.is_some() => "resolved",
        (_, Some(_)) => "retrying",
        (_, None) => "open",
    }
}

/// Letters as a table.
pub(super) struct Lines(pub(super) Vec<Line>);

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header([
            "id",
            "event",
            "type",
            "aggregate",
            "attempts",
            "behind",
            "dead at",
            "state",
            "reason",
        ]);
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        for line in &self.0 {
            let aggregate = match (&line.aggregate_type, &line.aggregate_id) {
                (Some(kind), Some(id)) => format!("{kind}/{id}"),
                _ => "-".to_owned(),
            };
            table.add_row([
                line.id.to_string(),
                text(&line.event_id),
                text(&line.event_type),
                aggregate,
                line.attempts.to_string(),
                line.behind.to_string(),
                line.dead_at.clone(),
                line.state.to_owned(),
                line.reason.clone(),
            ]);
        }
        writeln!(f, "{table}")
    }
}

pub(super) async fn run(args: &ListArgs, store: &Store) -> anyhow::Result<ExitCode> {
    // one more than is shown tells whether there are more
    let limit = args.limit.saturating_add(1);
    let mut letters = args.selection.list(store, args.all, false, limit).await?;
    let more = letters.len() > args.limit;
    letters.truncate(args.limit);
    let lines: Vec<Line> = letters.iter().map(Line::from).collect();
    if args.json {
        crate::output::json(&lines)?;
    } else if lines.is_empty() {
        let which = if args.all { "" } else { "open " };
        crate::output::text(&format!("no {which}dead letters of `{}`\n", store.consumer_id))?;
    } else {
        crate::output::text(&Lines(lines).to_string())?;
        if more {
            crate::output::text(&format!("note: there are more than {}: --limit\n", args.limit))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
