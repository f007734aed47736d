//! Redis: the streams of the connector, their groups, and what consumers hold.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use outflow_broker::Connection;
use outflow_event::{AgeSearch, EntryId, entry};
use redis::{Value, cmd};
use serde::{Deserialize, Serialize};

use super::floor::{Facts, Group, Hold};
use crate::error::Error;
use crate::sink::refusal::classify;

/// Where consumers write down what they need: a hash, one field for each consumer and stream.
pub const HOLDS_KEY: &str = "outflow:holds";

/// Entries read in one go.
const PAGE: usize = 500;
/// Keys that one step of a SCAN looks at.
const SCAN: usize = 1000;

/// The value of a field of [`HOLDS_KEY`], as consumers write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredHold {
    /// The consumer.
    pub consumer: String,
    /// Key of the stream.
    pub stream: String,
    /// It needs this entry and those after it.
    pub entry_id: String,
    /// What for.
    pub reason: String,
}

/// Key of a connector's replay floor: what rows its outbox still has, so that consumers know which
/// events may come again.
#[must_use]
pub fn replay_floor_key(connector: &str) -> String {
    format!("outflow:replay-floor:{connector}")
}

type Info = BTreeMap<String, Value>;
type Records = Vec<(String, Vec<(String, Vec<u8>)>)>;

fn failed(error: redis::RedisError) -> Error {
    classify(&error)
}

/// The streams that begin with `prefix`, except those in which connectors keep their own records.
pub(super) async fn streams(
    redis: &mut Connection,
    prefix: &str,
) -> Result<BTreeSet<String>, Error> {
    let families = ["outflow:offset:", "outflow:ledger:", "outflow:dead-letters:"];
    let pattern: String = prefix
        .chars()
        .flat_map(|letter| "*?[]\\^".contains(letter).then_some('\\').into_iter().chain([letter]))
        .chain(['*'])
        .collect();
    let mut keys = BTreeSet::new();
    for primary in redis.primaries().await.map_err(failed)? {
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(SCAN)
                .arg("TYPE")
                .arg("stream");
            let answer = redis.ask(&primary, &scan).await.map_err(failed)?;
            let (next, found): (u64, Vec<String>) =
                redis::from_redis_value(answer).map_err(|error| failed(error.into()))?;
            let foreign = |key: &String| !families.iter().any(|family| key.starts_with(family));
            keys.extend(found.into_iter().filter(foreign));
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    Ok(keys)
}

/// Whether the first entry is an event, or the stream is empty: what somebody else writes is not ours
/// to trim.
pub(super) async fn is_ours(redis: &mut Connection, stream: &str) -> Result<bool, Error> {
    let first = page(redis, stream, EntryId::ZERO, None, 1).await?;
    Ok(first.into_iter().next().is_none_or(|(id, fields)| {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_slice()));
        entry::decode(id, fields).is_ok()
    }))
}

/// A stream and its groups, in one instant.
pub(super) async fn facts(redis: &mut Connection, stream: &str) -> Result<Facts, Error> {
    let mut pipe = redis::pipe();
    pipe.atomic();
    pipe.cmd("XINFO").arg("STREAM").arg(stream);
    pipe.cmd("XINFO").arg("GROUPS").arg(stream);
    let (info, groups): (Info, Vec<Info>) = pipe.query_async(redis).await.map_err(failed)?;
    let first = page(redis, stream, EntryId::ZERO, None, 1).await?.into_iter().next();
    let mut facts = Facts {
        entries: number(&info, "length").unwrap_or(0),
        first: first.map(|(id, _)| id),
        last: id(&info, "last-generated-id")?,
        groups: Vec::new(),
    };
    for group in groups {
        let name = text(&group, "name");
        // asked for after the position: what is acknowledged in between only makes it fall behind
        let pending: (u64, Option<String>, Value, Value) =
            cmd("XPENDING").arg(stream).arg(&name).query_async(redis).await.map_err(failed)?;
        let delivered = id(&group, "last-delivered-id")?;
        let lowest = pending.1.as_deref().and_then(|id| id.parse::<EntryId>().ok());
        let done = lowest.map_or(delivered, |lowest| lowest.before().min(delivered));
        facts.groups.push(Group { name, done });
    }
    Ok(facts)
}

/// What consumers hold, by stream.
pub(super) async fn holds(redis: &mut Connection) -> Result<BTreeMap<String, Vec<Hold>>, Error> {
    let fields: BTreeMap<String, String> =
        cmd("HGETALL").arg(HOLDS_KEY).query_async(redis).await.map_err(failed)?;
    let mut holds: BTreeMap<String, Vec<Hold>> = BTreeMap::new();
    for (field, value) in fields {
        let bad = |why: String| Error::BadRecord { what: format!("{HOLDS_KEY} {field}"), why };
        let stored: StoredHold =
            serde_json::from_str(&value).map_err(|error| bad(error.to_string()))?;
        let entry_id = stored.entry_id.parse().map_err(|error| bad(format!("{error}")))?;
        let hold = Hold { consumer: stored.consumer, entry_id, reason: stored.reason };
        holds.entry(stored.stream).or_default().push(hold);
    }
    Ok(holds)
}

/// The lowest id from which entries are at most as old as `since`: entries below it committed earlier.
pub(super) async fn first_since(
    redis: &mut Connection,
    stream: &str,
    facts: &Facts,
    since: Timestamp,
) -> Result<EntryId, Error> {
    let Some(first) = facts.first else { return Ok(facts.last.after()) };
    let mut search = AgeSearch::new(first, facts.last);
    while let Some((above, up_to)) = search.next() {
        match next_time(redis, stream, above, up_to).await? {
            Some((id, committed)) if committed < since => search.older(id),
            Some(_) | None => search.newer(),
        }
    }
    Ok(search.found().after())
}

async fn next_time(
    redis: &mut Connection,
    stream: &str,
    mut above: EntryId,
    up_to: EntryId,
) -> Result<Option<(EntryId, Timestamp)>, Error> {
    let mut count = 1;
    loop {
        let found = page(redis, stream, above, Some(up_to), count).await?;
        let Some((last, _)) = found.last() else { return Ok(None) };
        above = *last;
        let time = |(id, fields): &(EntryId, Vec<(String, Vec<u8>)>)| {
            field(fields, entry::field::COMMIT_TIME)
                .and_then(|text| text.parse().ok())
                .map(|at| (*id, at))
        };
        if let Some(found) = found.iter().find_map(time) {
            return Ok(Some(found));
        }
        count = PAGE;
    }
}

/// The `created_at` of an entry, as the producer's database printed it; `None`: the entry is gone, or
/// does not say.
pub(super) async fn created_at(
    redis: &mut Connection,
    stream: &str,
    id: EntryId,
) -> Result<Option<String>, Error> {
    let found = page(redis, stream, id.before(), Some(id), 1).await?;
    let entry = found.first().filter(|(found, _)| *found == id);
    Ok(entry.and_then(|(_, fields)| field(fields, entry::field::CREATED_AT).map(str::to_owned)))
}

fn field<'a>(fields: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a str> {
    let (_, value) = fields.iter().find(|(field, _)| field == name)?;
    std::str::from_utf8(value).ok()
}

/// At most `count` entries above an id.
pub(super) async fn page(
    redis: &mut Connection,
    stream: &str,
    above: EntryId,
    up_to: Option<EntryId>,
    count: usize,
) -> Result<Vec<(EntryId, Vec<(String, Vec<u8>)>)>, Error> {
    let up_to = up_to.map_or_else(|| "+".to_owned(), |id| id.to_string());
    let mut range = cmd("XRANGE");
    range.arg(stream).arg(format!("({above}")).arg(up_to).arg("COUNT").arg(count);
    let found: Records = range.query_async(redis).await.map_err(failed)?;
    found.into_iter().map(|(id, fields)| Ok((id.parse()?, fields))).collect()
}

/// XTRIM MINID, exactly: entries below `below` go. Returns how many.
pub(super) async fn trim(
    redis: &mut Connection,
    stream: &str,
    below: EntryId,
) -> Result<u64, Error> {
    let mut trim = cmd("XTRIM");
    trim.arg(stream).arg("MINID").arg(below.to_string());
    trim.query_async(redis).await.map_err(failed)
}

fn text(info: &Info, name: &str) -> String {
    info.get(name).and_then(|value| redis::from_redis_value_ref(value).ok()).unwrap_or_default()
}

fn number(info: &Info, name: &str) -> Option<u64> {
    info.get(name).and_then(|value| redis::from_redis_value_ref(value).ok())
}

fn id(info: &Info, name: &str) -> Result<EntryId, Error> {
    Ok(text(info, name).parse()?)
}
