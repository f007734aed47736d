//! Batches: entries encoded for Redis as they come in, published all or nothing.
//!
//! Encoding happens here, straight from the bytes of the WAL into the request that goes out. The
//! texts that all events of a transaction share (id prefix, position prefix, commit time) are
//! made once per transaction.

mod encoder;
mod part;

pub use encoder::Encoder;
pub use part::{Part, WrittenEntry};

use std::collections::HashMap;

use jiff::Timestamp;
use outflow_broker::{Packed, Slot, Target};
use outflow_event::EntryId;
use redis::Cmd;

use crate::offset::{Offset, ResumePoint};

/// Entries to be published together, in order, and the offset that covers them.
#[derive(Debug)]
pub struct Batch {
    parts: Vec<Part>,
    /// Which part holds a slot's entries; `None` where one transaction reaches every key.
    by_slot: Option<HashMap<Slot, usize>>,
    streams: Vec<StreamSpan>,
    /// Where a key stands among streams and parts.
    by_key: HashMap<Vec<u8>, (usize, usize)>,
    bytes: usize,
    events: u64,
    dead_letters: u64,
    oldest_commit: Option<Timestamp>,
    offset: Option<Offset>,
    claim: Option<u64>,
}

/// What tells a batch from every other one of the same relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Where the stream of events goes on after it.
    Offset(ResumePoint),
    /// Number of the claim that its rows belong to.
    Claim(u64),
}

/// What a batch adds to one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpan {
    /// The stream's key.
    pub key: Vec<u8>,
    /// Id of the first and of the last entry; `None` where Redis makes the ids.
    pub ids: Option<(EntryId, EntryId)>,
}

impl Batch {
    /// An empty batch for `target`.
    #[must_use]
    pub fn new(target: &Target) -> Self {
        Self::empty(target.is_cluster())
    }

    fn empty(cluster: bool) -> Self {
        Self {
            parts: Vec::new(),
            by_slot: cluster.then(HashMap::new),
            streams: Vec::new(),
            by_key: HashMap::new(),
            bytes: 0,
            events: 0,
            dead_letters: 0,
            oldest_commit: None,
            offset: None,
            claim: None,
        }
    }

    /// An empty batch for the same target.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::empty(self.by_slot.is_some())
    }

    /// Number of entries, dead letters included.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.parts.iter().map(Part::entries).sum()
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

    /// Closes the batch with the number of the claim that it publishes.
    pub(crate) fn claimed(&mut self, number: u64) {
        self.claim = Some(number);
    }

    /// What tells this batch from others; `None` until it is closed.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let offset = self.offset.as_ref().map(|offset| Identity::Offset(offset.resume_point()));
        offset.or(self.claim.map(Identity::Claim))
    }

    /// Closes the batch with the offset that covers it.
    pub fn cover(&mut self, offset: Offset) {
        self.offset = Some(offset);
    }

    /// Adds the command that writes the offset to Redis: as the last one of the transaction it
    /// finds the entries in place. Only where one transaction reaches every key.
    pub fn seal(&mut self, offset_command: &Cmd) {
        debug_assert!(self.by_slot.is_none(), "an offset lives in one slot, the entries in many");
        if self.parts.is_empty() {
            self.parts.push(Part::default());
        }
        if let Some(part) = self.parts.first_mut() {
            part.seal(offset_command);
        }
    }

    /// The transactions that the batch consists of: one, or in a cluster one for each slot that
    /// gets entries. They are independent of each other, and the next batch waits for all of them.
    pub fn parts(&self) -> impl Iterator<Item = &Part> + Clone {
        self.parts.iter().filter(|part| !part.commands().is_empty())
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        match &mut self.by_slot {
            None => self.parts.iter_mut().for_each(Part::clear),
            Some(by_slot) => {
                by_slot.clear();
                self.parts.clear();
            }
        }
        self.streams.clear();
        self.by_key.clear();
        (self.bytes, self.events, self.dead_letters) = (0, 0, 0);
        (self.oldest_commit, self.offset, self.claim) = (None, None, None);
    }

    /// Has `write` add the command of one more entry, of so many bytes, to the stream `key`.
    fn entry(
        &mut self,
        key: &[u8],
        id: Option<EntryId>,
        bytes: usize,
        write: impl FnOnce(&mut Packed),
    ) {
        self.bytes += bytes;
        let (stream, part) = match self.by_key.get(key) {
            Some(&known) => known,
            None => {
                let new = (self.streams.len(), self.part_of(key));
                self.by_key.insert(key.to_vec(), new);
                self.streams.push(StreamSpan { key: key.to_vec(), ids: id.map(|id| (id, id)) });
                new
            }
        };
        let ids = self.streams.get_mut(stream).and_then(|stream| stream.ids.as_mut());
        if let (Some((_, last)), Some(id)) = (ids, id) {
            *last = id;
        }
        if part == self.parts.len() {
            self.parts.push(Part::default());
        }
        if let Some(part) = self.parts.get_mut(part) {
            write(part.entry());
        }
    }

    /// Index of the part for `key`; at most one beyond the last.
    fn part_of(&mut self, key: &[u8]) -> usize {
        let new = self.parts.len();
        self.by_slot.as_mut().map_or(0, |slots| *slots.entry(Slot::for_key(key)).or_insert(new))
    }
}

#[cfg(test)]
mod tests;
