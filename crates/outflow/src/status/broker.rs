//! The broker: the stored offset, the streams and their groups.

use std::collections::{BTreeMap, BTreeSet};

use outflow_broker::Connection;
use outflow_event::EntryId;
use outflow_relay::config::{EntryIdMode, OffsetConfig, OffsetStoreKind};
use outflow_relay::offset::{Offset, OffsetStore, PostgresOffsetStore, RedisOffsetStore};
use outflow_relay::sink::connection::RedisLink;
use redis::{Value, cmd};
use serde::Serialize;

use crate::config::Config;

/// Keys of the connector itself, which are streams too.
const OWN: [&str; 3] = ["outflow:offset:", "outflow:ledger:", "outflow:dead-letters:"];

/// Keys a SCAN looks at in one go, and how often it goes on: a large Redis is not read through.
const SCAN_COUNT: usize = 1000;
const SCAN_ROUNDS: usize = 200;

/// What Redis says.
#[derive(Debug, Serialize)]
pub(super) struct Broker {
    /// Streams that begin with sink.stream_prefix, and those that the consumer reads.
    pub(super) streams: Vec<Stream>,
    /// Redis holds too many keys to look at all of them.
    pub(super) streams_incomplete: bool,
}

/// A stream.
#[derive(Debug, Serialize)]
pub(super) struct Stream {
    /// Its key.
    pub(super) key: String,
    /// Entries that it holds.
    pub(super) entries: i64,
    /// The last id that it gave.
    pub(super) last_id: String,
    /// The position in that id, where ids are made of positions.
    pub(super) last_position: Option<String>,
    /// Its groups.
    pub(super) groups: Vec<Group>,
}

/// A group of a stream: one for each consumer.
#[derive(Debug, Serialize)]
pub(super) struct Group {
    /// The consumer.
    pub(super) name: String,
    /// Workers that Redis knows.
    pub(super) workers: i64,
    /// Delivered and not acknowledged.
    pub(super) pending: i64,
    /// Not delivered; `None`: Redis cannot tell.
    pub(super) lag: Option<i64>,
    /// The last id that was delivered.
    pub(super) last_delivered_id: String,
    /// Milliseconds since the most recent attempt of any worker to read; `None` without workers.
    pub(super) idle_ms: Option<i64>,
}

/// The stored offset, as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct StoredOffset {
    pub(super) store: &'static str,
    pub(super) position: Option<String>,
    pub(super) end_lsn: String,
    pub(super) epoch: u8,
    pub(super) commit_time: Option<String>,
    pub(super) published_count: u64,
    pub(super) at: String,
    pub(super) snapshot: bool,
}

/// Looks at the offset and at the streams.
pub(super) async fn look(
    config: &Config,
) -> (Result<Option<StoredOffset>, String>, Result<Broker, String>) {
    tokio::join!(super::in_time(offset(config)), super::in_time(streams(config)))
}

fn link(config: &Config) -> RedisLink {
    RedisLink::new(config.sink.redis.clone(), config.sink.timeout.min(super::PATIENCE))
}

async fn offset(config: &Config) -> anyhow::Result<Option<StoredOffset>> {
    let store = config.offset.store;
    let options = OffsetConfig {
        store,
        ledger_entries: config.offset.ledger_entries.into(),
        ledger_interval: config.offset.ledger_interval,
    };
    let (name, offset) = match store {
        OffsetStoreKind::Redis => {
            let mut store = RedisOffsetStore::new(link(config), &config.connector, &options);
            ("redis", store.load().await?)
        }
        OffsetStoreKind::Postgres => {
            let connect = config.source_connect()?;
            let mut store = PostgresOffsetStore::new(connect, &config.connector, &options);
            ("postgres", store.load().await?)
        }
    };
    Ok(offset.map(|offset: Offset| StoredOffset {
        store: name,
        position: offset.position.map(|position| position.to_string()),
        end_lsn: offset.end_lsn.to_string(),
        epoch: offset.epoch.0,
        commit_time: offset.commit_time.map(|time| time.to_string()),
        published_count: offset.published_count,
        at: offset.at.to_string(),
        snapshot: offset.snapshot.is_some(),
    }))
}

/// The last ids of the streams.
///
/// # Errors
/// As for looking at them; also when there are too many keys to look at all.
pub(super) async fn last_ids(config: &Config) -> anyhow::Result<Vec<EntryId>> {
    let broker = streams(config).await?;
    anyhow::ensure!(!broker.streams_incomplete, "redis holds too many keys to look at all of them");
    Ok(broker.streams.iter().filter_map(|stream| stream.last_id.parse().ok()).collect())
}

async fn streams(config: &Config) -> anyhow::Result<Broker> {
    let mut link = link(config);
    let redis = link.get().await?;
    let naming = config.naming();
    let mut keys: BTreeSet<String> =
        config.consumer.streams.iter().flat_map(|stream| naming.keys(stream)).collect();
    let complete = scan(redis, &config.sink.stream_prefix, &mut keys).await?;
    let mut streams = Vec::new();
    for key in keys {
        if let Some(stream) = stream(redis, key, config.sink.entry_id).await? {
            streams.push(stream);
        }
    }
    Ok(Broker { streams, streams_incomplete: !complete })
}

/// Adds the streams that begin with `prefix`; whether all keys were looked at.
async fn scan(
    redis: &mut Connection,
    prefix: &str,
    keys: &mut BTreeSet<String>,
) -> anyhow::Result<bool> {
    let pattern = format!("{}*", escape_glob(prefix));
    let mut complete = true;
    for primary in redis.primaries().await? {
        let mut cursor = 0_u64;
        let mut rounds = 0;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
            scan.arg("TYPE").arg("stream");
            let answer = redis.ask(&primary, &scan).await?;
            let (next, found): (u64, Vec<String>) = redis::from_redis_value(answer)?;
            let foreign = |key: &String| !OWN.iter().any(|own| key.starts_with(own));
            keys.extend(found.into_iter().filter(foreign));
            cursor = next;
            rounds += 1;
            if cursor == 0 || rounds == SCAN_ROUNDS {
                break;
            }
        }
        complete &= cursor == 0;
    }
    Ok(complete)
}

fn escape_glob(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if "*?[]\\^".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// The stream at `key`; `None`: there is none.
async fn stream(
    redis: &mut Connection,
    key: String,
    ids: EntryIdMode,
) -> anyhow::Result<Option<Stream>> {
    if !cmd("EXISTS").arg(&key).query_async::<bool>(redis).await? {
        return Ok(None);
    }
    let info: Facts = cmd("XINFO").arg("STREAM").arg(&key).query_async(redis).await?;
    let last_id = text(&info, "last-generated-id");
    let last_position = match (ids, last_id.parse::<EntryId>()) {
        (EntryIdMode::Lsn, Ok(id)) if id != EntryId::ZERO => Some(id.to_position().1.to_string()),
        _ => None,
    };
    let found: Vec<Facts> = cmd("XINFO").arg("GROUPS").arg(&key).query_async(redis).await?;
    let mut groups = Vec::new();
    for group in found {
        let name = text(&group, "name");
        let workers: Vec<Facts> =
            cmd("XINFO").arg("CONSUMERS").arg(&key).arg(&name).query_async(redis).await?;
        groups.push(Group {
            workers: number(&group, "consumers").unwrap_or(0),
            pending: number(&group, "pending").unwrap_or(0),
            lag: number(&group, "lag"),
            last_delivered_id: text(&group, "last-delivered-id"),
            idle_ms: workers.iter().filter_map(|worker| number(worker, "idle")).min(),
            name,
        });
    }
    let entries = number(&info, "length").unwrap_or(0);
    Ok(Some(Stream { key, entries, last_id, last_position, groups }))
}

/// A reply of XINFO.
type Facts = BTreeMap<String, Value>;

fn text(facts: &Facts, name: &str) -> String {
    facts.get(name).and_then(|value| redis::from_redis_value_ref(value).ok()).unwrap_or_default()
}

fn number(facts: &Facts, name: &str) -> Option<i64> {
    facts.get(name).and_then(|value| redis::from_redis_value_ref(value).ok())
}
