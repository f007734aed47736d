//! `[retention]`: what to keep for how long.

use std::time::Duration;

use super::check;
use super::reader::Reader;

/// `[retention]`.
#[derive(Debug)]
pub(crate) struct Retention {
    pub(crate) outbox: Option<Duration>,
    pub(crate) streams: Option<Duration>,
    pub(crate) inbox: Option<Duration>,
    pub(crate) settled: Option<Duration>,
    pub(crate) interval: Duration,
    pub(crate) batch: u32,
    pub(crate) consumers: Vec<String>,
}

impl Retention {
    /// Something of the connector's side is to be removed.
    pub(crate) fn of_relay(&self) -> bool {
        self.outbox.is_some() || self.streams.is_some()
    }

    /// Something of the consumer's side is to be removed.
    pub(crate) fn of_consumer(&self) -> bool {
        self.inbox.is_some() || self.settled.is_some()
    }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl Retention {
    pub(super) fn read(read: &mut Reader) -> Self {
        let mut age = |key| read.shown(key, None, check::show_age, check::age);
        Self {
            outbox: age("retention.outbox"),
            streams: age("retention.streams"),
            inbox: age("retention.inbox"),
            settled: age("retention.settled"),
            interval: read.duration(
                "retention.interval",
                seconds(600),
                seconds(1)..=seconds(86_400),
            ),
            batch: read.integer("retention.batch", 1000, 1..=100_000),
            consumers: read.list("retention.consumers", &[], check::name),
        }
    }
}
