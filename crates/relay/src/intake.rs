//! Turns the messages of the log into entries of a batch, and keeps the offset that covers them.
//!
//! Pure: messages in, commands and an offset out. What the log says and the outbox does not mean
//! (updates, deletes, truncation, other tables) is counted, mentioned once, and passed over.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use outflow_event::{Epoch, Lsn, Position};
use outflow_pgoutput::message::{self, Begin, Commit, Insert, LogicalMessage, Message, Relation};
use tracing::warn;

use crate::assembler::{Assembler, Placement};
use crate::batch::{Batch, Encoder};
use crate::config::{ColumnNames, ConnectorConfig, TableName};
use crate::emitted::Emitted;
use crate::error::Error;
use crate::metrics;
use crate::offset::Offset;
use crate::outbox::{MissingColumns, RowFault, RowMap};

/// The state between the log and the batch.
#[derive(Debug)]
pub struct Intake {
    assembler: Assembler,
    encoder: Encoder,
    /// The tables of the publication, as last announced.
    tables: BTreeMap<u32, Shape>,
    table: TableName,
    columns: ColumnNames,
    message_prefix: Option<String>,
    max_payload: usize,
    /// The open transaction, until its first event made the encoder know it.
    pending: Option<Begin>,
    progress: Offset,
    mentioned: Mentioned,
}

/// What a table of the publication is to us.
#[derive(Debug)]
enum Shape {
    Outbox(RowMap),
    /// The outbox, without columns that the mapping needs. An error only once a row of it is to
    /// be published: a transaction may have changed the table after rows that are published.
    Unmapped(MissingColumns),
    Other,
}

/// What has been said once and need not be said again.
#[derive(Debug, Default)]
struct Mentioned(Vec<String>);

impl Mentioned {
    fn once(&mut self, what: impl Into<String>) -> bool {
        let what = what.into();
        if self.0.contains(&what) || self.0.len() >= Self::LIMIT {
            return false;
        }
        self.0.push(what);
        true
    }

    /// Kinds of remarks are few; tables of a foreign publication may be many.
    const LIMIT: usize = 100;
}

impl Intake {
    /// An intake that goes on after `progress`.
    #[must_use]
    pub fn new(config: &ConnectorConfig, progress: Offset) -> Self {
        let point = progress.resume_point();
        Self {
            assembler: Assembler::resume_at(point.lsn, point.published),
            encoder: Encoder::new(
                config.sink.naming.clone(),
                config.sink.entry_id,
                progress.epoch,
                &config.connector,
            ),
            tables: BTreeMap::new(),
            table: config.source.table.clone(),
            columns: config.source.columns.clone(),
            message_prefix: config.source.message_prefix.clone(),
            max_payload: config.source.max_payload,
            pending: None,
            progress,
            mentioned: Mentioned::default(),
        }
    }

    /// The offset that covers everything taken in so far.
    #[must_use]
    pub fn progress(&self) -> &Offset {
        &self.progress
    }

    /// How old the last event was at `clock`: by one clock, the server's, which also says when a transaction
    /// committed. Zero where that is not known, and for a clock that was put back.
    #[must_use]
    pub fn age_at(&self, clock: message::Timestamp) -> Duration {
        let commit = self.progress.commit_time.map(Timestamp::as_microsecond);
        let age = commit.map_or(0, |commit| clock.unix_micros().saturating_sub(commit));
        Duration::from_micros(u64::try_from(age).unwrap_or(0))
    }

    /// The epoch of the entries.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.progress.epoch
    }

    /// Takes in one message.
    ///
    /// # Errors
    /// [`Error::Refused`] when the outbox's shape does not fit the mapping; [`Error::Protocol`]
    /// when the messages make no sense. Nothing of the message has been taken in: what the batch
    /// holds may be published, then the link must be dropped.
    pub fn accept(&mut self, message: &Message<'_>, batch: &mut Batch) -> Result<(), Error> {
        match message {
            Message::Insert(insert) => self.insert(insert, batch),
            Message::Begin(begin) => {
                self.assembler.begin(begin.final_lsn)?;
                self.pending = Some(*begin);
                Ok(())
            }
            Message::Commit(commit) => self.commit(commit),
            Message::Relation(relation) => {
                self.relation(relation);
                Ok(())
            }
            Message::Message(message) => self.logical_message(message, batch),
            Message::Update(update) => {
                self.ignore("UPDATE", update.relation);
                Ok(())
            }
            Message::Delete(delete) => {
                self.ignore("DELETE", delete.relation);
                Ok(())
            }
            Message::Truncate(truncate) => {
                truncate.relations().for_each(|oid| self.ignore("TRUNCATE", oid));
                Ok(())
            }
            // where a transaction came from and what a type is called change nothing for us
            Message::Origin(_) | Message::Type(_) => Ok(()),
            other => Err(Error::Protocol(format!("a message that is not known here: {other:?}"))),
        }
    }

    /// The server has sent everything below `wal_end`. Between transactions that is a place to
    /// resume from, which keeps an idle outbox from holding back WAL.
    pub fn idle_at(&mut self, wal_end: Lsn) {
        if !self.assembler.in_transaction() && wal_end > self.progress.end_lsn {
            self.progress.end_lsn = wal_end;
        }
    }

    fn commit(&mut self, commit: &Commit) -> Result<(), Error> {
        self.assembler.commit(commit.commit_lsn)?;
        self.pending = None;
        if commit.end_lsn > self.progress.end_lsn {
            self.progress.end_lsn = commit.end_lsn;
        }
        Ok(())
    }

    fn relation(&mut self, relation: &Relation<'_>) {
        let ours = relation.namespace == self.table.schema && relation.name == self.table.name;
        let shape = if ours {
            let names: Vec<&str> = relation.columns().map(|column| column.name).collect();
            match RowMap::new(&self.columns, names, self.max_payload) {
                Ok(map) => Shape::Outbox(map),
                Err(missing) => Shape::Unmapped(missing),
            }
        } else {
            Shape::Other
        };
        self.tables.insert(relation.id, shape);
    }

    fn insert(&mut self, insert: &Insert<'_>, batch: &mut Batch) -> Result<(), Error> {
        let shape = self.tables.get(&insert.relation).ok_or_else(|| {
            let oid = insert.relation;
            Error::Protocol(format!("a row of relation {oid} that was never announced"))
        })?;
        if matches!(shape, Shape::Other) {
            self.ignore("INSERT", insert.relation);
            return Ok(());
        }
        let Placement::Publish(position) = self.assembler.event()? else { return Ok(()) };
        let map = match shape {
            Shape::Outbox(map) => map,
            Shape::Unmapped(missing) => return Err(Error::Refused(missing.to_string())),
            Shape::Other => return Ok(()),
        };
        begin_encoding(&mut self.encoder, &mut self.pending, &mut self.progress)?;
        let mut extra = Vec::new();
        match map.read(insert.new, &mut extra) {
            Ok(event) => self.encoder.event(batch, position, &event)?,
            Err(fault) => {
                let event_id = map.event_id(insert.new).unwrap_or_default();
                mention_fault(&fault, position, event_id);
                let columns = map.named(insert.new);
                self.encoder.dead_letter(batch, Some(position), &fault, event_id, columns)?;
            }
        }
        self.taken(position);
        Ok(())
    }

    fn logical_message(
        &mut self,
        message: &LogicalMessage<'_>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        if self.message_prefix.as_deref() != Some(message.prefix) {
            return Ok(());
        }
        if !message.transactional {
            metrics::ignored("message");
            if self.mentioned.once("message") {
                warn!(
                    prefix = message.prefix,
                    "messages outside of a transaction are not events and are ignored: emit with \
                     transactional = true"
                );
            }
            return Ok(());
        }
        let Placement::Publish(position) = self.assembler.event()? else { return Ok(()) };
        begin_encoding(&mut self.encoder, &mut self.pending, &mut self.progress)?;
        let emitted = Emitted::parse(message.content);
        let event = match &emitted {
            Ok(emitted) => emitted.parts().into_event(&[], self.max_payload),
            Err(fault) => Err(fault.clone()),
        };
        match event {
            Ok(event) => self.encoder.event(batch, position, &event)?,
            Err(fault) => {
                let event_id = emitted.as_ref().ok().and_then(|emitted| emitted.parts().event_id);
                let event_id = event_id.unwrap_or_default();
                mention_fault(&fault, position, event_id);
                let content = std::iter::once((&b"content"[..], message.content));
                self.encoder.dead_letter(batch, Some(position), &fault, event_id, content)?;
            }
        }
        self.taken(position);
        Ok(())
    }

    fn taken(&mut self, position: Position) {
        self.progress.position = Some(position);
        self.progress.published_count += 1;
    }

    fn ignore(&mut self, kind: &'static str, relation: u32) {
        metrics::ignored(kind);
        let ours =
            matches!(self.tables.get(&relation), Some(Shape::Outbox(_) | Shape::Unmapped(_)));
        if self.mentioned.once(format!("{kind} {ours}")) {
            let table = &self.table;
            if ours {
                warn!(%table, "{kind} on the outbox is ignored: only inserts are events");
            } else {
                warn!(
                    relation,
                    "the publication carries {kind} of a table that is not {table}: ignored; a \
                     publication for the outbox alone saves the server the work"
                );
            }
        }
    }
}

/// Lets the encoder know the open transaction when it turns out to have an event.
fn begin_encoding(
    encoder: &mut Encoder,
    pending: &mut Option<Begin>,
    progress: &mut Offset,
) -> Result<(), Error> {
    if let Some(begin) = pending.take() {
        let time = Timestamp::from_microsecond(begin.commit_time.unix_micros()).ok();
        encoder.begin(begin.final_lsn, time)?;
        progress.commit_time = time;
    }
    Ok(())
}

fn mention_fault(fault: &RowFault, position: Position, event_id: &[u8]) {
    let event_id = String::from_utf8_lossy(event_id);
    warn!(%position, %event_id, "set aside as a dead letter of the connector: {fault}");
}

#[cfg(test)]
mod tests;
