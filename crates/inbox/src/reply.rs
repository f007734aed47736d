//! Replies of Redis taken apart. Entries are decoded from where they stand in the reply.
//!
//! Fields stay a list: a field that stands twice must be seen (a map would hide it).

use std::collections::HashMap;

use outflow_broker::Reply;
use outflow_event::{Entry, EntryId, entry};
use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::broker::{Pending, Progress};
use crate::delivery::{for_people, unstorable};
use crate::lost::Range;

/// Entries that are decoded in one go; then others have their turn, above all the connection on which the
/// database may have answered meanwhile.
const AT_ONCE: usize = 100;

/// One entry of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: EntryId,
    pub(crate) content: Content,
}

/// What an entry is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// An event. It takes so many bytes in its stream.
    Event(Box<Entry>, usize),
    /// No event of ours, for this reason. It is rare, and read again rather than copied here.
    Malformed(String),
    /// Deleted or trimmed while it was pending.
    Gone,
}

/// A reply that does not have the form that Redis documents.
pub(crate) fn unexpected(command: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Parse, "unexpected form of the reply", command.to_owned()))
}

/// The reply of XREADGROUP: entries by stream key. Nothing to read is an empty list.
pub(crate) async fn read<'a>(reply: &Reply<'a>) -> RedisResult<Vec<(&'a [u8], Vec<Record>)>> {
    let failed = || unexpected("XREADGROUP");
    let streams = match reply {
        Reply::Nil => &[],
        reply => reply.items().ok_or_else(failed)?,
    };
    let mut read = Vec::with_capacity(streams.len());
    for stream in streams {
        let Some([key, records]) = stream.items() else { return Err(failed()) };
        let (key, records) = (key.bytes().ok_or_else(failed)?, records.items().ok_or_else(failed)?);
        let mut decoded = Vec::with_capacity(records.len());
        for some in records.chunks(AT_ONCE) {
            decoded.extend(self::records(some).ok_or_else(failed)?);
            tokio::task::yield_now().await;
        }
        read.push((key, decoded));
    }
    Ok(read)
}

/// What XAUTOCLAIM took over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// Where to go on; zero when the whole pending list was seen.
    pub(crate) cursor: EntryId,
    pub(crate) records: Vec<Record>,
    /// Entries that were pending and do not exist any more (since Redis 7.0).
    pub(crate) deleted: Vec<EntryId>,
}

/// The reply of XAUTOCLAIM.
pub(crate) fn claimed(value: Value) -> RedisResult<Claimed> {
    parse_claimed(value).ok_or_else(|| unexpected("XAUTOCLAIM"))
}

fn parse_claimed(value: Value) -> Option<Claimed> {
    let mut parts = array(value)?.into_iter();
    let cursor = entry_id(parts.next()?)?;
    let records = listed(&parts.next()?)?;
    let deleted = match parts.next() {
        Some(deleted) => array(deleted)?.into_iter().map(entry_id).collect::<Option<_>>()?,
        None => Vec::new(),
    };
    Some(Claimed { cursor, records, deleted })
}

/// A list of entries, as XRANGE and others give it.
pub(crate) fn listed(value: &Value) -> Option<Vec<Record>> {
    records(Reply::from(value).items()?)
}

fn records(records: &[Reply<'_>]) -> Option<Vec<Record>> {
    records
        .iter()
        // Redis 6.2 leaves a nil in XAUTOCLAIM's list for a deleted entry, without its id
        .filter(|record| **record != Reply::Nil)
        .map(|record| {
            let [id, fields] = record.items()? else { return None };
            let id = std::str::from_utf8(id.bytes()?).ok()?.parse().ok()?;
            let content = match fields {
                Reply::Nil => Content::Gone,
                fields => decode(id, fields.items()?)?,
            };
            Some(Record { id, content })
        })
        .collect()
}

/// `None`: these are no fields.
fn decode(id: EntryId, flat: &[Reply<'_>]) -> Option<Content> {
    let (pairs, []) = flat.as_chunks() else { return None };
    let mut size = 0;
    for part in flat {
        size += part.bytes()?.len();
    }
    let fields = pairs
        .iter()
        .map(|[name, value]| (name.bytes().unwrap_or_default(), value.bytes().unwrap_or_default()));
    let reason = match entry::decode(id, fields) {
        Ok(entry) => match unstorable(&entry) {
            None => return Some(Content::Event(Box::new(entry), size)),
            Some(reason) => reason,
        },
        Err(malformed) => malformed.to_string(),
    };
    Some(Content::Malformed(for_people(&reason)))
}

/// The fields of the first entry that XRANGE gives: name, value, name, value, ...
pub(crate) fn raw(range: &Value) -> Option<Vec<Vec<u8>>> {
    let range = Reply::from(range);
    let Some(first) = range.items()?.first() else { return Some(Vec::new()) };
    let [_, fields] = first.items()? else { return None };
    fields.items()?.iter().map(|part| part.bytes().map(<[u8]>::to_vec)).collect()
}

/// The value of `name` in a flat list of names and values, or a map.
pub(crate) fn lookup(value: Value, name: &str) -> Option<Value> {
    let is_it = |key: &Value| match key {
        Value::BulkString(bytes) => bytes == name.as_bytes(),
        Value::SimpleString(text) => text == name,
        _ => false,
    };
    if let Value::Map(pairs) = value {
        return pairs.into_iter().find(|(key, _)| is_it(key)).map(|(_, value)| value);
    }
    let mut flat = array(value)?.into_iter();
    while let (Some(key), Some(value)) = (flat.next(), flat.next()) {
        if is_it(&key) {
            return Some(value);
        }
    }
    None
}

/// The reply of XPENDING (extended).
pub(crate) fn pending(value: Value) -> Option<HashMap<EntryId, Pending>> {
    array(value)?
        .into_iter()
        .map(|entry| {
            // id, worker, idle time, deliveries
            let mut parts = array(entry)?.into_iter();
            let (id, worker) = (entry_id(parts.next()?)?, bytes(parts.next()?)?);
            let times = integer(parts.nth(1)?)?;
            Some((id, Pending { worker, times }))
        })
        .collect()
}

/// Whether a worker other than `me` has entries, by the reply of XPENDING (summary).
pub(crate) fn is_pending_elsewhere(pending: Value, me: &str) -> Option<bool> {
    // number, lowest id, highest id, and [name, number] of each worker that has any
    let Value::Array(workers) = array(pending)?.into_iter().nth(3)? else { return Some(false) };
    let mut names = workers.into_iter().map(|worker| bytes(array(worker)?.into_iter().next()?));
    names.try_fold(false, |found, name| Some(found || name? != me.as_bytes()))
}

/// The replies of XPENDING (summary) and XINFO GROUPS of one instant.
pub(crate) fn progress(pending: Value, groups: Value, group: &str) -> Option<Progress> {
    let mut pending = array(pending)?.into_iter();
    let count = integer(pending.next()?)?;
    let lowest = pending.next()?;
    let info = array(groups)?.into_iter().find(|info| {
        lookup(info.clone(), "name").and_then(bytes).is_some_and(|name| name == group.as_bytes())
    })?;
    let done = if count == 0 {
        lookup(info.clone(), "last-delivered-id").and_then(entry_id)?
    } else {
        entry_id(lowest)?.before()
    };
    let undelivered = lookup(info, "lag").and_then(integer);
    Some(Progress { done, lag: undelivered.map(|undelivered| undelivered + count) })
}

/// What a group will never be given, by the replies of XINFO STREAM and XINFO GROUPS of one instant.
pub(crate) fn gap(info: Value, groups: Value, group: &str) -> Option<Range> {
    let of = |name: &str| lookup(info.clone(), name);
    let added = of("entries-added").and_then(integer)?;
    let length = of("length").and_then(integer)?;
    let last = of("last-generated-id").and_then(entry_id)?;
    let first = of("first-entry").and_then(id_of);
    let up_to = first.map_or(last, EntryId::before);
    let group = array(groups)?.into_iter().find(|info| {
        lookup(info.clone(), "name").and_then(bytes).is_some_and(|name| name == group.as_bytes())
    })?;
    let above = lookup(group.clone(), "last-delivered-id").and_then(entry_id)?;
    // nil where the group was set to an id in the middle: how many it has read is not known
    let read = lookup(group, "entries-read").and_then(integer)?;
    let entries = added.checked_sub(read)?.checked_sub(length)?;
    (above < up_to && entries > 0).then_some(Range { above, up_to, entries })
}

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) last: EntryId,
    /// How many entries were ever added that it will not be given any more.
    pub(crate) count: u64,
}

/// Where `group` stands, by the replies of XINFO STREAM and XINFO GROUPS of one instant; `None` where
/// that cannot be told: in the middle of a stream. The group's own counter is not asked, for Redis 7.0
/// goes on by one where a gap was passed.
pub(crate) fn delivered(info: &Value, groups: Value, group: &str) -> Option<Delivered> {
    let of = |name: &str| lookup(info.clone(), name);
    let added: u64 = of("entries-added").and_then(integer)?;
    let length = of("length").and_then(integer)?;
    let newest = of("last-generated-id").and_then(entry_id)?;
    let first = of("first-entry").and_then(id_of);
    let info = array(groups)?.into_iter().find(|info| {
        lookup(info.clone(), "name").and_then(bytes).is_some_and(|name| name == group.as_bytes())
    })?;
    let last = lookup(info, "last-delivered-id").and_then(entry_id)?;
    if last >= newest {
        return Some(Delivered { last, count: added });
    }
    let in_front = first.is_none_or(|first| last < first);
    in_front.then_some(Delivered { last, count: added.checked_sub(length)? })
}

/// Whether `group` is among those of XINFO GROUPS.
pub(crate) fn has_group(groups: Value, group: &str) -> bool {
    let name = |info: Value| lookup(info, "name").and_then(bytes);
    array(groups).into_iter().flatten().any(|info| name(info).as_deref() == Some(group.as_bytes()))
}

/// The id of an entry, as it begins.
pub(crate) fn id_of(entry: Value) -> Option<EntryId> {
    array(entry)?.into_iter().next().and_then(entry_id)
}

/// An entry id.
pub(crate) fn entry_id(value: Value) -> Option<EntryId> {
    std::str::from_utf8(&bytes(value)?).ok()?.parse().ok()
}

fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

pub(crate) fn integer(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
