//! Everything that was found, what of it stands still, and how it is shown.

use std::fmt;

use comfy_table::{ContentArrangement, Table, presets};
use outflow_relay::preflight::Severity;
use serde::Serialize;

use super::broker::{Broker, Group, StoredOffset};
use super::consumer::Consumer;
use super::polling;
use super::source::Source;
use crate::config::Config;
use crate::http::Health;

/// A consumer blocks for a second or so when there is nothing to read: one that has not even asked
/// for this long, while entries wait, is not there.
const ABSENT_MS: i64 = 60_000;

/// Everything; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Nothing stands still, and everything that is configured was reached.
    pub(super) healthy: bool,
    /// What stands still or could not be reached, each with its reason.
    problems: Vec<String>,
    /// Worth a person's attention, but nothing stands still for it.
    notes: Vec<String>,
    connector: String,
    offset: Part<Option<StoredOffset>>,
    /// `null`: not configured. So for the other parts.
    source: Option<Part<Source>>,
    broker: Part<Broker>,
    consumer: Option<Part<Consumer>>,
    /// Empty: none is configured.
    processes: Vec<Part<Health>>,
}

/// A part that was asked: what it said, or why it said nothing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Part<T> {
    Found(T),
    Error(String),
}

impl<T> From<Result<T, String>> for Part<T> {
    fn from(result: Result<T, String>) -> Self {
        match result {
            Ok(found) => Self::Found(found),
            Err(error) => Self::Error(error),
        }
    }
}

impl<T> Part<T> {
    /// What it said; why not goes to `problems`.
    fn found(&self, what: &str, problems: &mut Vec<String>) -> Option<&T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Error(error) => {
                problems.push(format!("{what}: {error}"));
                None
            }
        }
    }
}

impl Report {
    pub(super) fn new(
        config: &Config,
        source: Option<Result<Source, String>>,
        (offset, broker): (Result<Option<StoredOffset>, String>, Result<Broker, String>),
        consumer: Option<Result<Consumer, String>>,
        processes: Vec<Result<Health, String>>,
    ) -> Self {
        let mut report = Self {
            healthy: true,
            problems: Vec::new(),
            notes: Vec::new(),
            connector: config.connector.clone(),
            offset: offset.into(),
            source: source.map(Part::from),
            broker: broker.into(),
            consumer: consumer.map(Part::from),
            processes: processes.into_iter().map(Part::from).collect(),
        };
        let (mut problems, mut notes) = (Vec::new(), Vec::new());
        report.judge_source(config, &mut problems, &mut notes);
        report.judge_broker(config, &mut problems, &mut notes);
        report.judge_consumer(&mut problems, &mut notes);
        for process in &report.processes {
            let Some(health) = process.found("process", &mut problems) else { continue };
            if let Some(reason) = &health.reason {
                problems.push(format!("{} is not ready: {reason}", health.command));
            }
        }
        report.healthy = problems.is_empty();
        (report.problems, report.notes) = (problems, notes);
        report
    }

    fn judge_source(&self, config: &Config, problems: &mut Vec<String>, notes: &mut Vec<String>) {
        let Some(part) = &self.source else {
            notes.push("source: source.url is not set".to_owned());
            return;
        };
        let Some(source) = part.found("source", problems) else { return };
        if let Some(backlog) = source.polling.as_ref().filter(|_| source.polled_alone()) {
            polling::judge(backlog, &config.polling, problems, notes);
        }
        if let Some(refusal) = &source.refusal {
            problems.push(format!("the connector cannot start: {refusal}"));
        }
        for finding in &source.findings {
            // the connector's concerns are nobody's where rows are polled
            if source.polled_alone() && !finding.code.starts_with("table") {
                continue;
            }
            match finding.severity {
                Severity::Warn => notes.push(finding.to_string()),
                _ => problems.push(finding.to_string()),
            }
        }
        if source.slot.is_some() && !source.slot_active {
            problems.push(format!("no connector is connected to slot `{}`", config.source.slot));
        }
    }

    fn judge_broker(&self, config: &Config, problems: &mut Vec<String>, notes: &mut Vec<String>) {
        let polled = matches!(&self.source, Some(Part::Found(source)) if source.polled_alone());
        let offset = self.offset.found("offset", problems);
        if let (Some(None), false) = (offset, polled) {
            notes.push(format!("no offset is stored for connector `{}` yet", self.connector));
        }
        let Some(broker) = self.broker.found("redis", problems) else { return };
        if broker.streams_incomplete {
            notes.push("redis holds too many keys to find all streams among them".to_owned());
        }
        let consumer = &config.consumer.options.consumer_id;
        for stream in &broker.streams {
            for group in stream.groups.iter().filter(|group| is_stuck(group)) {
                let text = format!(
                    "consumer `{}` does not read {}: {} pending, {} not delivered",
                    group.name,
                    stream.key,
                    group.pending,
                    group.lag.map_or("an unknown number".to_owned(), |lag| lag.to_string()),
                );
                // the groups of others are not this configuration's to mend
                if group.name == *consumer { problems.push(text) } else { notes.push(text) }
            }
            let read = config.naming();
            let configured =
                config.consumer.streams.iter().any(|name| read.keys(name).contains(&stream.key));
            if configured && !stream.groups.iter().any(|group| group.name == *consumer) {
                problems.push(format!("consumer `{consumer}` has no group in {}", stream.key));
            }
        }
    }

    fn judge_consumer(&self, problems: &mut Vec<String>, notes: &mut Vec<String>) {
        let Some(part) = &self.consumer else { return };
        let Some(consumer) = part.found("consumer", problems) else { return };
        if let Some(parked) = &consumer.oldest_parked {
            problems.push(format!(
                "consumer `{}` holds back {} events. The oldest is {} of {}/{} ({}, {} attempts){}",
                consumer.id,
                consumer.parked,
                parked.event_id,
                parked.aggregate_type,
                parked.aggregate_id,
                parked.cause,
                parked.attempts,
                parked.error.as_ref().map_or(String::new(), |error| format!(": {error}"))
            ));
        } else if consumer.parked > 0 {
            notes.push(format!(
                "consumer `{}` holds back {} events behind dead letters: see `outflow dead-letters`",
                consumer.id, consumer.parked
            ));
        }
        for (count, what) in
            [(consumer.open_conflicts, "conflict"), (consumer.open_dead_letters, "dead letter")]
        {
            if count > 0 {
                let plural = if count == 1 { "" } else { "s" };
                notes.push(format!("consumer `{}` has {count} open {what}{plural}", consumer.id));
            }
        }
        for lost in &consumer.lost {
            notes.push(format!(
                "{} lost {} entries before consumer `{}` had applied them, above {} up to {}, noticed {}: \
                 publish their events again (`outflow offsets reset --from-rows`, or docs/runbook.md, \
                 \"Entries were lost\")",
                lost.stream, lost.entries, consumer.id, lost.above_id, lost.up_to_id, lost.detected_at
            ));
        }
    }
}

/// Entries wait, and nobody asks for them.
fn is_stuck(group: &Group) -> bool {
    let waiting = group.pending > 0 || group.lag.is_some_and(|lag| lag > 0);
    waiting && group.idle_ms.is_none_or(|idle| idle > ABSENT_MS)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut facts = table();
        facts.add_row(["connector", &self.connector]);
        self.show_offset(&mut facts);
        self.show_source(&mut facts);
        self.show_consumer(&mut facts);
        for process in &self.processes {
            let Part::Found(health) = process else { continue };
            let ready = if health.ready { "ready" } else { "not ready" };
            facts.add_row(["process", &format!("{} {}, {ready}", health.command, health.version)]);
        }
        writeln!(f, "{facts}")?;
        self.show_streams(f)?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        writeln!(f, "{}", if self.healthy { "healthy" } else { "not healthy" })
    }
}

impl Report {
    fn show_offset(&self, facts: &mut Table) {
        let Part::Found(Some(offset)) = &self.offset else { return };
        let position = offset.position.as_deref().unwrap_or("none yet");
        facts.add_row(["position", position]);
        facts.add_row([
            "offset",
            &format!(
                "{} in {}, epoch {}, stored {}",
                offset.end_lsn, offset.store, offset.epoch, offset.at
            ),
        ]);
        facts.add_row(["published", &offset.published_count.to_string()]);
        if offset.snapshot {
            facts.add_row(["snapshot", "under way"]);
        }
    }

    fn show_source(&self, facts: &mut Table) {
        let Some(Part::Found(source)) = &self.source else { return };
        if let Some(backlog) = &source.polling {
            for (name, value) in polling::facts(backlog) {
                facts.add_row([name, &value]);
            }
        }
        if source.polled_alone() {
            return;
        }
        facts.add_row(["log end", &source.wal_lsn]);
        if let Some(slot) = &source.slot {
            let active = if source.slot_active { "active" } else { "not active" };
            let confirmed = slot.confirmed_flush_lsn.as_deref().unwrap_or("nothing");
            let wal = slot.wal_status.as_deref().unwrap_or("unknown");
            facts.add_row(["slot", &format!("{active}, confirmed {confirmed}, log {wal}")]);
            facts.add_row(["log kept", &bytes(slot.retained_bytes)]);
        }
        facts.add_row(["lag", &bytes(source.lag_bytes)]);
    }

    fn show_consumer(&self, facts: &mut Table) {
        let Some(Part::Found(consumer)) = &self.consumer else { return };
        facts.add_row(["consumer", &consumer.id]);
        facts.add_row(["applied", &consumer.applied.to_string()]);
        facts.add_row(["open conflicts", &consumer.open_conflicts.to_string()]);
        facts.add_row(["open dead letters", &consumer.open_dead_letters.to_string()]);
        facts.add_row(["held back", &consumer.parked.to_string()]);
        if consumer.lost_entries > 0 {
            facts.add_row(["lost entries", &consumer.lost_entries.to_string()]);
        }
    }

    fn show_streams(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part::Found(broker) = &self.broker else { return Ok(()) };
        if broker.streams.is_empty() {
            return Ok(());
        }
        let mut streams = table();
        streams.set_header(["stream", "entries", "last position", "consumer", "pending", "lag"]);
        for stream in &broker.streams {
            let last = stream.last_position.as_ref().unwrap_or(&stream.last_id);
            let entries = stream.entries.to_string();
            if stream.groups.is_empty() {
                streams.add_row([stream.key.as_str(), &entries, last, "", "", ""]);
            }
            for group in &stream.groups {
                let lag = group.lag.map_or("?".to_owned(), |lag| lag.to_string());
                let pending = group.pending.to_string();
                streams.add_row([stream.key.as_str(), &entries, last, &group.name, &pending, &lag]);
            }
        }
        writeln!(f, "{streams}")
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// For people: `1.5 MiB`.
fn bytes(count: Option<u64>) -> String {
    let Some(count) = count else { return "unknown".to_owned() };
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in units {
        if count >= size {
            let tenths = u128::from(count) * 10 / u128::from(size);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{count} B")
}
