//! What a scene is made of, and the configuration of its processes.

use std::path::Path;

use outflow_sandbox::{Postgres, PostgresBuilder, Redis, RedisBuilder};

use super::{CONNECTOR, STREAMS};
use crate::oracle::check::Rules;
use crate::rig::CONSUMER;

/// Which relay is drilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::drill) enum Relay {
    /// `outflow relay`.
    Connector,
    /// `outflow relay --polling`.
    Polling,
}

impl Relay {
    /// The command.
    pub(super) const fn args(self) -> &'static [&'static str] {
        match self {
            Self::Connector => &["relay"],
            Self::Polling => &["relay", "--polling"],
        }
    }
}

/// What a scene is made of; the defaults are those of the program.
#[derive(Debug, Clone)]
pub(in crate::drill) struct Setup {
    pub(in crate::drill) relay: Relay,
    /// Settings that differ from the defaults: `sink.entry_id=auto`.
    pub(in crate::drill) set: Vec<String>,
    pub(in crate::drill) postgres: PostgresBuilder,
    pub(in crate::drill) redis: RedisBuilder,
    /// Statements behind those of the demo's projection.
    pub(in crate::drill) projection: &'static str,
    /// The inbox has a PostgreSQL of its own, so that the source can be broken without it.
    pub(in crate::drill) books_apart: bool,
}

impl Setup {
    /// A relay with defaults, a PostgreSQL, a Redis without persistence.
    pub(in crate::drill) fn new(relay: Relay) -> Self {
        Self {
            relay,
            set: Vec::new(),
            postgres: Postgres::builder(),
            redis: Redis::builder(),
            projection: "",
            books_apart: false,
        }
    }

    /// With this setting.
    pub(in crate::drill) fn set(mut self, setting: &str) -> Self {
        self.set.push(setting.to_owned());
        self
    }

    /// What the relay promises with these settings: at least once, or once.
    pub(super) fn rules(&self) -> Rules {
        let has = |setting: &str| self.set.iter().any(|set| set == setting);
        let auto = has("sink.entry_id=auto") || self.relay == Relay::Polling;
        let apart = has("offset.store=postgres") || self.relay == Relay::Polling;
        Rules { lsn_ids: !auto, may_repeat: auto && apart }
    }
}

/// URLs of the ways that processes take.
pub(super) struct Ways {
    /// From the relay to PostgreSQL.
    pub(super) source: String,
    /// From the relay to Redis.
    pub(super) sink: String,
    /// From the consumer to Redis.
    pub(super) inbox: String,
    /// From the consumer to PostgreSQL.
    pub(super) books: String,
}

/// The text of the configuration.
pub(super) fn config(ways: &Ways, projection: &Path) -> String {
    // URLs and paths may hold any letter
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let [source, sink, inbox, books] =
        [&ways.source, &ways.sink, &ways.inbox, &ways.books].map(|url| quoted(url));
    let projection = quoted(&projection.display().to_string());
    format!(
        r#"# made by `outflow drill`
connector = "{CONNECTOR}"

[source]
url = {source}

[sink]
url = {sink}
stream_prefix = "{STREAMS}"

[polling]
relay = "relay-1"

[consumer]
id = "{CONSUMER}"
# stays the same over restarts, so that a worker that was killed finds what it had not acknowledged
worker = "worker-1"
url = {books}
redis_url = {inbox}
streams = ["journal"]
projection = {projection}
from = "beginning"

[log]
format = "human"
"#
    )
}
