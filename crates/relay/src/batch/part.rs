//! One transaction of a batch.

use redis::{Arg, Cmd, Pipeline};

/// Entries that are added all or nothing.
#[derive(Debug)]
pub struct Part {
    pipe: Pipeline,
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
    pub(super) fn new() -> Self {
        Self { pipe: new_pipeline(0), entries: 0 }
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Whether the offset is among the commands.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.pipe.len() > self.entries
    }

    /// The entries, and the offset if the batch was sealed with one, as one transaction (Redis
    /// documentation, "Transactions"). The first [`Part::entries`] replies belong to the entries.
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

    pub(super) fn push(&mut self, command: Cmd) {
        self.pipe.add_command(command);
        self.entries += 1;
    }

    pub(super) fn seal(&mut self, offset_command: Cmd) {
        self.pipe.add_command(offset_command);
    }

    pub(super) fn clear(&mut self) {
        self.pipe = new_pipeline(self.entries.min(MAX_KEPT_COMMANDS));
        self.entries = 0;
    }
}

/// A batch that was once huge does not keep its memory for ever.
const MAX_KEPT_COMMANDS: usize = 1024;

fn new_pipeline(capacity: usize) -> Pipeline {
    let mut pipe = Pipeline::with_capacity(capacity + 1);
    pipe.atomic().ignore_errors();
    pipe
}
