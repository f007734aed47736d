//! `outflow offsets reset`: says what it would do, and with `--yes` does it.

use std::fmt;
use std::process::ExitCode;

use anyhow::Context;
use outflow_event::EntryId;
use outflow_pgoutput::ReplicationClient;
use outflow_relay::config::EntryIdMode;
use outflow_relay::offset::reset::{Known, ResetMode, ResetPlan, plan};
use outflow_relay::offset::{ConfiguredStore, Offset, OffsetStore as _};
use outflow_relay::{Error, resume, snapshot};
use serde::Serialize;

use super::ResetArgs;
use crate::config::Config;
use crate::failure::{REFUSED, Refused};

/// What is shown.
#[derive(Debug, Serialize)]
struct Report {
    connector: String,
    /// `from_rows` or `from_slot`.
    way: &'static str,
    /// Whether it was done.
    done: bool,
    /// The stored offset before.
    stored: Option<Point>,
    /// Why the stored offset cannot be read.
    unreadable: Option<String>,
    /// The offset after.
    new: Point,
    /// Why the epoch rises.
    epoch_rises: Option<String>,
    slot: String,
    /// The slot's confirmed position.
    confirmed_flush_lsn: Option<String>,
    /// The slot is dropped at the next start.
    drops_slot: bool,
    /// What is not delivered.
    gap: Option<Gap>,
    table: String,
    /// Rows of the outbox now.
    rows: Option<String>,
}

/// An offset in short.
#[derive(Debug, Serialize)]
struct Point {
    resume_point: String,
    end_lsn: String,
    epoch: u8,
    at: String,
}

#[derive(Debug, Serialize)]
struct Gap {
    from: String,
    to: String,
    bytes: u64,
    #[serde(skip)]
    text: String,
}

/// Runs the command.
pub(super) async fn run(args: &ResetArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let connector = config.connector_config()?;
    let (source, mode) = (&connector.source, mode(args));
    let sql = crate::database::connect(&source.connect).await?;
    // held until the end: no connector begins a snapshot meanwhile
    snapshot::lock(&sql, &source.slot).await.map_err(|error| match error {
        Error::NotYet(wait) => anyhow::Error::new(Refused(format!("{wait}: stop it first"))),
        other => other.into(),
    })?;
    let mut store = ConfiguredStore::new(&connector);
    let (stored, unreadable) = match store.load().await {
        Err(error @ Error::BadRecord { .. }) => (None, Some(error.to_string())),
        loaded => (loaded?, None),
    };
    let line = match &unreadable {
        // its last line still tells epoch and history
        Some(_) => store.ledger(1).await.ok().and_then(|lines| lines.into_iter().next()),
        None => None,
    };
    let known = Known {
        offset: stored.as_ref().or(line.as_ref()),
        unreadable: unreadable.is_some(),
        last_id: match connector.sink.entry_id {
            EntryIdMode::Lsn => last_id(config).await?,
            EntryIdMode::Auto => None,
        },
    };
    let mut link = ReplicationClient::connect(&source.connect)
        .await
        .with_context(|| source.connect.redacted())?;
    let facts = resume::inspect(&mut link, &source.slot, known.offset).await?;
    let plan = plan(mode, &facts, known, source.snapshot)?;
    let rows = match mode {
        ResetMode::FromRows => snapshot::outbox_rows(&sql, &source.table).await.ok(),
        ResetMode::FromSlot => None,
    };
    if args.yes {
        store.replace(stored.as_ref(), &plan.offset).await?;
    }
    let report = Report {
        way: if mode == ResetMode::FromRows { "from_rows" } else { "from_slot" },
        done: args.yes,
        stored: stored.as_ref().map(Point::of),
        unreadable,
        slot: source.slot.clone(),
        table: source.table.to_string(),
        rows: rows.map(|rows| rows.to_string()),
        ..Report::of(&connector.connector, &plan)
    };
    if args.json {
        crate::output::json(&report)?;
    } else {
        crate::output::text(&report.to_string())?;
    }
    Ok(if args.yes { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

fn mode(args: &ResetArgs) -> ResetMode {
    if args.from_rows { ResetMode::FromRows } else { ResetMode::FromSlot }
}

/// The highest last id of the streams: what the new ids must lie above.
async fn last_id(config: &Config) -> anyhow::Result<Option<EntryId>> {
    let ids = crate::status::last_ids(config).await.context("looking at the streams")?;
    Ok(ids.into_iter().max())
}

impl Point {
    fn of(offset: &Offset) -> Self {
        Self {
            resume_point: offset.resume_point().to_string(),
            end_lsn: offset.end_lsn.to_string(),
            epoch: offset.epoch.0,
            at: offset.at.to_string(),
        }
    }
}

impl Report {
    fn of(connector: &str, plan: &ResetPlan) -> Self {
        Self {
            connector: connector.to_owned(),
            way: "",
            done: false,
            stored: None,
            unreadable: None,
            new: Point::of(&plan.offset),
            epoch_rises: plan.raised.clone(),
            slot: String::new(),
            confirmed_flush_lsn: plan.slot.map(|lsn| lsn.to_string()),
            drops_slot: plan.drops_slot,
            gap: plan.gap.map(|gap| Gap {
                from: gap.from.to_string(),
                to: gap.to.to_string(),
                bytes: gap.bytes(),
                text: gap.to_string(),
            }),
            table: String::new(),
            rows: None,
        }
    }

    fn all_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, table) = (&self.slot, &self.table);
        let replace =
            if self.drops_slot { "drops the slot and creates it anew" } else { "creates the slot" };
        let rows = self.rows.as_ref().map(|rows| format!(" ({rows} now)")).unwrap_or_default();
        writeln!(f, "at its next start the connector")?;
        writeln!(f, "  - {replace}: `{slot}`")?;
        writeln!(f, "  - publishes every row that is in {table} by then{rows}")?;
        writeln!(f, "  - streams what commits after that")?;
        writeln!(
            f,
            "rows that were published before come again, under new entry ids and with the same \
             event ids: consumers with an inbox recognise them as duplicates, others apply them \
             again. Not delivered: events that are not in the outbox (rows that were cleaned up, \
             logical messages) and were not published before"
        )
    }

    fn at_slot(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = self.confirmed_flush_lsn.as_deref().unwrap_or("its position");
        writeln!(
            f,
            "at its next start the connector streams from {position}, where slot `{}` stands",
            self.slot
        )?;
        match &self.gap {
            Some(gap) => writeln!(
                f,
                "NOT DELIVERED: events that committed from {}. Those that are still in {} can be \
                 emitted again afterwards (docs/runbook.md, \"Publish rows again\"), or use \
                 --from-rows instead",
                gap.text, self.table
            ),
            None => writeln!(
                f,
                "what lies between the stored offset and the slot cannot be told; what the slot \
                 delivers may have been published before, with the same event ids"
            ),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.stored, &self.unreadable) {
            (Some(stored), _) => writeln!(
                f,
                "connector `{}` has published up to {}, stored {}",
                self.connector, stored.resume_point, stored.at
            )?,
            (None, Some(why)) => writeln!(f, "{why}")?,
            (None, None) => writeln!(f, "connector `{}` has no offset", self.connector)?,
        }
        if self.way == "from_rows" { self.all_rows(f) } else { self.at_slot(f) }?;
        match &self.epoch_rises {
            Some(why) => writeln!(f, "entry ids begin a new epoch, {}: {why}", self.new.epoch)?,
            None => writeln!(f, "entry ids stay in epoch {}", self.new.epoch)?,
        }
        if self.done {
            writeln!(f, "done: start the connector with `outflow relay`")
        } else {
            writeln!(f, "nothing was changed: to do it, run this again with --yes")
        }
    }
}
