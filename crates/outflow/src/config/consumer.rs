//! `[consumer]`: the settings of `outflow consume` and of the commands beside it.

use std::path::PathBuf;

use outflow_broker::Target;
use outflow_inbox::{ConsumerOptions, OnFailure, OnGap};

use super::check;
use super::reader::Reader;
use super::redact::Url;
use super::settings::{millis, seconds, target};
use super::size::ByteSize;

/// `[consumer]`.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) url: Url,
    /// Where it differs from the sink.
    pub(crate) redis: Option<Target>,
    /// Aggregate types.
    pub(crate) streams: Vec<String>,
    pub(crate) projection: Option<PathBuf>,
    /// The rest as the inbox takes it; `streams` and `redis` in it are still empty.
    pub(crate) options: ConsumerOptions,
}

impl Consumer {
    pub(super) fn read(read: &mut Reader) -> Self {
        let default = ConsumerOptions::default();
        let name = |text: &str| if text.is_empty() { Ok(()) } else { check::name(text) };
        let consumer_id = read.text("consumer.id", "", name);
        let worker = read.text("consumer.worker", &default_worker(), check::name);
        let url = Url(read.url("consumer.url", "", check::postgres_url));
        let redis = read.url("consumer.redis_url", "", |text| {
            if text.is_empty() { Ok(()) } else { check::redis_url(text) }
        });
        let redis = (!redis.is_empty()).then(|| target(&redis));
        let streams = read.list("consumer.streams", &[], check::not_empty);
        let projection = read.text("consumer.projection", "", check::any);
        let from = read.shown("consumer.from", None, check::show_start, check::start);
        let batch = read.integer("consumer.batch", 1000, 1..=10_000);
        let batch_bytes = read.size(
            "consumer.batch_bytes",
            ByteSize(default.batch_bytes),
            ByteSize::kib(1)..=ByteSize::mib(512),
        );
        // with "none" several workers share a stream
        let share_streams = read.choice("consumer.order", ("aggregate", false), &[("none", true)]);
        let max_attempts = read.integer("consumer.max_attempts", default.max_attempts, 1..=1_000);
        let on_failure = read.choice(
            "consumer.on_failure",
            ("park_aggregate", OnFailure::ParkAggregate),
            &[("skip", OnFailure::Skip)],
        );
        let on_gap = read.choice(
            "consumer.on_gap",
            ("ignore", OnGap::Ignore),
            &[("warn", OnGap::Warn), ("wait", OnGap::Wait)],
        );
        let mut time = |key, default, least, most| read.duration(key, default, least..=most);
        let (ms, minute, hour, day) = (millis, seconds(60), seconds(3600), seconds(86_400));
        let options = ConsumerOptions {
            consumer_id,
            worker,
            from,
            batch: usize::try_from(batch).unwrap_or(default.batch),
            batch_bytes,
            lease: time("consumer.lease", default.lease, ms(500), hour),
            share_streams,
            max_attempts,
            on_failure,
            on_gap,
            gap_wait: time("consumer.gap_wait", default.gap_wait, ms(1), day),
            attempt_first: time("consumer.attempt_first", default.attempt_first, ms(1), day),
            attempt_longest: time("consumer.attempt_longest", default.attempt_longest, ms(1), day),
            block: time("consumer.block", seconds(1), ms(1), minute),
            response_timeout: time(
                "consumer.response_timeout",
                default.response_timeout,
                ms(100),
                minute,
            ),
            claim_interval: time("consumer.claim_interval", seconds(15), ms(10), hour),
            claim_min_idle: time("consumer.claim_min_idle", minute, ms(1), day),
            report_interval: time(
                "consumer.report_interval",
                default.report_interval,
                ms(10),
                minute,
            ),
            apply_timeout: time("consumer.apply_timeout", default.apply_timeout, ms(100), day),
            stop_timeout: time("consumer.stop_timeout", default.stop_timeout, ms(10), hour),
            ..default
        };
        let projection = Some(projection).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self { url, redis, streams, projection, options }
    }
}

/// `<host>-<process id>`: in a container, where every process has the same id, the host is the
/// container's own.
pub(super) fn default_worker() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let mut host: String = host
        .trim()
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .take(50)
        .collect();
    if host.is_empty() {
        host = "worker".to_owned();
    }
    format!("{host}-{}", std::process::id())
}
