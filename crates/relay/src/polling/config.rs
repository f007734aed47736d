//! The polling relay's settings, validated.

use std::time::Duration;

/// What a polling relay needs to know beyond source and sink.
#[derive(Debug, Clone)]
pub struct PollingConfig {
    /// Names the relay in `claimed_by`; each run adds something of its own.
    pub relay: String,
    /// How long a claim lasts unless it is renewed: what a killed relay holds up its rows for.
    pub lease: Duration,
    /// Time between two looks while events come in.
    pub interval: Duration,
    /// Longest time between two looks when none come.
    pub max_interval: Duration,
    /// What else makes it look.
    pub wake_up: WakeUp,
    /// Published rows that are older are deleted; `None` keeps them.
    pub retention: Option<Duration>,
    /// Names of the columns that are the polling relay's own.
    pub columns: ClaimColumns,
}

/// What makes a polling relay look for events beside its interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeUp {
    /// Nothing.
    Interval,
    /// A notification on the channel `outflow_outbox`, which a trigger sends.
    Notify,
}

/// Columns of the outbox that hold the state of polling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimColumns {
    /// `text`.
    pub claimed_by: String,
    /// `timestamptz`.
    pub claimed_until: String,
    /// `timestamptz`.
    pub published_at: String,
}

impl Default for ClaimColumns {
    fn default() -> Self {
        Self {
            claimed_by: "claimed_by".into(),
            claimed_until: "claimed_until".into(),
            published_at: "published_at".into(),
        }
    }
}

impl ClaimColumns {
    /// All three, with their types.
    pub(crate) fn with_types(&self) -> [(&str, &'static str); 3] {
        [
            (self.claimed_by.as_str(), "text"),
            (self.claimed_until.as_str(), "timestamptz"),
            (self.published_at.as_str(), "timestamptz"),
        ]
    }
}
