//! What the connector is doing, for `status`, health checks and the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::metrics;
use crate::offset::Offset;

/// A connector seen from outside.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Events published since this process started.
    pub published: u64,
    /// Dead letters written since this process started.
    pub dead_letters: u64,
    /// Last stored resume LSN, in PostgreSQL's form.
    pub stored_lsn: Option<String>,
    /// Position of the last published event.
    pub position: Option<String>,
    /// End of the source's WAL as last heard of.
    pub source_lsn: Option<String>,
    /// Bytes of WAL between the two.
    pub lag_bytes: u64,
}

/// The state of a connector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Checking both servers and the stored offset.
    #[default]
    Starting,
    /// Publishing the rows that are older than the slot.
    Snapshot,
    /// Publishing what the log brings.
    Streaming,
    /// Publishing what the outbox holds, row by row: the polling relay at work.
    Polling,
    /// Standing still.
    Waiting {
        /// What it waits for: `source`, `slot`, `publication`, `sink` or `offset`.
        on: On,
        /// Why, in words an operator can act on.
        reason: String,
    },
    /// Finished.
    Stopped,
}

/// What a connector can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// The PostgreSQL server or the link to it.
    Source,
    /// The replication slot.
    Slot,
    /// The publication or the table.
    Publication,
    /// Redis.
    Sink,
    /// The offset store, or an offset that does not fit the server.
    Offset,
}

impl On {
    /// The label in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Slot => "slot",
            Self::Publication => "publication",
            Self::Sink => "sink",
            Self::Offset => "offset",
        }
    }
}

/// While it stands still, the connector repeats why this often.
const REMINDER: Duration = Duration::from_secs(60);

/// Where the connector reports to. Cloning gives another handle to the same status.
#[derive(Debug, Clone)]
pub struct Reporter {
    status: Arc<watch::Sender<Status>>,
    /// What the log says by now, and since when.
    said: Arc<Mutex<Option<(State, Instant)>>>,
}

impl Default for Reporter {
    fn default() -> Self {
        Self::new()
    }
}

impl Reporter {
    /// A reporter whose status is `Starting`.
    #[must_use]
    pub fn new() -> Self {
        Self { status: Arc::new(watch::Sender::default()), said: Arc::default() }
    }

    /// A view of the status that follows it.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Reports a state, and logs it when it is news or has stood for long.
    pub fn state(&self, state: State) {
        self.status.send_if_modified(|status| {
            let changed = status.state != state;
            if changed {
                status.state = state.clone();
            }
            changed
        });
        metrics::standing_still(match &state {
            State::Waiting { on, .. } => Some(*on),
            _ => None,
        });
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let news = match &*said {
            None => true,
            Some((said, when)) => *said != state || when.elapsed() >= REMINDER,
        };
        if !news {
            return;
        }
        match &state {
            State::Waiting { on, reason } => warn!(on = on.as_str(), "standing still: {reason}"),
            State::Starting | State::Snapshot => {}
            State::Streaming => info!("streaming"),
            State::Polling => info!("polling"),
            State::Stopped => info!("stopped"),
        }
        *said = Some((state, Instant::now()));
    }

    /// Reports that what was waited for is there, unless something else is waited for by now.
    pub(crate) fn recovered(&self, from: On, state: State) {
        let waits = matches!(self.status.borrow().state, State::Waiting { on, .. } if on == from);
        if waits {
            self.state(state);
        }
    }

    /// Reports a published batch.
    pub fn published(&self, offset: &Offset, events: u64, dead_letters: u64) {
        self.status.send_modify(|status| {
            status.published += events;
            status.dead_letters += dead_letters;
            status.stored_lsn = Some(offset.end_lsn.to_string());
            status.position = offset.position.map(|position| position.to_string());
        });
    }

    /// Reports a published batch that no offset covers.
    pub(crate) fn published_rows(&self, events: u64, dead_letters: u64) {
        self.status.send_modify(|status| {
            status.published += events;
            status.dead_letters += dead_letters;
        });
    }

    /// Reports how far the source is ahead.
    pub fn lag(&self, source: outflow_event::Lsn, stored: outflow_event::Lsn) {
        let lag = u64::from(source).saturating_sub(u64::from(stored));
        metrics::lag_bytes(lag);
        self.status.send_modify(|status| {
            status.source_lsn = Some(source.to_string());
            status.lag_bytes = lag;
        });
    }
}
