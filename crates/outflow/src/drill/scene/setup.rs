//! What a scene is made of.

use outflow_sandbox::{Postgres, PostgresBuilder, Redis, RedisBuilder};

use crate::oracle::check::Rules;

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
