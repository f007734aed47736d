//! Conflicts as they are shown.

use std::fmt;
use std::time::SystemTime;

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use outflow_inbox::conflicts::{Conflict, Difference, Filter, Resolution, Side, Which};
use serde::Serialize;

/// Differences of one conflict that a person is shown; JSON has all of them.
const SHOWN: usize = 50;
/// Characters of a value that a person is shown.
const WIDTH: usize = 120;

/// Some conflicts of a consumer.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    consumer: String,
    conflicts: Vec<Line>,
    /// There are more than were asked for.
    more: bool,
    #[serde(skip)]
    which: Which,
}

/// A conflict without its payloads.
#[derive(Debug, Serialize)]
struct Line {
    conflict: i64,
    event_id: String,
    aggregate_type: String,
    aggregate_id: String,
    seq: Option<i64>,
    event_type: String,
    position: Option<String>,
    detected_at: String,
    applied_at: String,
    /// `open`, `replace requested`, `keep`, `replace`, or what was written by hand.
    state: String,
    requested_at: Option<String>,
    requested_by: Option<String>,
    /// Why the last try of a replacement failed.
    failure: Option<String>,
    resolved_at: Option<String>,
    resolved_by: Option<String>,
    reason: Option<String>,
}

impl Line {
    fn new(conflict: &Conflict) -> Self {
        let resolution = conflict.resolution.as_ref();
        let settled = |of: fn(&Resolution) -> Option<String>| resolution.and_then(of);
        let state = match (resolution, &conflict.requested) {
            (Some(resolution), _) => resolution.what.clone(),
            (None, Some(_)) => "replace requested".to_owned(),
            (None, None) => "open".to_owned(),
        };
        Self {
            conflict: conflict.conflict_id,
            event_id: conflict.event_id.clone(),
            aggregate_type: conflict.aggregate_type.clone(),
            aggregate_id: conflict.aggregate_id.clone(),
            seq: conflict.seq,
            event_type: conflict.event_type.clone(),
            position: conflict.position.clone(),
            detected_at: moment(conflict.detected_at),
            applied_at: moment(conflict.applied_at),
            state,
            requested_at: conflict.requested.as_ref().map(|(at, _)| moment(*at)),
            requested_by: conflict.requested.as_ref().map(|(_, by)| by.clone()),
            failure: conflict.failure.clone(),
            resolved_at: settled(|resolution| Some(moment(resolution.at))),
            resolved_by: settled(|resolution| resolution.by.clone()),
            reason: settled(|resolution| resolution.reason.clone()),
        }
    }
}

/// RFC 3339 in UTC.
pub(super) fn moment(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "unknown".to_owned(), |at| at.to_string())
}

impl Listed {
    pub(super) fn new(filter: &Filter, found: &[Conflict], more: bool) -> Self {
        Self {
            consumer: filter.consumer_id.clone(),
            conflicts: found.iter().map(Line::new).collect(),
            more,
            which: filter.which,
        }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.conflicts.is_empty() {
            let kind = match self.which {
                Which::Open => "open ",
                Which::Resolved => "settled ",
                Which::All => "",
            };
            return writeln!(f, "consumer `{}` has no {kind}conflicts that match", self.consumer);
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(["conflict", "event id", "aggregate", "event type", "detected", "state"]);
        for line in &self.conflicts {
            table.add_row([
                line.conflict.to_string(),
                line.event_id.clone(),
                format!("{} {}", line.aggregate_type, line.aggregate_id),
                line.event_type.clone(),
                line.detected_at.clone(),
                line.state.clone(),
            ]);
        }
        writeln!(f, "{table}")?;
        if self.more {
            writeln!(f, "there are more: narrow the selection, or raise --limit")?;
        }
        if self.which == Which::Open {
            writeln!(f, "`outflow conflicts show CONFLICT` shows where the payloads differ")?;
        }
        Ok(())
    }
}

/// One conflict, whole.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    line: Line,
    headers: Option<String>,
    applied: Delivered,
    refused: Delivered,
    differences: Vec<Place>,
}

/// One of the two events.
#[derive(Debug, Serialize)]
struct Delivered {
    stream: String,
    entry_id: String,
    /// As text; `null`: the event has no payload.
    payload: Option<String>,
    /// Whether `payload` is JSON.
    json: bool,
}

/// Where they differ.
#[derive(Debug, Serialize)]
struct Place {
    /// JSON pointer (RFC 6901); empty: the payloads as a whole.
    path: String,
    /// JSON text of what was applied; `null`: nothing is there.
    applied: Option<String>,
    /// JSON text of what was refused.
    refused: Option<String>,
}

impl Delivered {
    fn new(side: &Side) -> Self {
        Self {
            stream: side.stream.clone(),
            entry_id: side.entry_id.clone(),
            payload: side.text(),
            json: side.payload.is_some(),
        }
    }
}

impl Shown {
    pub(super) fn new(conflict: &Conflict) -> Self {
        let place = |difference: Difference| Place {
            path: difference.path,
            applied: difference.applied,
            refused: difference.refused,
        };
        Self {
            line: Line::new(conflict),
            headers: conflict.headers.clone(),
            applied: Delivered::new(&conflict.applied),
            refused: Delivered::new(&conflict.refused),
            differences: conflict.differences().into_iter().map(place).collect(),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = &self.line;
        let mut facts = Table::new();
        facts.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        facts.add_row(["conflict", &line.conflict.to_string()]);
        facts.add_row(["event id", &line.event_id]);
        facts.add_row(["event type", &line.event_type]);
        facts.add_row(["aggregate", &format!("{} {}", line.aggregate_type, line.aggregate_id)]);
        facts.add_row(["state", &line.state]);
        for (name, value) in [
            ("reason", &line.reason),
            ("settled", &line.resolved_at),
            ("settled by", &line.resolved_by),
            ("requested", &line.requested_at),
            ("requested by", &line.requested_by),
            ("last try failed", &line.failure),
        ] {
            if let Some(value) = value {
                facts.add_row([name, value]);
            }
        }
        for (name, side, at) in [
            ("applied", &self.applied, &line.applied_at),
            ("refused", &self.refused, &line.detected_at),
        ] {
            facts.add_row([name, &format!("{at}, {} {}", side.stream, side.entry_id)]);
            facts.add_row(["", &cut(side.payload.as_deref().unwrap_or("no payload"), 10 * WIDTH)]);
        }
        writeln!(f, "{facts}")?;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(["differs at", "applied", "refused"]);
        let value = |value: &Option<String>| cut(value.as_deref().unwrap_or("-"), WIDTH);
        for place in self.differences.iter().take(SHOWN) {
            let path = if place.path.is_empty() { "the whole" } else { &place.path };
            table.add_row([path, &value(&place.applied), &value(&place.refused)]);
        }
        writeln!(f, "{table}")?;
        match self.differences.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more: --json shows all of them"),
        }
    }
}

/// `text`, or its beginning.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
