//! Encodes events and dead letters into a batch.

use std::borrow::Cow;
use std::io::Write as _;

use jiff::Timestamp;
use outflow_event::entry::{self, Origin, field};
use outflow_event::{EntryId, Epoch, EventRef, Lsn, Position, PositionError, StreamNaming};

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
        let mut fields: Vec<(Cow<'_, [u8]>, &[u8])> = vec![
            (field::EVENT_ID.as_bytes().into(), event_id),
            (b"reason".into(), reason.as_bytes()),
        ];
        if position.is_some() {
            let commit_time = self.transaction.commit_time_text.as_slice();
            fields.push((field::POSITION.as_bytes().into(), &self.position));
            fields.push((field::COMMIT_TIME.as_bytes().into(), commit_time));
        }
        let is_too_large = |value: &[u8]| matches!(fault, RowFault::PayloadTooLarge { bytes, .. } if value.len() >= *bytes);
        let columns = columns.filter(|(_, value)| !is_too_large(value));
        fields.extend(columns.map(|(name, value)| ([b"column.", name].concat().into(), value)));
        let bytes = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        batch.entry(&self.dead_letter_key, id, bytes, |commands| {
            let mut command = commands.command(3 + 2 * fields.len());
            command.arg(b"XADD").arg(&self.dead_letter_key).arg(&self.id);
            for (name, value) in &fields {
                command.arg(name).arg(value);
            }
        });
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
        append_number(&mut self.position, position.index);
        match self.mode {
            EntryIdMode::Auto => {
                self.id.extend_from_slice(REDIS_MAKES_IT);
                Ok(None)
            }
            EntryIdMode::Lsn => {
                self.id.clone_from(&self.transaction.id_prefix);
                append_number(&mut self.id, position.index);
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
    // counted first: a command begins with the number of its arguments
    let (mut fields, mut bytes) = (0, key.len() + id_text.len());
    entry::encode(event, origin, |name, value| {
        fields += 1;
        bytes += name.len() + value.len();
    });
    batch.entry(key, id, bytes, |commands| {
        let mut command = commands.command(3 + 2 * fields);
        command.arg(b"XADD").arg(key).arg(id_text);
        entry::encode(event, origin, |name, value| {
            command.arg(name).arg(value);
        });
    });
    batch.events += 1;
}

fn rewrite(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    buffer.clear();
    // writing to a Vec cannot fail
    let _ = buffer.write_fmt(text);
}

/// For what every event has: twice as fast as the formatting of the standard library.
fn append_number(buffer: &mut Vec<u8>, number: u64) {
    buffer.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
