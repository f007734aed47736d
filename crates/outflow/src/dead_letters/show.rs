//! `outflow dead-letters show`.

use std::fmt::{self, Write as _};
use std::process::ExitCode;

use outflow_inbox::dead_letters::DeadLetter;
use serde::Serialize;

use super::Store;
use super::list::state;
use super::select::Selection;
use crate::failure::Refused;

/// Letters that are shown whole: each may be as large as its event.
const MOST: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    selection: Selection,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Everything; the field names are stable. Bytes that are no text are shown as `\x..`.
#[derive(Debug, Serialize)]
struct Letter {
    id: i64,
    state: &'static str,
    event_id: Option<String>,
    event_type: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    seq: Option<i64>,
    position: Option<String>,
    stream: String,
    entry_id: String,
    reason: String,
    sqlstate: Option<String>,
    attempts: i32,
    crashes: i32,
    holds: bool,
    behind: i64,
    first_at: Option<String>,
    last_at: Option<String>,
    dead_at: String,
    retry_requested_at: Option<String>,
    retry_requested_by: Option<String>,
    resolved_at: Option<String>,
    resolution: Option<String>,
    resolved_by: Option<String>,
    note: Option<String>,
    headers: Option<String>,
    payload: Option<String>,
    fields: Vec<(String, String)>,
}

impl From<DeadLetter> for Letter {
    fn from(letter: DeadLetter) -> Self {
        let pairs = letter.fields.chunks(2);
        let at = |pair: &[Vec<u8>], index: usize| pair.get(index).map(|bytes| printable(bytes));
        let fields =
            pairs.map(|pair| (at(pair, 0).unwrap_or_default(), at(pair, 1).unwrap_or_default()));
        Self {
            state: state(&letter),
            payload: letter.field("payload").map(printable),
            fields: fields.collect(),
            id: letter.id,
            event_id: letter.event_id,
            event_type: letter.event_type,
            aggregate_type: letter.aggregate_type,
            aggregate_id: letter.aggregate_id,
            seq: letter.seq,
            position: letter.position,
            stream: letter.stream,
            entry_id: letter.entry_id,
            reason: letter.reason,
            sqlstate: letter.sqlstate,
            attempts: letter.attempts,
            crashes: letter.crashes,
            holds: letter.holds,
            behind: letter.behind,
            first_at: letter.first_at,
            last_at: letter.last_at,
            dead_at: letter.dead_at,
            retry_requested_at: letter.retry_requested_at,
            retry_requested_by: letter.retry_requested_by,
            resolved_at: letter.resolved_at,
            resolution: letter.resolution,
            resolved_by: letter.resolved_by,
            note: letter.note,
            headers: letter.headers,
        }
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dead letter {}, {}", self.id, self.state)?;
        let seq = self.seq.map(|seq| seq.to_string());
        let behind = self.holds.then(|| format!("{} events of its aggregate", self.behind));
        let attempts = format!("{} ({} ended the worker)", self.attempts, self.crashes);
        let lines = [
            ("event", &self.event_id),
            ("type", &self.event_type),
            ("aggregate type", &self.aggregate_type),
            ("aggregate id", &self.aggregate_id),
            ("seq", &seq),
            ("position", &self.position),
            ("stream", &Some(self.stream.clone())),
            ("entry", &Some(self.entry_id.clone())),
            ("reason", &Some(self.reason.clone())),
            ("sqlstate", &self.sqlstate),
            ("attempts", &Some(attempts)),
            ("waiting behind", &behind),
            ("first attempt", &self.first_at),
            ("last attempt", &self.last_at),
            ("dead at", &Some(self.dead_at.clone())),
            ("retry asked for", &self.retry_requested_at),
            ("by", &self.retry_requested_by),
            ("settled at", &self.resolved_at),
            ("settled by", &self.resolved_by),
            ("note", &self.note),
        ];
        for (name, value) in lines {
            if let Some(value) = value {
                writeln!(f, "  {name:<16} {value}")?;
            }
        }
        writeln!(f, "  entry as delivered:")?;
        for (name, value) in &self.fields {
            writeln!(f, "    {name:<16} {value}")?;
        }
        Ok(())
    }
}

/// Text as it is; other bytes as `\x..`.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

pub(super) async fn run(args: &ShowArgs, store: &Store) -> anyhow::Result<ExitCode> {
    // one that was asked for by its id is shown whatever has become of it
    let resolved = args.selection.is_by_id();
    let letters = args.selection.list(store, resolved, true, MOST + 1).await?;
    if letters.is_empty() && resolved {
        let (consumer, named) = (&store.consumer_id, args.selection.named());
        return Err(Refused(format!("consumer `{consumer}` has no dead letter {named}")).into());
    }
    if letters.len() > MOST {
        return Err(Refused(format!("more than {MOST} letters match: narrow the selection")).into());
    }
    let letters: Vec<Letter> = letters.into_iter().map(Letter::from).collect();
    if args.json {
        crate::output::json(&letters)?;
    } else {
        let texts: Vec<String> = letters.iter().map(ToString::to_string).collect();
        crate::output::text(&texts.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn bytes_that_are_no_text_can_be_read_all_the_same() {
        assert_eq!(printable("{\"a\": \"\u{e9}\"}".as_bytes()), "{\"a\": \"\u{e9}\"}");
        assert_eq!(printable(b"a\xff\xfeb"), "a\\xff\\xfeb");
    }
}
