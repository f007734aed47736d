//! Retention: removes from streams and outbox what nobody needs any more, and says what holds the rest
//! back.
//!
//! | module | does |
//! | --- | --- |
//! | `floor` | how far a stream may be trimmed, and who says so: pure |
//! | `broker` | streams, groups and holds, as Redis knows them |
//! | `streams` | trims in batches |
//! | `outbox` | marks a moment, waits until everybody is past it, deletes rows in batches |
//! | `partitions` | drops partitions as a whole |
//!
//! Nothing is removed that a group has not acknowledged (pending entries included), that a consumer
//! holds (an open dead letter, [`HOLDS_KEY`]), or that is younger than the configured age, which is how
//! far back events can be published again: the replay floor. After every pass over the outbox the floor
//! is written to Redis ([`replay_floor_key`]), for the consumers' own retention.

mod broker;
mod floor;
mod outbox;
mod partitions;
mod streams;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outflow_broker::Connection;
use serde::Serialize;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

pub use self::broker::{HOLDS_KEY, StoredHold, replay_floor_key};
use self::outbox::Mark;
use crate::config::ConnectorConfig;
use crate::error::Error;
use crate::offset;
use crate::sink::connection::RedisLink;
use crate::sink::refusal::classify;

/// What to keep, and how to remove the rest.
#[derive(Debug, Clone)]
pub struct RetentionConfig {
    /// Rows of the outbox younger than this stay; `None`: all of them.
    pub outbox: Option<Duration>,
    /// Entries of streams whose transactions committed later than this ago stay; `None`: all of them.
    pub streams: Option<Duration>,
    /// Time between two runs.
    pub interval: Duration,
    /// Rows or entries that one step removes, about.
    pub batch: u32,
    /// Consumers that must have a group in a stream before anything is removed for it.
    pub consumers: Vec<String>,
}

/// What one run did, or would do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// By stream; empty: streams are not trimmed, or there are none.
    pub streams: Vec<StreamReport>,
    /// The outbox; `None`: its rows are kept.
    pub outbox: Option<OutboxReport>,
}

/// A stream.
#[derive(Debug, Clone, Serialize)]
pub struct StreamReport {
    /// Its key.
    pub stream: String,
    /// Entries that are left.
    pub entries: u64,
    /// Entries that were removed, or would be.
    pub removed: u64,
    /// Entries below this id may go.
    pub below: String,
    /// What keeps the rest; `None`: nothing is left.
    pub held_by: Option<String>,
}

/// The outbox.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OutboxReport {
    /// The table.
    pub table: String,
    /// Rows that were removed one by one, or would be.
    pub removed: u64,
    /// Partitions that were dropped, or would be.
    pub partitions_dropped: Vec<String>,
    /// Rows created at this time or later stay.
    pub before: Option<String>,
    /// What keeps all rows; `None`: only their age and consumers' holds do.
    pub held_by: Option<String>,
}

/// Where a run reports how far it is: the thing that it is at, parts done, parts in all.
pub struct Progress<'a>(Advance<'a>);

type Advance<'a> = Box<dyn FnMut(&str, u64, u64) + Send + 'a>;

impl<'a> Progress<'a> {
    /// Reports to `to`.
    pub fn to(to: impl FnMut(&str, u64, u64) + Send + 'a) -> Self {
        Self(Box::new(to))
    }

    /// Reports to nobody.
    #[must_use]
    pub fn none() -> Self {
        Self(Box::new(|_, _, _| {}))
    }

    fn step(&mut self, what: &str, done: u64, total: u64) {
        (self.0)(what, done, total);
    }
}

/// Removes what nobody needs, run by run. What is not passed by all consumers in one run is remembered
/// for the next.
pub struct Retention {
    connector: ConnectorConfig,
    config: RetentionConfig,
    redis: RedisLink,
    sql: Option<Client>,
    mark: Option<Mark>,
}

impl Retention {
    /// For the streams and the outbox of one connector.
    #[must_use]
    pub fn new(connector: ConnectorConfig, config: RetentionConfig) -> Self {
        let redis = RedisLink::new(connector.sink.redis.clone(), connector.sink.timeout);
        Self { connector, config, redis, sql: None, mark: None }
    }

    /// Runs once. With `dry_run` nothing is removed.
    ///
    /// Every step is a command or a transaction of its own: a run that ends early has removed less.
    ///
    /// # Errors
    /// Transient ones are gone after a while, others say what to grant or to correct. Run again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the run after the step that is under way.
    pub async fn run_once(
        &mut self,
        dry_run: bool,
        progress: &mut Progress<'_>,
    ) -> Result<Report, Error> {
        let done = self.once(dry_run, progress).await;
        if done.is_err() {
            // on whichever server answers next
            self.redis.reset();
            self.sql = None;
        }
        done
    }

    async fn once(&mut self, dry_run: bool, progress: &mut Progress<'_>) -> Result<Report, Error> {
        let now = Timestamp::now();
        let mut report = Report::default();
        // the outbox first: the age of what consumers hold is read from the entries
        if let Some(keep) = self.config.outbox {
            report.outbox = Some(self.outbox(now, keep, dry_run, progress).await?);
        }
        if let Some(keep) = self.config.streams {
            let redis = self.redis.get().await?;
            let holds = broker::holds(redis).await?;
            for stream in broker::streams(redis, self.connector.sink.naming.prefix()).await? {
                let (config, stream, holds) = (&self.config, stream.as_str(), &holds);
                let pass = streams::Pass { config, stream, holds, now, dry_run };
                report.streams.push(pass.run(redis, keep, progress).await?);
            }
        }
        Ok(report)
    }

    async fn outbox(
        &mut self,
        now: Timestamp,
        keep: Duration,
        dry_run: bool,
        progress: &mut Progress<'_>,
    ) -> Result<OutboxReport, Error> {
        let source = &self.connector.source;
        let sql = match self.sql.take().filter(|sql| !sql.is_closed()) {
            Some(sql) => self.sql.insert(sql),
            None => self.sql.insert(source.connect.connect_sql().await?.client),
        };
        let offset = offset::load(&self.connector).await?;
        let redis = self.redis.get().await?;
        let streams = broker::streams(redis, self.connector.sink.naming.prefix()).await?;
        let mark = match &mut self.mark {
            Some(mark) => mark,
            mark => mark.insert(Mark::take(sql).await?),
        };
        let held = |held_by| OutboxReport {
            table: source.table.to_string(),
            held_by: Some(held_by),
            ..OutboxReport::default()
        };
        if let Err(held_by) =
            mark.is_passed(offset.as_ref(), redis, streams.iter(), &self.config).await?
        {
            return Ok(held(held_by));
        }
        let mut before = ago(now, keep).to_string();
        for (stream, holds) in broker::holds(redis).await? {
            for hold in holds {
                let Some(created_at) = broker::created_at(redis, &stream, hold.entry_id).await?
                else {
                    let (consumer, reason, id) = (&hold.consumer, &hold.reason, hold.entry_id);
                    return Ok(held(format!(
                        "consumer `{consumer}`: {reason}, and its entry {id} is no longer in {stream} to \
                         tell how old it is"
                    )));
                };
                before = earlier(sql, &before, &created_at).await?;
            }
        }
        let (config, before) = (&self.config, before.as_str());
        let pass = outbox::Pass { sql, source, config, mark, before, dry_run };
        let report = pass.run(progress).await?;
        if !dry_run && report.held_by.is_none() {
            let oldest = pass.oldest().await?;
            publish_floor(redis, &self.connector.connector, oldest, now).await?;
            self.mark = None;
        }
        Ok(report)
    }
}

/// Runs every `interval` until `shutdown`: logs what was removed, and what holds the rest back when that
/// changes.
///
/// # Cancel safety
/// Dropping the future ends the run after the step that is under way.
pub async fn run(connector: ConnectorConfig, config: RetentionConfig, shutdown: CancellationToken) {
    let interval = config.interval;
    let mut retention = Retention::new(connector, config);
    let mut said = BTreeMap::new();
    loop {
        let run = async {
            match retention.run_once(false, &mut Progress::none()).await {
                Ok(report) => say(&report, &mut said),
                Err(error) => tracing::warn!("retention was not run to its end: {error}"),
            }
            tokio::time::sleep(interval).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = run => {}
        }
    }
}

fn say(report: &Report, said: &mut BTreeMap<String, String>) {
    let mut held = |what: &str, held_by: &Option<String>| {
        if let Some(held_by) = held_by
            && said.get(what) != Some(held_by)
        {
            tracing::info!("retention: {what} is held back: {held_by}");
            said.insert(what.to_owned(), held_by.clone());
        }
    };
    for stream in &report.streams {
        if stream.removed > 0 {
            let StreamReport { stream, removed, entries, .. } = stream;
            tracing::info!(stream, removed, entries, "retention: entries were trimmed");
        }
        held(&stream.stream, &stream.held_by);
    }
    if let Some(outbox) = &report.outbox {
        if outbox.removed > 0 {
            tracing::info!(
                table = outbox.table,
                removed = outbox.removed,
                "retention: rows were deleted"
            );
        }
        held(&outbox.table, &outbox.held_by);
    }
}

fn ago(now: Timestamp, age: Duration) -> Timestamp {
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    now.checked_sub(age).unwrap_or(Timestamp::MIN)
}

/// The earlier of two times in PostgreSQL's own forms.
async fn earlier(sql: &Client, one: &str, other: &str) -> Result<String, Error> {
    let row = sql
        .query_one(
            "SELECT pg_catalog.to_char(least($1::text::timestamptz, $2::text::timestamptz) AT TIME ZONE 'UTC', \
                    'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
            &[&one, &other],
        )
        .await
        .map_err(Error::sql("comparing the ages of outbox rows"))?;
    Ok(row.get(0))
}

async fn publish_floor(
    redis: &mut Connection,
    connector: &str,
    oldest: Option<String>,
    now: Timestamp,
) -> Result<(), Error> {
    // without rows, none that was created before now can come again
    let rows_since = oldest.unwrap_or_else(|| now.to_string());
    let floor = serde_json::json!({ "rows_since": rows_since, "at": now.to_string() }).to_string();
    let mut set = redis::cmd("SET");
    set.arg(replay_floor_key(connector)).arg(floor);
    set.exec_async(redis).await.map_err(|error| classify(&error))
}
