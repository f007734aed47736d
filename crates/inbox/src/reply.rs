//! Replies of Redis taken apart, moving every byte string instead of copying it.
//!
//! Fields stay a list: a field that stands twice must be seen (a map would hide it).

use std::collections::HashMap;

use outflow_event::EntryId;
use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::broker::{Pending, Progress};
use crate::lost::Range;

/// One entry of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: EntryId,
    /// `None`: the entry was deleted or trimmed while it was pending.
    pub(crate) fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// A reply that does not have the form that Redis documents.
pub(crate) fn unexpected(command: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Parse, "unexpected form of the reply", command.to_owned()))
}

/// The reply of XREADGROUP: entries by stream key. Nothing to read is an empty list.
pub(crate) fn read(value: Value) -> RedisResult<Vec<(Vec<u8>, Vec<Record>)>> {
    let failed = || unexpected("XREADGROUP");
    let pairs = match value {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(pairs) => pairs,
        Value::Array(streams) => streams
            .into_iter()
            .map(|stream| {
                let mut parts = array(stream).ok_or_else(failed)?.into_iter();
                Ok((parts.next().ok_or_else(failed)?, parts.next().ok_or_else(failed)?))
            })
            .collect::<RedisResult<_>>()?,
        _ => return Err(failed()),
    };
    pairs
        .into_iter()
        .map(|(key, records)| {
            Ok((bytes(key).ok_or_else(failed)?, self::records(records).ok_or_else(failed)?))
        })
        .collect()
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
    let records = records(parts.next()?)?;
    let deleted = match parts.next() {
        Some(deleted) => array(deleted)?.into_iter().map(entry_id).collect::<Option<_>>()?,
        None => Vec::new(),
    };
    Some(Claimed { cursor, records, deleted })
}

/// A list of entries, as XRANGE and others give it.
pub(crate) fn records(value: Value) -> Option<Vec<Record>> {
    array(value)?
        .into_iter()
        // Redis 6.2 leaves a nil in XAUTOCLAIM's list for a deleted entry, without its id
        .filter(|record| !matches!(record, Value::Nil))
        .map(|record| {
            let mut parts = array(record)?.into_iter();
            let id = entry_id(parts.next()?)?;
            let fields = match parts.next()? {
                Value::Nil => None,
                fields => Some(self::fields(fields)?),
            };
            Some(Record { id, fields })
        })
        .collect()
}

fn fields(value: Value) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    if let Value::Map(pairs) = value {
        return pairs
            .into_iter()
            .map(|(name, value)| Some((bytes(name)?, bytes(value)?)))
            .collect();
    }
    let flat = array(value)?;
    let mut fields = Vec::with_capacity(flat.len() / 2);
    let mut flat = flat.into_iter();
    while let Some(name) = flat.next() {
        fields.push((bytes(name)?, bytes(flat.next()?)?));
    }
    Some(fields)
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
        before(entry_id(lowest)?)
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
    let first = of("first-entry")
        .and_then(|first| records(Value::Array(vec![first])))
        .and_then(|records| records.into_iter().next());
    let up_to = first.map_or(last, |first| first.id.before());
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
    let first = of("first-entry")
        .and_then(|first| records(Value::Array(vec![first])))
        .and_then(|records| records.into_iter().next());
    let info = array(groups)?.into_iter().find(|info| {
        lookup(info.clone(), "name").and_then(bytes).is_some_and(|name| name == group.as_bytes())
    })?;
    let last = lookup(info, "last-delivered-id").and_then(entry_id)?;
    if last >= newest {
        return Some(Delivered { last, count: added });
    }
    let in_front = first.is_none_or(|first| last < first.id);
    in_front.then_some(Delivered { last, count: added.checked_sub(length)? })
}

/// Whether `group` is among those of XINFO GROUPS.
pub(crate) fn has_group(groups: Value, group: &str) -> bool {
    let name = |info: Value| lookup(info, "name").and_then(bytes);
    array(groups).into_iter().flatten().any(|info| name(info).as_deref() == Some(group.as_bytes()))
}

/// The highest id below `id`.
fn before(id: EntryId) -> EntryId {
    match (id.minor.checked_sub(1), id.major.checked_sub(1)) {
        (Some(minor), _) => EntryId { major: id.major, minor },
        (None, Some(major)) => EntryId { major, minor: u64::MAX },
        (None, None) => EntryId::ZERO,
    }
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
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn id(major: u64, minor: u64) -> EntryId {
        EntryId { major, minor }
    }

    #[test]
    fn c71_c78_a_read_keeps_doubled_fields_and_vanished_entries() {
        let records = Value::Array(vec![
            Value::Array(vec![
                text("1-0"),
                Value::Array(vec![text("a"), text("1"), text("a"), text("2")]),
            ]),
            Value::Array(vec![text("2-0"), Value::Nil]),
        ]);
        let expected = vec![
            Record {
                id: id(1, 0),
                fields: Some(vec![(b"a".to_vec(), b"1".to_vec()), (b"a".to_vec(), b"2".to_vec())]),
            },
            Record { id: id(2, 0), fields: None },
        ];
        let resp2 = Value::Array(vec![Value::Array(vec![text("s"), records.clone()])]);
        let resp3 = Value::Map(vec![(text("s"), records)]);
        assert_eq!(read(resp3).unwrap(), read(resp2.clone()).unwrap());
        assert_eq!(read(resp2).unwrap(), [(b"s".to_vec(), expected)]);
        assert_eq!(read(Value::Nil).unwrap(), []);
        assert!(read(Value::Int(1)).is_err());
    }

    #[test]
    fn c71_a_claim_reports_deleted_entries() {
        let entry = Value::Array(vec![text("3-0"), Value::Array(vec![text("a"), text("1")])]);
        let reply = |rest: &[Value]| {
            let mut parts = vec![text("4-0"), Value::Array(vec![entry.clone(), Value::Nil])];
            parts.extend_from_slice(rest);
            claimed(Value::Array(parts)).unwrap()
        };
        let before_7 = reply(&[]);
        assert_eq!((before_7.cursor, before_7.records.len()), (id(4, 0), 1));
        assert_eq!(reply(&[Value::Array(vec![text("1-0")])]).deleted, [id(1, 0)]);
    }

    #[test]
    fn c70_a_gap_is_what_was_added_less_what_was_read_less_what_is_there() {
        let info = |first: Value, length: i64| {
            let facts = [("length", Value::Int(length)), ("last-generated-id", text("9-0"))];
            let more = [("entries-added", Value::Int(9)), ("first-entry", first)];
            let all = facts.into_iter().chain(more);
            Value::Array(all.flat_map(|(name, value)| [text(name), value]).collect())
        };
        let group = |read: Value| {
            let facts = [("name", text("g")), ("last-delivered-id", text("3-0"))];
            let all = facts.into_iter().chain([("entries-read", read)]);
            let group = all.flat_map(|(name, value)| [text(name), value]).collect();
            Value::Array(vec![Value::Array(group)])
        };
        let entry = |id: &str| Value::Array(vec![text(id), Value::Array(Vec::new())]);
        let three = || group(Value::Int(3));
        assert_eq!(gap(info(entry("4-0"), 6), three(), "g"), None);
        let lost = Range { above: id(3, 0), up_to: id(6, u64::MAX), entries: 3 };
        assert_eq!(gap(info(entry("7-0"), 3), three(), "g"), Some(lost));
        let all = Range { above: id(3, 0), up_to: id(9, 0), entries: 6 };
        assert_eq!(gap(info(Value::Nil, 0), three(), "g"), Some(all));
        assert_eq!(gap(info(entry("7-0"), 3), group(Value::Nil), "g"), None);
        assert_eq!(gap(info(entry("7-0"), 3), three(), "other"), None);
    }

    #[test]
    fn what_others_have_pending_is_told_from_ones_own() {
        let summary = |workers: &[&str]| {
            let each = |name: &&str| Value::Array(vec![text(name), text("2")]);
            let workers = Value::Array(workers.iter().map(each).collect());
            Value::Array(vec![Value::Int(2), text("7-0"), text("9-1"), workers])
        };
        let none = Value::Array(vec![Value::Int(0), Value::Nil, Value::Nil, Value::Nil]);
        assert_eq!(is_pending_elsewhere(none, "me"), Some(false));
        assert_eq!(is_pending_elsewhere(summary(&["me"]), "me"), Some(false));
        assert_eq!(is_pending_elsewhere(summary(&["a", "me"]), "me"), Some(true));
        assert_eq!(is_pending_elsewhere(summary(&["me", "me:2"]), "me"), Some(true));
        assert_eq!(is_pending_elsewhere(Value::Nil, "me"), None);
    }

    #[test]
    fn progress_ends_below_the_lowest_pending_entry() {
        let group = |lag: Value| {
            Value::Array(vec![Value::Array(vec![
                text("name"),
                text("g"),
                text("last-delivered-id"),
                text("9-1"),
                text("lag"),
                lag,
            ])])
        };
        let none = Value::Array(vec![Value::Int(0), Value::Nil, Value::Nil, Value::Nil]);
        let idle = progress(none.clone(), group(Value::Int(3)), "g").unwrap();
        assert_eq!(idle, Progress { done: id(9, 1), lag: Some(3) });
        assert_eq!(progress(none, group(Value::Int(3)), "other"), None);
        let some = Value::Array(vec![Value::Int(2), text("7-0"), text("9-1")]);
        let busy = progress(some, group(Value::Nil), "g").unwrap();
        assert_eq!(busy, Progress { done: id(6, u64::MAX), lag: None });
        assert_eq!(before(id(7, 3)), id(7, 2));
        assert_eq!(before(EntryId::ZERO), EntryId::ZERO);
    }
}
