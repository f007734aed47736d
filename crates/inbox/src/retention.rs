//! Retention: removes from the inbox what cannot come again, and says what holds the rest back.
//!
//! An inbox row is what makes a second delivery a duplicate. It may go when there can be no second
//! delivery any more: its entry is gone from the stream, everything below that is acknowledged, no open
//! dead letter lies below it, and its event cannot be published again, because the connector has said
//! (the replay floor, in Redis) that its outbox has no row that old.
//!
//! The consumer's side of the interlock is here too: what it still needs of a stream is written to Redis
//! ([`HOLDS_KEY`]), where the connector's own retention looks before it trims.

mod sweep;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use outflow_broker::Connection;
use outflow_event::EntryId;
use redis::Value;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use self::sweep::{APPLIED, SETTLED};
use crate::broker::{self, Broker};
use crate::config::ConsumerConfig;
use crate::database::{self, Connect, statement_failed};
use crate::error::Error;
use crate::reply;

const HOLDS: &str = include_str!("sql/holds.sql");

/// Where consumers write down what they need of a stream: a hash of JSON objects.
pub const HOLDS_KEY: &str = "outflow:holds";

/// What to keep, and how to remove the rest.
#[derive(Debug, Clone)]
pub struct RetentionOptions {
    /// Rows of the inbox that were applied later than this ago stay; `None`: all of them.
    pub inbox: Option<Duration>,
    /// Conflicts, dead letters and lost entries that were settled later than this ago stay; `None`: all.
    pub settled: Option<Duration>,
    /// Time between two runs.
    pub interval: Duration,
    /// Rows that one step removes, about.
    pub batch: u64,
    /// Connectors that publish to the consumer's streams: their replay floors count.
    pub connectors: Vec<String>,
}

/// What one run did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What the consumer needs of its streams.
    pub holds: Vec<Hold>,
    /// How far each stream is done with.
    pub floors: Vec<Floor>,
    /// Rows of the inbox; `None`: all are kept.
    pub inbox: Option<Removed>,
    /// Settled conflicts, dead letters and lost entries; `None`: all are kept.
    pub settled: Option<Removed>,
}

/// A consumer needs an entry and those after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Key of the stream.
    pub stream: String,
    /// The entry.
    pub entry_id: EntryId,
    /// What for.
    pub reason: String,
}

/// Rows whose entries stand below this id may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    /// Key of the stream.
    pub stream: String,
    /// The id.
    pub below: EntryId,
    /// What keeps those above it.
    pub held_by: String,
}

/// What was removed of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Rows that were removed, or would be.
    pub rows: u64,
    /// Rows from this time or later stay.
    pub before: Option<SystemTime>,
    /// What keeps all of them.
    pub held_by: Option<String>,
}

/// Removes what cannot come again, run by run.
pub struct Retention {
    config: ConsumerConfig,
    options: RetentionOptions,
    connect: Connect,
    broker: Broker,
}

impl Retention {
    /// For one consumer.
    #[must_use]
    pub fn new(config: ConsumerConfig, options: RetentionOptions, connect: Connect) -> Self {
        let broker = Broker::new(config.redis.clone(), config.response_timeout);
        Self { config, options, connect, broker }
    }

    /// Runs once; `progress` is told pages done and pages in all. With `dry_run` nothing is removed.
    ///
    /// Every step is a transaction of its own: a run that ends early has removed less.
    ///
    /// # Errors
    /// Transient ones are gone after a while, others say what to grant or to correct. Run again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the run after the step that is under way.
    pub async fn run_once(
        &self,
        dry_run: bool,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Report, Error> {
        let client = (self.connect)().await.map_err(database::connect_failed)?;
        database::prepare_session(&client, self.config.apply_timeout).await?;
        let mut redis = self.broker.connect(Duration::ZERO).await.map_err(broker::failed)?;
        let holds = self.holds(&client).await?;
        self.publish(&mut redis, &holds).await?;
        let mut report = Report { holds, ..Report::default() };
        if self.options.inbox.is_none() && self.options.settled.is_none() {
            return Ok(report);
        }
        report.floors = self.floors(&client, &mut redis, &report.holds).await?;
        let replay = self.replay_floor(&client, &mut redis).await?;
        let of = |keep: Duration| match &replay {
            Ok(rows_since) => {
                let age = SystemTime::now().checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH);
                Removed { before: Some(age.min(*rows_since)), ..Removed::default() }
            }
            Err(held_by) => Removed { held_by: Some(held_by.clone()), ..Removed::default() },
        };
        if let Some(keep) = self.options.inbox {
            let mut removed = of(keep);
            if let Some(before) = removed.before {
                let limits = (report.floors.as_slice(), before);
                removed.rows = self.sweep(&client, APPLIED, limits, dry_run, progress).await?;
            }
            report.inbox = Some(removed);
        }
        if let Some(keep) = self.options.settled {
            let mut removed = of(keep);
            if let Some(before) = removed.before {
                for rows in SETTLED {
                    let limits = (report.floors.as_slice(), before);
                    removed.rows += self.sweep(&client, rows, limits, dry_run, progress).await?;
                }
            }
            report.settled = Some(removed);
        }
        Ok(report)
    }

    /// Runs every `interval` until `shutdown`, and logs what was removed.
    ///
    /// # Cancel safety
    /// As for [`Retention::run_once`].
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut said = None;
        loop {
            let run = async {
                match self.run_once(false, &mut |_, _| {}).await {
                    Ok(report) => self.say(&report, &mut said),
                    Err(error) => tracing::warn!(
                        consumer = self.config.consumer_id,
                        "retention was not run to its end: {error}"
                    ),
                }
                tokio::time::sleep(self.options.interval).await;
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = run => {}
            }
        }
    }

    fn say(&self, report: &Report, said: &mut Option<String>) {
        let consumer = self.config.consumer_id.as_str();
        for (what, removed) in [("inbox", &report.inbox), ("settled", &report.settled)] {
            let Some(removed) = removed else { continue };
            if removed.rows > 0 {
                tracing::info!(
                    consumer,
                    rows = removed.rows,
                    "retention: rows of {what} were removed"
                );
            }
            if removed.held_by.is_some() && *said != removed.held_by {
                said.clone_from(&removed.held_by);
                let held_by = removed.held_by.as_deref().unwrap_or_default();
                tracing::info!(consumer, "retention: {what} is held back: {held_by}");
            }
        }
    }

    async fn holds(&self, client: &Client) -> Result<Vec<Hold>, Error> {
        let rows =
            client.query(HOLDS, &[&self.config.consumer_id]).await.map_err(statement_failed)?;
        let mut holds = Vec::new();
        for row in rows {
            let (stream, id, reason): (String, String, String) =
                (row.get(0), row.get(1), row.get(2));
            if let Ok(entry_id) = id.parse() {
                holds.push(Hold { stream, entry_id, reason });
            }
        }
        Ok(holds)
    }

    /// Tells the connector: what is needed of each stream, and of which nothing is.
    async fn publish(&self, redis: &mut Connection, holds: &[Hold]) -> Result<(), Error> {
        let consumer = &self.config.consumer_id;
        let mut pipe = redis::pipe();
        pipe.atomic();
        for stream in &self.config.streams {
            let field = format!("{consumer} {stream}");
            match holds.iter().find(|hold| hold.stream == *stream) {
                None => pipe.cmd("HDEL").arg(HOLDS_KEY).arg(field).ignore(),
                Some(hold) => {
                    let value = serde_json::json!({
                        "consumer": consumer, "stream": stream,
                        "entry_id": hold.entry_id.to_string(), "reason": hold.reason,
                    });
                    pipe.cmd("HSET").arg(HOLDS_KEY).arg(field).arg(value.to_string()).ignore()
                }
            };
        }
        pipe.exec_async(redis).await.map_err(broker::failed)
    }

    async fn floors(
        &self,
        client: &Client,
        redis: &mut Connection,
        holds: &[Hold],
    ) -> Result<Vec<Floor>, Error> {
        let consumer = self.config.consumer_id.as_str();
        let rows = client
            .query(
                "SELECT stream, resume_id FROM outflow.position WHERE consumer_id = $1",
                &[&consumer],
            )
            .await
            .map_err(statement_failed)?;
        let resume: BTreeMap<String, EntryId> = rows
            .iter()
            .filter_map(|row| Some((row.get(0), row.get::<_, String>(1).parse().ok()?)))
            .collect();
        let mut floors = Vec::new();
        for stream in &self.config.streams {
            let first = first_id(redis, stream).await.map_err(broker::failed)?;
            let progress =
                broker::progress(redis, stream, consumer).await.map_err(broker::failed)?;
            let held = holds.iter().find(|hold| hold.stream == *stream);
            let candidates = [
                first.map_or((EntryId::ZERO, "the stream is not there"), |first| {
                    (first, "what comes next is still in the stream")
                }),
                progress.map_or((EntryId::ZERO, "the consumer has no group in it"), |progress| {
                    (progress.done.after(), "what comes next is not acknowledged")
                }),
                resume
                    .get(stream)
                    .map_or((EntryId::ZERO, "the consumer has not begun"), |resume| {
                        (resume.after(), "the stored position lies there")
                    }),
            ];
            let held = held.map(|hold| (hold.entry_id, hold.reason.as_str()));
            let lowest = candidates.into_iter().chain(held).min_by_key(|(below, _)| *below);
            let (below, held_by) = lowest.unwrap_or((EntryId::ZERO, ""));
            floors.push(Floor { stream: stream.clone(), below, held_by: held_by.to_owned() });
        }
        Ok(floors)
    }

    /// The time of the oldest row that can still be published again; `Err`: that is not known.
    async fn replay_floor(
        &self,
        client: &Client,
        redis: &mut Connection,
    ) -> Result<Result<SystemTime, String>, Error> {
        let mut floor = SystemTime::now();
        for connector in &self.options.connectors {
            let key = format!("outflow:replay-floor:{connector}");
            let stored: Option<String> =
                redis::cmd("GET").arg(&key).query_async(redis).await.map_err(broker::failed)?;
            let since = stored
                .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
                .and_then(|floor| floor.get("rows_since")?.as_str().map(str::to_owned));
            let Some(since) = since else {
                return Ok(Err(format!(
                    "connector `{connector}` has not said how old the rows of its outbox are, and all of \
                     them may be published again: set retention.outbox for it"
                )));
            };
            let row = client
                .query_one("SELECT $1::text::timestamptz", &[&since])
                .await
                .map_err(statement_failed)?;
            floor = floor.min(row.get(0));
        }
        Ok(Ok(floor))
    }
}

/// The first id that the stream still holds, or will hold; `None`: there is no stream.
async fn first_id(redis: &mut Connection, stream: &str) -> redis::RedisResult<Option<EntryId>> {
    let exists: bool = redis::cmd("EXISTS").arg(stream).query_async(redis).await?;
    if !exists {
        return Ok(None);
    }
    let found: Value = redis::cmd("XRANGE")
        .arg(stream)
        .arg("-")
        .arg("+")
        .arg("COUNT")
        .arg(1)
        .query_async(redis)
        .await?;
    let first = reply::listed(&found).and_then(|records| records.into_iter().next());
    match first {
        Some(first) => Ok(Some(first.id)),
        None => Ok(Some(broker::last_generated_id(redis, stream).await?.after())),
    }
}
