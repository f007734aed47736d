//! What a consumer is doing, for people: a watchable status, a log line, a metric.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::metrics::Metrics;
pub use crate::parking::Held;

/// How often an unchanged reason is logged again.
const REMINDER: Duration = Duration::from_secs(30);

/// A consumer at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Whether it moves, and if not, why.
    pub state: State,
    /// What it has done since it started.
    pub counts: Counts,
    /// Entries that the group has not delivered yet plus those pending, over all streams; `None`
    /// until it is known, and where Redis cannot tell (after XDEL; before Redis 7).
    pub lag_entries: Option<u64>,
    /// What is held back in the consumer's database; looked at every few seconds.
    pub held: Held,
    /// How many of its streams this worker reads; the others are read by other workers, or by none.
    pub streams: usize,
}

/// Whether a consumer moves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Connecting; nothing has been read yet.
    Starting,
    /// Reading and applying, or idle because there is nothing to read.
    Running,
    /// Standing still. It tries again by itself.
    Waiting {
        /// `reader`, `applier`, `acker` or `keeper`.
        component: &'static str,
        /// What it waits for.
        reason: String,
        /// Since when.
        since: SystemTime,
    },
    /// Finished.
    Stopped,
}

/// What a consumer has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Transactions committed.
    pub batches: u64,
    /// Events that had their effect.
    pub applied: u64,
    /// Deliveries of events that had been applied before.
    pub duplicates: u64,
    /// Deliveries of a known event id with another payload.
    pub conflicts: u64,
    /// Entries that became dead letters because they are no events.
    pub malformed: u64,
    /// Entries that were trimmed or deleted before they were applied.
    pub lost: u64,
    /// Entries taken over from other workers.
    pub claimed: u64,
    /// Entries acknowledged.
    pub acknowledged: u64,
    /// Transactions that failed and were tried again.
    pub retries: u64,
    /// Attempts of single events that failed for a reason of their own.
    pub failed: u64,
    /// Events that were parked without being tried: behind one that failed, or under suspicion.
    pub parked: u64,
    /// Events that became dead letters after their last attempt.
    pub dead: u64,
    /// Gaps in the numbers of aggregates that were seen; one that is waited for counts again when
    /// the wait is over.
    pub gaps: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Component {
    Applier,
    Reader,
    Acker,
    Keeper,
}

impl Component {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Applier => "applier",
            Self::Reader => "reader",
            Self::Acker => "acker",
            Self::Keeper => "keeper",
        }
    }
}

/// Who waits, and whether reading has begun.
#[derive(Default)]
struct Waits {
    of: BTreeMap<Component, Wait>,
    begun: bool,
}

struct Wait {
    reason: String,
    since: SystemTime,
    logged: Instant,
}

/// Where the parts of a consumer report to.
pub(crate) struct Board {
    consumer: String,
    waits: Mutex<Waits>,
    status: watch::Sender<Status>,
    pub(crate) metrics: Metrics,
}

impl Board {
    pub(crate) fn new(consumer_id: &str) -> Self {
        let status = Status {
            state: State::Starting,
            counts: Counts::default(),
            lag_entries: None,
            held: Held::default(),
            streams: 0,
        };
        Self {
            consumer: consumer_id.to_owned(),
            waits: Mutex::default(),
            status: watch::Sender::new(status),
            metrics: Metrics::new(consumer_id),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.status.borrow().counts
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        self.status.send_modify(|status| change(&mut status.counts));
    }

    /// Entries are gone that were not applied.
    pub(crate) fn lost(&self, entries: u64) {
        if entries > 0 {
            self.metrics.lost.increment(entries);
            self.count(|counts| counts.lost += entries);
        }
    }

    pub(crate) fn lag(&self, entries: Option<u64>) {
        if let Some(entries) = entries {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            self.metrics.lag.set(entries as f64);
        }
        self.status.send_if_modified(|status| {
            let changed = status.lag_entries != entries;
            status.lag_entries = entries;
            changed
        });
    }

    /// A transaction failed and is tried again.
    pub(crate) fn retried(&self) {
        self.metrics.retries.increment(1);
        self.count(|counts| counts.retries += 1);
    }

    /// How many streams this worker reads.
    pub(crate) fn streams(&self, streams: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.metrics.streams.set(streams as f64);
        self.status.send_if_modified(|status| {
            let changed = status.streams != streams;
            status.streams = streams;
            changed
        });
    }

    /// What is held back.
    pub(crate) fn held(&self, held: Held) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        {
            self.metrics.parked_now.set(held.parked as f64);
            self.metrics.dead_letters_open.set(held.dead_letters as f64);
        }
        self.status.send_if_modified(|status| {
            let changed = status.held != held;
            status.held = held;
            changed
        });
    }

    /// `component` stands still: logged when it begins, when the reason changes, and now and then.
    pub(crate) fn waiting(&self, component: Component, reason: &str) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let consumer = self.consumer.as_str();
        match waits.of.get_mut(&component) {
            Some(wait) if wait.reason == reason => {
                if now.duration_since(wait.logged) < REMINDER {
                    return;
                }
                wait.logged = now;
                let waited = wait.since.elapsed().unwrap_or_default().as_secs();
                tracing::warn!(
                    consumer,
                    component = component.name(),
                    "still waiting after {waited} s: {reason}"
                );
            }
            known => {
                let since = known.map_or_else(SystemTime::now, |wait| wait.since);
                waits.of.insert(component, Wait { reason: reason.to_owned(), since, logged: now });
                tracing::warn!(consumer, component = component.name(), "waiting: {reason}");
            }
        }
        self.metrics.waiting(component.name(), true);
        self.publish(&waits);
    }

    /// `component` moves.
    pub(crate) fn moving(&self, component: Component) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.begun |= component == Component::Reader;
        if let Some(wait) = waits.of.remove(&component) {
            let waited = wait.since.elapsed().unwrap_or_default();
            let consumer = self.consumer.as_str();
            tracing::info!(consumer, component = component.name(), "runs again after {waited:.1?}");
            self.metrics.waiting(component.name(), false);
        }
        self.publish(&waits);
    }

    pub(crate) fn stopped(&self) {
        self.status.send_modify(|status| status.state = State::Stopped);
    }

    fn publish(&self, waits: &Waits) {
        let state = match waits.of.first_key_value() {
            Some((component, wait)) => State::Waiting {
                component: component.name(),
                reason: wait.reason.clone(),
                since: wait.since,
            },
            None if waits.begun => State::Running,
            None => State::Starting,
        };
        self.status.send_if_modified(|status| {
            let changed = status.state != state;
            status.state = state;
            changed
        });
    }
}
