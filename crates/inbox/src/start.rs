//! Where a consumer that is new to a stream begins, found in the stream itself.

use std::fmt;
use std::time::UNIX_EPOCH;

use outflow_broker::Connection;
use outflow_event::{AgeSearch, EntryId};
use redis::{RedisResult, Value};

use crate::broker;
use crate::config::Start;
use crate::error::{ConfigError, Error};
use crate::reply::{self, Content, Record};
use crate::time::micros_since_epoch;

/// Entries of one page while a search walks over entries without a commit time.
const PAGE: usize = 500;

/// A stream that a consumer is new to, and that holds entries already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldStream {
    /// Its key.
    pub stream: String,
    /// Entries that it holds.
    pub entries: u64,
    /// The first of them, as far as it is still there.
    pub first: EntryId,
    /// The last id that the stream gave.
    pub last: EntryId,
    /// A group of the consumer's name is there, though the database knows nothing of it.
    pub has_group: bool,
}

/// A consumer is new to streams that hold entries already, and nobody said where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartNeeded {
    /// The consumer.
    pub consumer_id: String,
    /// The streams, each with at least one entry.
    pub streams: Vec<HeldStream>,
}

impl fmt::Display for StartNeeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: u64 = self.streams.iter().map(|held| held.entries).sum();
        write!(f, "consumer `{}` is new to ", self.consumer_id)?;
        for (n, held) in self.streams.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({} entries)", held.stream, held.entries)?;
        }
        write!(
            f,
            ": say where it begins. `--from beginning` applies all {entries} entries that are there, a \
             full re-projection; `--from now` applies none of them, only what comes later; \
             `--from 0/16B3748:3` (a position) or an entry id applies those after it; \
             `--from 2026-01-31T12:00:00Z` those that committed at that time or later"
        )?;
        if self.streams.iter().any(|held| held.has_group) {
            write!(
                f,
                ". Redis has a group of this name: was the consumer's database replaced by an \
                 empty one, or does another consumer use the name?"
            )?;
        }
        Ok(())
    }
}

/// What `stream` holds; `None`: there is no entry in it.
pub(crate) async fn held(
    redis: &mut Connection,
    stream: &str,
    group: &str,
) -> RedisResult<Option<HeldStream>> {
    let exists: bool = redis::cmd("EXISTS").arg(stream).query_async(redis).await?;
    if !exists {
        return Ok(None);
    }
    let info: Value = redis::cmd("XINFO").arg("STREAM").arg(stream).query_async(redis).await?;
    let groups: Value = redis::cmd("XINFO").arg("GROUPS").arg(stream).query_async(redis).await?;
    let Some(first) = reply::lookup(info.clone(), "first-entry").and_then(reply::id_of) else {
        return Ok(None);
    };
    let unexpected = || reply::unexpected("XINFO STREAM");
    let last = reply::lookup(info.clone(), "last-generated-id").and_then(reply::entry_id);
    Ok(Some(HeldStream {
        stream: stream.to_owned(),
        entries: reply::lookup(info, "length").and_then(reply::integer).ok_or_else(unexpected)?,
        first,
        last: last.ok_or_else(unexpected)?,
        has_group: reply::has_group(groups, group),
    }))
}

/// The id after which a consumer begins in `held`.
///
/// # Errors
/// Also when the streams' ids are not made of positions, and a position was given.
pub(crate) async fn resolve(
    redis: &mut Connection,
    held: &HeldStream,
    from: Start,
) -> Result<EntryId, Error> {
    match from {
        Start::Beginning => Ok(EntryId::ZERO),
        Start::Now => Ok(held.last),
        Start::After(id) => Ok(id),
        Start::Position(position) => {
            let (epoch, _) = held.last.to_position();
            match first_position(redis, held).await.map_err(broker::failed)? {
                Some((id, own)) if id.to_position().1 == own => {
                    EntryId::at(epoch, position).map_err(|error| not_usable(from, error))
                }
                _ => Err(not_usable(from, "the ids of this stream are not made of positions")),
            }
        }
        Start::Time(time) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
            committed_before(redis, held, micros).await.map_err(broker::failed)
        }
    }
}

fn not_usable(from: Start, why: impl fmt::Display) -> Error {
    let allowed = "expected \"beginning\", \"now\", an entry id or a time for these streams";
    tracing::debug!("{from} cannot be used: {why}");
    Error::Config(ConfigError { key: "from", value: format!("\"{from}\""), allowed })
}

/// The first entry with the position that it carries.
async fn first_position(
    redis: &mut Connection,
    held: &HeldStream,
) -> RedisResult<Option<(EntryId, outflow_event::Position)>> {
    let page = page(redis, &held.stream, EntryId::ZERO, held.last, 1).await?;
    Ok(page.into_iter().find_map(|record| {
        let Content::Event(entry, _) = record.content else { return None };
        Some((entry.id, entry.position?))
    }))
}

/// The highest id such that no entry up to it committed at `micros` or later: a search by halves over
/// the ids, as commit times rise with them.
///
/// Entries without a commit time (the rows of a snapshot) count with the next entry that has one, and
/// those after the last such entry as new: rather too much than too little.
async fn committed_before(
    redis: &mut Connection,
    held: &HeldStream,
    micros: i64,
) -> RedisResult<EntryId> {
    let mut search = AgeSearch::new(held.first, held.last);
    while let Some((above, up_to)) = search.next() {
        match next_commit(redis, &held.stream, above, up_to).await? {
            Some((id, committed)) if committed < micros => search.older(id),
            Some(_) | None => search.newer(),
        }
    }
    Ok(search.found())
}

/// The first entry above `after` that has a commit time, up to `until`.
async fn next_commit(
    redis: &mut Connection,
    stream: &str,
    mut after: EntryId,
    until: EntryId,
) -> RedisResult<Option<(EntryId, i64)>> {
    let mut count = 1;
    loop {
        let records = page(redis, stream, after, until, count).await?;
        let Some(last) = records.last() else { return Ok(None) };
        after = last.id;
        for record in records {
            let Content::Event(entry, _) = record.content else { continue };
            if let Some(committed) = entry.commit_time.as_deref().and_then(micros_since_epoch) {
                return Ok(Some((entry.id, committed)));
            }
        }
        count = PAGE;
    }
}

/// At most `count` entries above `after`, up to `until`.
pub(crate) async fn page(
    redis: &mut Connection,
    stream: &str,
    after: EntryId,
    until: EntryId,
    count: usize,
) -> RedisResult<Vec<Record>> {
    let mut command = redis::cmd("XRANGE");
    command.arg(stream).arg(format!("({after}")).arg(until.to_string()).arg("COUNT").arg(count);
    let found: Value = command.query_async(redis).await?;
    reply::listed(&found).ok_or_else(|| reply::unexpected("XRANGE"))
}

/// Says what a new consumer will do, before it does it.
pub(crate) fn announce(consumer_id: &str, from: Start, held: &HeldStream, begins: EntryId) {
    let HeldStream { stream, entries, .. } = held;
    match from {
        Start::Beginning => tracing::info!(
            consumer = consumer_id,
            stream,
            entries,
            "new consumer: a full re-projection, all entries that the stream holds are applied"
        ),
        Start::Now => tracing::info!(
            consumer = consumer_id,
            stream,
            entries,
            "new consumer: the entries that the stream holds are not applied, only what comes later"
        ),
        Start::After(_) | Start::Position(_) | Start::Time(_) => tracing::info!(
            consumer = consumer_id,
            stream,
            entries,
            from = %from,
            after = %begins,
            "new consumer: of the entries that the stream holds those after an id are applied"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(major: u64, minor: u64) -> EntryId {
        EntryId { major, minor }
    }

    #[test]
    fn what_each_choice_would_do_is_said_with_numbers() {
        let held = HeldStream {
            stream: "outflow:order".to_owned(),
            entries: 1234,
            first: id(1, 0),
            last: id(9, 0),
            has_group: false,
        };
        let needed = StartNeeded { consumer_id: "books".to_owned(), streams: vec![held.clone()] };
        let text = needed.to_string();
        assert!(text.contains("outflow:order (1234 entries)"), "{text}");
        assert!(text.contains("applies all 1234 entries"), "{text}");
        assert!(!text.contains("a group of this name"), "{text}");
        let streams = vec![HeldStream { has_group: true, ..held }];
        let text = StartNeeded { streams, ..needed }.to_string();
        assert!(text.contains("a group of this name"), "{text}");
    }
}
