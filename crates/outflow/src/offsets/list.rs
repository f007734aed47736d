//! `outflow offsets list`: the stored offset and the ledger, beside what the slot still keeps.

use std::fmt;
use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use outflow_event::Lsn;
use outflow_pgoutput::ConnectOptions;
use outflow_relay::config::SourceConfig;
use outflow_relay::offset::{ConfiguredStore, Offset, OffsetStore as _};
use serde::Serialize;

use super::ListArgs;
use crate::config::Config;

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Report {
    connector: String,
    /// Where offsets are kept.
    store: &'static str,
    /// The offset from which the connector resumes.
    stored: Option<Line>,
    /// Why the stored offset cannot be shown.
    unreadable: Option<String>,
    /// Earlier offsets, newest first.
    ledger: Vec<Line>,
    /// The slot.
    slot: Option<Slot>,
    /// Why there is nothing about the slot.
    slot_unknown: Option<String>,
}

/// An offset.
#[derive(Debug, Serialize)]
struct Line {
    at: String,
    system_identifier: String,
    timeline: u32,
    epoch: u8,
    position: Option<String>,
    end_lsn: String,
    commit_time: Option<String>,
    published_count: u64,
    /// The initial snapshot was under way.
    snapshot: bool,
    /// What the source still keeps of the log after it.
    log: Log,
}

/// What the slot keeps of the log after an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Log {
    /// At or above the confirmed position: the stream goes on from there.
    Streams,
    /// Kept, and confirmed: the slot has passed it and cannot go back.
    Passed,
    /// The slot does not keep it.
    NotKept,
    /// Its positions belong to another cluster or an earlier epoch.
    OtherHistory,
    /// The source or the slot cannot be looked at.
    Unknown,
}

impl Log {
    fn words(self) -> &'static str {
        match self {
            Self::Streams => "streams from here",
            Self::Passed => "kept, slot is past it",
            Self::NotKept => "not kept",
            Self::OtherHistory => "another history",
            Self::Unknown => "unknown",
        }
    }
}

/// What the source says.
#[derive(Debug, Clone, Serialize)]
struct Slot {
    name: String,
    system_identifier: String,
    restart_lsn: Option<String>,
    confirmed_flush_lsn: Option<String>,
    wal_status: Option<String>,
    #[serde(skip)]
    restart: Option<Lsn>,
    #[serde(skip)]
    confirmed: Option<Lsn>,
}

impl Slot {
    fn log_after(&self, offset: &Offset, epoch: u8) -> Log {
        if offset.system_identifier != self.system_identifier || offset.epoch.0 != epoch {
            return Log::OtherHistory;
        }
        if self.wal_status.as_deref() == Some("lost") {
            return Log::NotKept;
        }
        match (self.confirmed, self.restart) {
            (Some(confirmed), _) if offset.end_lsn >= confirmed => Log::Streams,
            (_, Some(restart)) if offset.end_lsn >= restart => Log::Passed,
            (Some(_), _) => Log::NotKept,
            (None, _) => Log::Unknown,
        }
    }
}

/// Runs the command.
pub(super) async fn run(args: &ListArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let connector = config.connector_config()?;
    let mut store = ConfiguredStore::new(&connector);
    let (stored, unreadable) = match store.load().await {
        Err(error @ outflow_relay::Error::BadRecord { .. }) => (None, Some(error.to_string())),
        loaded => (loaded?, None),
    };
    let ledger = match args.at {
        None => store.ledger(args.limit).await?,
        Some(time) => {
            let all = usize::try_from(connector.offset.ledger_entries).unwrap_or(usize::MAX);
            // the ledger is trimmed in blocks and may hold some more
            let lines = store.ledger(all.saturating_mul(2).max(1000)).await?;
            lines.into_iter().find(|line| line.at <= time).into_iter().collect()
        }
    };
    let found = crate::status::in_time(look(&connector.source, &connector.source.connect)).await;
    let (slot, slot_unknown) = match found {
        Ok(Some(slot)) => (Some(slot), None),
        Ok(None) => (None, Some(format!("slot `{}` does not exist", connector.source.slot))),
        Err(why) => (None, Some(why)),
    };
    // the epoch of the present: lines of an earlier one have positions of a history that was left
    let epoch = stored.as_ref().or(ledger.first()).map_or(0, |offset| offset.epoch.0);
    let line = |offset: &Offset| {
        let log = slot.as_ref().map_or(Log::Unknown, |slot| slot.log_after(offset, epoch));
        Line::new(offset, log)
    };
    let report = Report {
        connector: connector.connector.clone(),
        store: store.name(),
        stored: stored.as_ref().map(line),
        unreadable,
        ledger: ledger.iter().map(line).collect(),
        slot,
        slot_unknown,
    };
    if args.json {
        crate::output::json(&report)?;
    } else {
        crate::output::text(&report.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(source: &SourceConfig, connect: &ConnectOptions) -> anyhow::Result<Option<Slot>> {
    let client = crate::database::connect(connect).await?;
    let row = client
        .query_opt(
            "SELECT c.system_identifier::text, s.restart_lsn, s.confirmed_flush_lsn, s.wal_status \
             FROM pg_catalog.pg_replication_slots s, pg_catalog.pg_control_system() c \
             WHERE s.slot_name = $1",
            &[&source.slot],
        )
        .await?;
    row.map(|row| {
        let (restart, confirmed): (Option<Lsn>, Option<Lsn>) = (row.try_get(1)?, row.try_get(2)?);
        Ok(Slot {
            name: source.slot.clone(),
            system_identifier: row.try_get(0)?,
            restart_lsn: restart.map(|lsn| lsn.to_string()),
            confirmed_flush_lsn: confirmed.map(|lsn| lsn.to_string()),
            wal_status: row.try_get(3)?,
            restart,
            confirmed,
        })
    })
    .transpose()
}

impl Line {
    fn new(offset: &Offset, log: Log) -> Self {
        Self {
            at: offset.at.to_string(),
            system_identifier: offset.system_identifier.clone(),
            timeline: offset.timeline,
            epoch: offset.epoch.0,
            position: offset.position.map(|position| position.to_string()),
            end_lsn: offset.end_lsn.to_string(),
            commit_time: offset.commit_time.map(|time| time.to_string()),
            published_count: offset.published_count,
            snapshot: offset.snapshot.is_some(),
            log,
        }
    }

    fn cells(&self, kind: &'static str) -> [String; 8] {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        [
            kind.to_owned(),
            self.at.clone(),
            self.epoch.to_string(),
            text(&self.position),
            self.end_lsn.clone(),
            text(&self.commit_time),
            self.published_count.to_string(),
            if self.snapshot { "snapshot".to_owned() } else { self.log.words().to_owned() },
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        let (at, end) = ("at", "end LSN");
        table.set_header(["", at, "epoch", "position", end, "commit time", "published", "log"]);
        if let Some(stored) = &self.stored {
            table.add_row(stored.cells("stored"));
        }
        for line in &self.ledger {
            table.add_row(line.cells("ledger"));
        }
        if table.is_empty() {
            writeln!(f, "connector `{}` has no offset in {}", self.connector, self.store)?;
        } else {
            writeln!(f, "{table}")?;
        }
        if let Some(why) = &self.unreadable {
            writeln!(f, "problem: {why}")?;
        }
        if let Some(why) = &self.slot_unknown {
            return writeln!(f, "note: what the log still holds is not known: {why}");
        }
        let Some(slot) = &self.slot else { return Ok(()) };
        let confirmed = slot.confirmed_flush_lsn.as_deref().unwrap_or("nothing");
        writeln!(
            f,
            "note: the stream can only go forward from the slot's confirmed position, {confirmed}. \
             Events from before that come again from the rows of the outbox alone: `outflow \
             offsets reset --from-rows`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outflow_event::Epoch;

    fn offset(end_lsn: u64) -> Offset {
        Offset {
            system_identifier: "7".into(),
            timeline: 1,
            slot: "ob".into(),
            epoch: Epoch(1),
            position: None,
            end_lsn: Lsn::from(end_lsn),
            commit_time: None,
            published_count: 0,
            at: jiff::Timestamp::UNIX_EPOCH,
            snapshot: None,
        }
    }

    #[test]
    fn a_line_says_what_the_slot_can_still_do_with_it() {
        let slot = Slot {
            name: "ob".into(),
            system_identifier: "7".into(),
            restart_lsn: None,
            confirmed_flush_lsn: None,
            wal_status: Some("reserved".into()),
            restart: Some(Lsn::from(100)),
            confirmed: Some(Lsn::from(200)),
        };
        assert_eq!(slot.log_after(&offset(200), 1), Log::Streams);
        assert_eq!(slot.log_after(&offset(199), 1), Log::Passed);
        assert_eq!(slot.log_after(&offset(99), 1), Log::NotKept);
        assert_eq!(slot.log_after(&offset(200), 2), Log::OtherHistory);
        let other = Offset { system_identifier: "8".into(), ..offset(200) };
        assert_eq!(slot.log_after(&other, 1), Log::OtherHistory);
        let lost = Slot { wal_status: Some("lost".into()), ..slot };
        assert_eq!(lost.log_after(&offset(200), 1), Log::NotKept);
    }
}
