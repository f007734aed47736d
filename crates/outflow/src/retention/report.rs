//! What a run of retention did, or would do.

use std::fmt;
use std::time::SystemTime;

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use outflow_inbox::retention::{Removed, Report as Inbox};
use outflow_relay::retention::Report as Relay;
use serde::{Serialize, Serializer};

/// What to say where no age is set.
pub(super) const NOTHING: &str = "everything is kept: set retention.outbox, .streams, .inbox or .settled to an age such as \
    \"7days\", here or by --outbox and the like";

/// Both sides; none of them where no age is set.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    dry_run: bool,
    /// Outbox and streams.
    #[serde(flatten)]
    pub(super) relay: Option<Relay>,
    /// The consumer's tables.
    #[serde(rename = "consumer", serialize_with = "inbox")]
    pub(super) consumer: Option<Inbox>,
}

impl Report {
    pub(super) fn new(dry_run: bool) -> Self {
        Self { dry_run, relay: None, consumer: None }
    }
}

fn inbox<S: Serializer>(report: &Option<Inbox>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(report) = report else { return serializer.serialize_none() };
    let removed = |removed: &Option<Removed>| {
        removed.as_ref().map(|removed| {
            serde_json::json!({
                "removed": removed.rows,
                "before": removed.before.map(moment),
                "held_by": removed.held_by,
            })
        })
    };
    let floors: Vec<_> = report
        .floors
        .iter()
        .map(|floor| {
            let below = floor.below.to_string();
            serde_json::json!({ "stream": floor.stream, "below": below, "held_by": floor.held_by })
        })
        .collect();
    let holds: Vec<_> = report
        .holds
        .iter()
        .map(|hold| {
            let entry = hold.entry_id.to_string();
            serde_json::json!({ "stream": hold.stream, "entry_id": entry, "reason": hold.reason })
        })
        .collect();
    serde_json::json!({
        "inbox": removed(&report.inbox),
        "settled": removed(&report.settled),
        "floors": floors,
        "holds": holds,
    })
    .serialize(serializer)
}

fn moment(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "unknown".to_owned(), |at| at.to_string())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.relay.is_none() && self.consumer.is_none() {
            return writeln!(f, "{NOTHING}");
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        let removed = if self.dry_run { "would go" } else { "removed" };
        table.set_header(["from", removed, "the rest is kept because"]);
        if let Some(relay) = &self.relay {
            if let Some(outbox) = &relay.outbox {
                let dropped = match outbox.partitions_dropped.len() {
                    0 => String::new(),
                    number => format!(", {number} partitions"),
                };
                let before = outbox.before.as_deref().unwrap_or("unknown");
                let age =
                    || format!("created at {before} or later, or not passed by all consumers");
                table.add_row([
                    outbox.table.clone(),
                    format!("{} rows{dropped}", outbox.removed),
                    outbox.held_by.clone().unwrap_or_else(age),
                ]);
            }
            for stream in &relay.streams {
                table.add_row([
                    stream.stream.clone(),
                    format!("{} of {} entries", stream.removed, stream.removed + stream.entries),
                    stream.held_by.clone().unwrap_or_else(|| "nothing is left".to_owned()),
                ]);
            }
        }
        if let Some(consumer) = &self.consumer {
            for (name, removed) in [("inbox", &consumer.inbox), ("settled", &consumer.settled)] {
                let Some(removed) = removed else { continue };
                let why = match (&removed.held_by, removed.before) {
                    (Some(held_by), _) => held_by.clone(),
                    (None, Some(before)) => {
                        format!("from {} or later, or not below the floors", moment(before))
                    }
                    (None, None) => String::new(),
                };
                table.add_row([name.to_owned(), format!("{} rows", removed.rows), why]);
            }
        }
        writeln!(f, "{table}")?;
        for floor in self.consumer.iter().flat_map(|consumer| &consumer.floors) {
            writeln!(f, "floor of {}: {}, {}", floor.stream, floor.below, floor.held_by)?;
        }
        if self.dry_run {
            writeln!(f, "nothing was changed: `outflow retention run` removes it")?;
        }
        Ok(())
    }
}
