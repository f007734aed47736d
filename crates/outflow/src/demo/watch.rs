//! Looks at everything from the outside while it runs: how far it is, and whether it still moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::display::Display;
use super::stage::Stage;
use crate::rig::workload::{Counts, Goal};
use crate::rig::{CONSUMER, STREAM};

const EVERY: Duration = Duration::from_millis(250);
/// So many equal samples in a row count as settled: a late double would still arrive.
const CALM: u32 = 3;

/// How far the demo is; shared by all parts.
pub(super) struct Progress {
    pub(super) counts: Arc<Counts>,
    /// Events that were committed before the connector's first start.
    pub(super) history: u64,
    goal: Goal,
    since: Instant,
    kills: AtomicU64,
    /// Producers and kills are through.
    done: AtomicBool,
    pub(super) display: Display,
}

/// One look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) committed: u64,
    pub(super) entries: u64,
    pub(super) inbox: u64,
    /// Entries that were delivered and not acknowledged.
    pub(super) pending: u64,
    pub(super) kills: u64,
}

/// How watching ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Everything that was committed has arrived and is acknowledged.
    Settled,
    /// Nothing has moved for this long, though something is left to do.
    StandsStill(Duration),
}

impl Progress {
    /// Starts the clock.
    pub(super) fn new(goal: Goal, history: u64, display: Display) -> Self {
        Self {
            counts: Arc::default(),
            history,
            goal,
            since: Instant::now(),
            kills: AtomicU64::new(0),
            done: AtomicBool::new(false),
            display,
        }
    }

    /// Events that are committed.
    pub(super) fn committed(&self) -> u64 {
        self.history + self.counts.committed.load(Ordering::Relaxed)
    }

    /// How much of the producers' work is done, 0 to 1.
    pub(super) fn fraction(&self) -> f64 {
        match &self.goal {
            Goal::Time(time) => self.since.elapsed().as_secs_f64() / time.as_secs_f64(),
            #[expect(clippy::cast_precision_loss, reason = "a fraction needs no 53 bits")]
            Goal::Events(events) => {
                self.counts.committed.load(Ordering::Relaxed) as f64 / (*events).max(1) as f64
            }
            // there is no end that it could be a fraction of
            Goal::Until(_) => 0.0,
        }
    }

    /// Notes a kill.
    pub(super) fn killed(&self, name: &str, pid: u32) {
        self.kills.fetch_add(1, Ordering::Relaxed);
        let events = indicatif::HumanCount(self.committed());
        self.display.say(&format!("killed {name} (pid {pid}) after {events} events"));
    }

    /// How many kills there were.
    pub(super) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Producers and kills are through.
    pub(super) fn done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Since the producers began.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Watches until everything has settled or stands still for `patience`.
///
/// # Errors
/// When connector or consumer end by themselves, or a server cannot be asked.
pub(super) async fn run(
    stage: &Stage,
    progress: &Progress,
    patience: Duration,
) -> anyhow::Result<Outcome> {
    let (database, mut broker) = (stage.consumer_database().await?, stage.broker().await?);
    let (mut last, mut moved, mut calm) = (Sample::default(), Instant::now(), 0);
    loop {
        let done = progress.done.load(Ordering::Relaxed);
        let sample = look(progress, &database, &mut broker).await?;
        progress.display.update(&sample);
        if sample == last {
            calm += 1;
        } else {
            (last, moved, calm) = (sample, Instant::now(), 0);
        }
        let arrived = sample.entries >= sample.committed && sample.inbox >= sample.committed;
        if done && arrived && sample.pending == 0 && calm >= CALM {
            return Ok(Outcome::Settled);
        }
        if moved.elapsed() >= patience {
            return Ok(Outcome::StandsStill(moved.elapsed()));
        }
        for child in [&stage.relay, &stage.consumer] {
            // one that is locked is being killed right now
            if let Ok(mut child) = child.try_lock() {
                child.check()?;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(
    progress: &Progress,
    database: &Client,
    broker: &mut MultiplexedConnection,
) -> anyhow::Result<Sample> {
    let committed = progress.committed();
    let row = database
        .query_one("SELECT count(*) FROM outflow.inbox WHERE consumer_id = $1", &[&CONSUMER])
        .await?;
    let entries = redis::cmd("XLEN").arg(STREAM).query_async(broker).await?;
    // no group yet is no error: nothing is pending
    let pending: redis::RedisResult<(u64, redis::Value, redis::Value, redis::Value)> =
        redis::cmd("XPENDING").arg(STREAM).arg(CONSUMER).query_async(broker).await;
    Ok(Sample {
        committed,
        entries,
        inbox: u64::try_from(row.try_get::<_, i64>(0)?)?,
        pending: pending.map_or(0, |(pending, ..)| pending),
        kills: progress.kills(),
    })
}
