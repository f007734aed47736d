//! Encodes events and dead letters into a batch.

use std::io::Write as _;

use jiff::Timestamp;
use outflow_event::entry::{self, Origin, field};
use outflow_event::{EntryId, Epoch, EventRef, Lsn, Position, PositionError, StreamNaming};
use redis::Cmd;

use super::Batch;
use crate::config::EntryIdMode;
use crate::offset::dead_letter_key;
use crate::outbox::RowFault;

/// Encodes the events of one transaction after the other.
#[derive(Debug)]
pub struct Encoder {
    naming: StreamNaming,
    mode: EntryIdMode,
    epoch: Epoch,
    dead_letter_key: Vec<u8>,
    transaction: Transaction,
    key: Vec<u8>,
    id: Vec<u8>,
    position: Vec<u8>,
}

/// Room for the arguments of an entry with every field, and for their bytes without the payload:
/// enough for one allocation each, as a rule.
const USUAL_ARGS: usize = 24;
const USUAL_BYTES: usize = 384;

/// In place of an id (Redis documentation, XADD).
const REDIS_MAKES_IT: &[u8] = b"*";

/// What all events of a transaction share.
#[derive(Debug, Default)]
struct Transaction {
    commit_time: Option<Timestamp>,
    commit_time_text: Vec<u8>,
    /// `<major>-` of the entry ids.
    id_prefix: Vec<u8>,
    /// `<commit LSN>:` of the positions.
    position_prefix: Vec<u8>,
}

impl Encoder {
    /// An encoder for the streams of `naming`.
    #[must_use]
    pub fn new(naming: StreamNaming, mode: EntryIdMode, epoch: Epoch, connector: &str) -> Self {
        Self {
            naming,
            mode,
            epoch,
            dead_letter_key: dead_letter_key(connector).into_bytes(),
            transaction: Transaction::default(),
            key: Vec::new(),
            id: Vec::new(),
            position: Vec::new(),
        }
    }

    /// The following events belong to the transaction that committed at `commit_lsn`.
    ///
    /// `commit_time` is `None` for rows of a snapshot, whose commit times are not known.
    ///
    /// # Errors
    /// When the LSN does not fit into an entry id.
    pub fn begin(
        &mut self,
        commit_lsn: Lsn,
        commit_time: Option<Timestamp>,
    ) -> Result<(), PositionError> {
        let id = EntryId::at(self.epoch, Position::new(commit_lsn, 0))?;
        let transaction = &mut self.transaction;
        transaction.commit_time = commit_time;
        rewrite(&mut transaction.id_prefix, format_args!("{}-", id.major));
        rewrite(&mut transaction.position_prefix, format_args!("{commit_lsn}:"));
        transaction.commit_time_text.clear();
        if let Some(time) = commit_time {
            rewrite(&mut transaction.commit_time_text, format_args!("{time:.6}"));
        }
        Ok(())
    }

    /// Adds an event of the current transaction.
    ///
    /// # Errors
    /// When its position does not fit into an entry id.
    pub fn event(
        &mut self,
        batch: &mut Batch,
        position: Position,
        event: &EventRef<'_>,
    ) -> Result<(), PositionError> {
        let id = self.address(Some(position))?;
        let commit_time = self.transaction.commit_time_text.as_slice();
        let commit_time = (!commit_time.is_empty()).then_some(commit_time);
        let origin = Origin { position: &self.position, commit_time };
        add(&self.naming, &mut self.key, &self.id, Some(origin), batch, id, event);
        if batch.oldest_commit.is_none() {
            batch.oldest_commit = self.transaction.commit_time;
        }
        Ok(())
    }

    /// Adds an event of which only the row is known: the same entry without position and commit
    /// time, under an id that Redis makes.
    pub fn event_of_unknown_commit(&mut self, batch: &mut Batch, event: &EventRef<'_>) {
        add(&self.naming, &mut self.key, REDIS_MAKES_IT, None, batch, None, event);
    }

    /// Sets a row aside that cannot become an entry: its position where that is known, what is wrong
    /// with it, and its columns, except a payload that is too large.
    ///
    /// # Errors
    /// When its position does not fit into an entry id.
    pub fn dead_letter<'a>(
        &mut self,
        batch: &mut Batch,
        position: Option<Position>,
        fault: &RowFault,
        event_id: &[u8],
        columns: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), PositionError> {
        let id = self.address(position)?;
        let reason = fault.to_string();
        let mut command = Cmd::new();
        command.arg("XADD").arg(self.dead_letter_key.as_slice()).arg(self.id.as_slice());
        command.arg(field::EVENT_ID).arg(event_id).arg("reason").arg(&reason);
        if position.is_some() {
            command.arg(field::POSITION).arg(self.position.as_slice());
            command.arg(field::COMMIT_TIME).arg(self.transaction.commit_time_text.as_slice());
        }
        let mut bytes = reason.len();
        for (name, value) in columns {
            if let RowFault::PayloadTooLarge { bytes, .. } = fault
                && value.len() >= *bytes
            {
                continue;
            }
            bytes += name.len() + value.len();
            command.arg([b"column.", name].concat()).arg(value);
        }
        batch.push(command, bytes, &self.dead_letter_key, id);
        batch.dead_letters += 1;
        Ok(())
    }

    /// Writes id and position of an entry into the scratch buffers.
    fn address(&mut self, position: Option<Position>) -> Result<Option<EntryId>, PositionError> {
        self.id.clear();
        let Some(position) = position else {
            self.id.extend_from_slice(REDIS_MAKES_IT);
            return Ok(None);
        };
        self.position.clone_from(&self.transaction.position_prefix);
        append(&mut self.position, format_args!("{}", position.index));
        match self.mode {
            EntryIdMode::Auto => {
                self.id.extend_from_slice(REDIS_MAKES_IT);
                Ok(None)
            }
            EntryIdMode::Lsn => {
                self.id.clone_from(&self.transaction.id_prefix);
                append(&mut self.id, format_args!("{}", position.index));
                EntryId::at(self.epoch, position).map(Some)
            }
        }
    }
}

/// Encodes one event into `batch`; `key` is scratch space.
fn add(
    naming: &StreamNaming,
    key: &mut Vec<u8>,
    id_text: &[u8],
    origin: Option<Origin<'_>>,
    batch: &mut Batch,
    id: Option<EntryId>,
    event: &EventRef<'_>,
) {
    key.clear();
    naming.write_key(event.aggregate_type, naming.partition(event.aggregate_id), key);
    let payload = event.payload.map_or(0, <[u8]>::len);
    let mut command = Cmd::with_capacity(USUAL_ARGS, payload + USUAL_BYTES);
    command.arg("XADD").arg(key.as_slice()).arg(id_text);
    let mut bytes = key.len() + id_text.len();
    entry::encode(event, origin, |name, value| {
        bytes += name.len() + value.len();
        command.arg(name).arg(value);
    });
    batch.push(command, bytes, key, id);
    batch.events += 1;
}

fn rewrite(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    buffer.clear();
    append(buffer, text);
}

fn append(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // writing to a Vec cannot fail
    let _ = buffer.write_fmt(text);
}
