//! One transaction of a batch.

use outflow_broker::Packed;
use redis::Cmd;

/// Entries that are added all or nothing.
#[derive(Debug, Default)]
pub struct Part {
    commands: Packed,
    entries: usize,
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

impl Part {
    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Whether the offset is among the commands.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.commands.len() > self.entries
    }

    /// The entries, and the offset if the batch was sealed with one: what is sent as one transaction.
    /// The first [`Part::entries`] replies belong to the entries.
    #[must_use]
    pub fn commands(&self) -> &Packed {
        &self.commands
    }

    /// Key, id and event id of every entry, in order, read out of the commands: not for every batch.
    pub fn written(&self) -> impl Iterator<Item = WrittenEntry<'_>> {
        self.commands.commands().take(self.entries).filter_map(|arguments| {
            // XADD key id event_id <value> ..: the encoder puts the event id first
            let [_, key, id, _, event_id, ..] = *arguments else { return None };
            Some(WrittenEntry { key, id, event_id })
        })
    }

    /// Where the command goes that adds one more entry.
    pub(super) fn entry(&mut self) -> &mut Packed {
        self.entries += 1;
        &mut self.commands
    }

    pub(super) fn seal(&mut self, offset_command: &Cmd) {
        self.commands.add(offset_command);
    }

    pub(super) fn clear(&mut self) {
        self.commands.clear();
        self.entries = 0;
    }
}
