//! Entries that a stream lost before they were applied: written down, counted, and named once.
//!
//! Redis can tell of two kinds. Entries that were trimmed or deleted **while they were pending** are seen
//! when the pending list is read (XREADGROUP gives their ids without fields, XAUTOCLAIM in a list of its
//! own, and drops them). Entries that went **before they were delivered** are seen by the counters of
//! XINFO: what was added, less what the group has read, less what is there (Redis documentation, XINFO
//! STREAM and XINFO GROUPS, since 7.0).

use std::collections::HashMap;
use std::time::Duration;

use outflow_broker::Connection;
use outflow_event::{EntryId, Position};
use redis::{RedisResult, Value};
use tokio_postgres::Client;

use crate::database::{self, Connect};
use crate::error::{Chain, Error};
use crate::reply::{self, Delivered};

const LOST: &str = include_str!("sql/lost.sql");
const KNOWN_GAP: &str = "SELECT coalesce(sum(entries), 0)::bigint FROM outflow.lost_entries \
     WHERE consumer_id = $1 AND stream = $2 AND above_id = $3 AND NOT was_pending";
const SETTLED: &str = include_str!("sql/settled.sql");

/// The inbox has no index for this question, and it is asked rarely: it may take as long as this.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// Ids that a message names; the table has all of them.
const SHOWN: usize = 20;

/// What brings lost events back.
const REMEDY: &str = "publish their events again from the rows of the outbox: with the connector stopped, `outflow \
     offsets reset --from-rows --yes`; or only some of them: docs/runbook.md, \"Publish rows again\"";

/// Entries of a stream that are gone: those above one id, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) above: EntryId,
    pub(crate) up_to: EntryId,
    pub(crate) entries: u64,
}

/// How a stream and its group stand.
pub(crate) struct Seen {
    /// What is missing in front of the group.
    pub(crate) gap: Option<Range>,
    /// Where the group stands, if that can be told.
    pub(crate) delivered: Option<Delivered>,
    /// Another worker has entries of the stream.
    pub(crate) is_elsewhere: bool,
}

/// Whose entries, and where they were.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) consumer_id: &'a str,
    pub(crate) stream: &'a str,
}

/// Writes down that pending entries are gone, except those that were applied or set aside before.
/// Returns how many were lost, of which nobody knew yet.
///
/// A database that cannot be asked keeps nobody from hearing of it: then all of them are counted and
/// named, as they may be lost.
pub(crate) async fn pending(connect: &Connect, place: Place<'_>, ids: &[EntryId]) -> u64 {
    let asked = async {
        let client = open(connect).await?;
        let settled = settled(&client, place, ids).await?;
        let lost: Vec<Range> = ids
            .iter()
            .filter(|id| !settled.contains_key(*id))
            .map(|id| Range { above: id.before(), up_to: *id, entries: 1 })
            .collect();
        let new = record(&client, place, &lost, true).await?;
        Ok::<_, Error>((settled, new))
    };
    let Place { consumer_id, stream } = place;
    match asked.await {
        Ok((settled, new)) => {
            if !settled.is_empty() {
                let events: Vec<&str> = settled.values().take(SHOWN).map(String::as_str).collect();
                tracing::info!(
                    consumer = consumer_id,
                    stream,
                    entries = settled.len(),
                    "entries were trimmed or deleted before they were acknowledged, and after they were \
                     applied or set aside: nothing is lost. Events {}{}",
                    events.join(" "),
                    dots(settled.len())
                );
            }
            say_pending(place, &new);
            count(new.len())
        }
        Err(error) => {
            tracing::warn!(
                consumer = consumer_id,
                stream,
                "which of the entries were applied is not known: {error}"
            );
            say_pending(place, ids);
            count(ids.len())
        }
    }
}

fn say_pending(Place { consumer_id, stream }: Place<'_>, ids: &[EntryId]) {
    let (Some(first), Some(last)) = (ids.iter().min(), ids.iter().max()) else { return };
    let names: Vec<_> = ids.iter().take(SHOWN).map(ToString::to_string).collect();
    tracing::warn!(
        consumer = consumer_id,
        stream,
        entries = ids.len(),
        from = %position(*first),
        to = %position(*last),
        "entries were trimmed or deleted while they were pending, before they were applied: {}{}; {REMEDY}",
        names.join(" "),
        dots(ids.len())
    );
}

/// Writes down that entries went before they were delivered. Returns how many, unless it was known.
///
/// # Errors
/// As for any statement; look again later.
pub(crate) async fn undelivered(
    connect: &Connect,
    place: Place<'_>,
    range: Range,
) -> Result<u64, Error> {
    let client = open(connect).await?;
    // trimmed further while the group still stands there: only what is new counts
    let known: i64 = client
        .query_one(KNOWN_GAP, &[&place.consumer_id, &place.stream, &range.above.to_string()])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(database::statement_failed)?;
    let entries = range.entries.saturating_sub(u64::try_from(known).unwrap_or(0));
    let range = Range { entries, ..range };
    if entries == 0 || record(&client, place, &[range], false).await?.is_empty() {
        return Ok(0);
    }
    tracing::warn!(
        consumer = place.consumer_id,
        stream = place.stream,
        entries = range.entries,
        above = %range.above,
        up_to = %range.up_to,
        from = %position(range.above),
        to = %position(range.up_to),
        "entries were trimmed or deleted before they were delivered to this consumer; {REMEDY}"
    );
    Ok(range.entries)
}

/// How `stream` and `group` stand in one instant: what the group will never be given, as far as Redis can
/// tell, what it was given, and whether another worker than `me` has some of that.
///
/// # Errors
/// As for any command; look again later.
pub(crate) async fn look(
    redis: &mut Connection,
    (stream, group): (&str, &str),
    me: &str,
) -> RedisResult<Seen> {
    let mut pipe = redis::pipe();
    pipe.atomic();
    pipe.cmd("XINFO").arg("STREAM").arg(stream);
    pipe.cmd("XINFO").arg("GROUPS").arg(stream);
    pipe.cmd("XPENDING").arg(stream).arg(group);
    let (info, groups, pending): (Value, Value, Value) = pipe.query_async(redis).await?;
    let delivered = reply::delivered(&info, groups.clone(), group);
    let is_elsewhere = reply::is_pending_elsewhere(pending, me).unwrap_or(false);
    Ok(Seen { gap: reply::gap(info, groups, group), delivered, is_elsewhere })
}

async fn open(connect: &Connect) -> Result<Client, Error> {
    let client = connect().await.map_err(database::connect_failed)?;
    database::prepare_session(&client, LOOK_FOR).await?;
    let limit = format!("SET statement_timeout = {}", LOOK_FOR.as_millis());
    client.batch_execute(&limit).await.map_err(database::statement_failed)?;
    Ok(client)
}

/// The event ids of those of `ids` that were applied or set aside.
async fn settled(
    client: &Client,
    Place { consumer_id, stream }: Place<'_>,
    ids: &[EntryId],
) -> Result<HashMap<EntryId, String>, Error> {
    let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let rows = match client.query(SETTLED, &[&consumer_id, &stream, &texts]).await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::debug!("the inbox was not asked for entries: {}", Chain::new(&error));
            return Err(database::statement_failed(error));
        }
    };
    let mut settled = HashMap::new();
    for row in rows {
        let id: String = row.try_get(0).map_err(database::statement_failed)?;
        let event: Option<String> = row.try_get(1).map_err(database::statement_failed)?;
        if let Ok(id) = id.parse() {
            settled.insert(id, event.unwrap_or_default());
        }
    }
    Ok(settled)
}

/// Inserts `lost`; returns the ends of those that were not known.
async fn record(
    client: &Client,
    Place { consumer_id, stream }: Place<'_>,
    lost: &[Range],
    was_pending: bool,
) -> Result<Vec<EntryId>, Error> {
    let above: Vec<_> = lost.iter().map(|range| range.above.to_string()).collect();
    let up_to: Vec<_> = lost.iter().map(|range| range.up_to.to_string()).collect();
    let entries: Vec<_> =
        lost.iter().map(|range| i64::try_from(range.entries).unwrap_or(i64::MAX)).collect();
    let rows = client
        .query(LOST, &[&consumer_id, &stream, &above, &up_to, &entries, &was_pending])
        .await
        .map_err(database::statement_failed)?;
    let mut new: Vec<EntryId> =
        rows.iter().filter_map(|row| row.get::<_, String>(0).parse().ok()).collect();
    new.sort_unstable();
    Ok(new)
}

/// The position in an id; of ids that Redis made it means nothing, and harms nobody.
fn position(id: EntryId) -> Position {
    id.to_position().1
}

fn dots(number: usize) -> &'static str {
    if number > SHOWN { " ..." } else { "" }
}

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
