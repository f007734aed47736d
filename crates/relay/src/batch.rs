//! Batches: entries encoded for Redis as they come in, published all or nothing.
//!
//! Encoding happens here, straight from the bytes of the WAL into the command that goes out. The
//! texts that all events of a transaction share (id prefix, position prefix, commit time) are
//! made once per transaction.

mod encoder;

pub use encoder::Encoder;

use std::collections::HashMap;

use jiff::Timestamp;
use outflow_event::EntryId;
use redis::{Arg, Cmd, Pipeline};

use crate::offset::Offset;

/// Entries to be published together, in order, and the offset that covers them.
#[derive(Debug)]
pub struct Batch {
    pipe: Pipeline,
    entries: usize,
    streams: Vec<StreamSpan>,
    by_key: HashMap<Vec<u8>, usize>,
    bytes: usize,
    events: u64,
    dead_letters: u64,
    oldest_commit: Option<Timestamp>,
    offset: Option<Offset>,
}

/// What a batch adds to one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpan {
    /// The stream's key.
    pub key: Vec<u8>,
    /// Id of the first and of the last entry; `None` where Redis makes the ids.
    pub ids: Option<(EntryId, EntryId)>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            pipe: new_pipeline(0),
            entries: 0,
            streams: Vec::new(),
            by_key: HashMap::new(),
            bytes: 0,
            events: 0,
            dead_letters: 0,
            oldest_commit: None,
            offset: None,
        }
    }

    /// Number of entries, dead letters included.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes of all keys, ids, fields and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Events among the entries.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Dead letters among the entries.
    #[must_use]
    pub fn dead_letters(&self) -> u64 {
        self.dead_letters
    }

    /// Commit time of the oldest event.
    #[must_use]
    pub fn oldest_commit(&self) -> Option<Timestamp> {
        self.oldest_commit
    }

    /// What the batch adds to each stream.
    #[must_use]
    pub fn streams(&self) -> &[StreamSpan] {
        &self.streams
    }

    /// The offset that covers everything up to the last entry; `None` until it is closed.
    #[must_use]
    pub fn offset(&self) -> Option<&Offset> {
        self.offset.as_ref()
    }

    /// Closes the batch with the offset that covers it.
    pub fn cover(&mut self, offset: Offset) {
        self.offset = Some(offset);
    }

    /// Adds the command that writes the offset to Redis: as the last one of the transaction it
    /// finds the entries in place.
    pub fn seal(&mut self, offset_command: Cmd) {
        self.pipe.add_command(offset_command);
    }

    /// Entries and offset as one transaction (Redis documentation, "Transactions"). The first
    /// [`Batch::entries`] replies belong to the entries.
    #[must_use]
    pub fn transaction(&self) -> &Pipeline {
        &self.pipe
    }

    /// Key, id and event id of every entry, in order.
    pub fn written(&self) -> impl Iterator<Item = WrittenEntry<'_>> {
        self.pipe.cmd_iter().take(self.entries).filter_map(|command| {
            let mut args = command.args_iter().filter_map(|arg| match arg {
                Arg::Simple(bytes) => Some(bytes),
                _ => None,
            });
            // XADD key id event_id <value> ..: the encoder puts the event id first
            let (_, key, id) = (args.next()?, args.next()?, args.next()?);
            let (_, event_id) = (args.next()?, args.next()?);
            Some(WrittenEntry { key, id, event_id })
        })
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.pipe = new_pipeline(self.entries.min(MAX_KEPT_COMMANDS));
        self.streams.clear();
        self.by_key.clear();
        (self.entries, self.bytes, self.events, self.dead_letters) = (0, 0, 0, 0);
        (self.oldest_commit, self.offset) = (None, None);
    }

    fn push(&mut self, command: Cmd, bytes: usize, key: &[u8], id: Option<EntryId>) {
        self.pipe.add_command(command);
        self.entries += 1;
        self.bytes += bytes;
        let known = self.by_key.get(key).and_then(|&index| self.streams.get_mut(index));
        match (known, id) {
            (Some(StreamSpan { ids: Some((_, last)), .. }), Some(id)) => *last = id,
            (Some(_), _) => {}
            (None, id) => {
                self.by_key.insert(key.to_vec(), self.streams.len());
                self.streams.push(StreamSpan { key: key.to_vec(), ids: id.map(|id| (id, id)) });
            }
        }
    }
}

/// What identifies an entry of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenEntry<'a> {
    /// The stream's key.
    pub key: &'a [u8],
    /// The entry's id, or `*`.
    pub id: &'a [u8],
    /// The event's id.
    pub event_id: &'a [u8],
}

/// A batch that was once huge does not keep its memory for ever.
const MAX_KEPT_COMMANDS: usize = 1024;

fn new_pipeline(capacity: usize) -> Pipeline {
    let mut pipe = Pipeline::with_capacity(capacity + 1);
    pipe.atomic().ignore_errors();
    pipe
}

#[cfg(test)]
mod tests;
