//! Options as they are written, and the configuration that they make once every value is checked.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outflow_broker::Target;
use outflow_event::{EntryId, Position};

use crate::error::ConfigError;
use crate::time::{micros_since_epoch, rfc3339};

/// Where a consumer begins in a stream that it has no stored position for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The first entry that the stream still holds: a full re-projection.
    Beginning,
    /// Entries added from now on.
    Now,
    /// The entry after this id.
    After(EntryId),
    /// The entry after the one at this position, in the stream's present epoch.
    Position(Position),
    /// The first entry whose transaction committed at this time or later, by the source's clock.
    Time(SystemTime),
}

impl std::fmt::Display for Start {
    /// Writes the form that `FromStr` reads.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Beginning => f.write_str("beginning"),
            Self::Now => f.write_str("now"),
            Self::After(id) => id.fmt(f),
            Self::Position(position) => position.fmt(f),
            Self::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                f.write_str(&rfc3339(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
            }
        }
    }
}

impl std::str::FromStr for Start {
    type Err = ConfigError;

    /// Reads `beginning`, `now`, a position, a time in UTC (RFC 3339, with a `Z`) or an entry id.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = || {
            let micros = u64::try_from(micros_since_epoch(text)?).ok()?;
            Some(Self::Time(UNIX_EPOCH + Duration::from_micros(micros)))
        };
        match text {
            "beginning" => Ok(Self::Beginning),
            "now" => Ok(Self::Now),
            text => text
                .parse()
                .map(Self::After)
                .ok()
                .or_else(|| text.parse().map(Self::Position).ok())
                .or_else(time)
                .ok_or_else(|| ConfigError {
                    key: "from",
                    value: format!("\"{text}\""),
                    allowed: "expected \"beginning\", \"now\", a position such as 0/16B3748:3, a time \
                              such as 2026-01-31T12:00:00Z or an entry id such as 1526919030474-55",
                }),
        }
    }
}

/// What happens to the later events of an aggregate of which one is a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// They wait behind it, in order, until it is retried or discarded.
    #[default]
    ParkAggregate,
    /// They go on without it.
    Skip,
}

/// What to do about a `seq` that is missing in an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnGap {
    /// Nothing: numbers are not looked at.
    #[default]
    Ignore,
    /// Say so, and go on.
    Warn,
    /// Hold the later events of the aggregate back until it comes, at most for `gap_wait`.
    Wait,
}

/// What happens to events that cannot be applied, or not yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FailurePolicy {
    pub(crate) max_attempts: u32,
    pub(crate) on_failure: OnFailure,
    pub(crate) on_gap: OnGap,
    pub(crate) gap_wait: Duration,
    pub(crate) attempt_first: Duration,
    pub(crate) attempt_longest: Duration,
}

/// Options of a consumer, not checked yet. Start from `Default`.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// The projection: the unit of deduplication, and the name of the group in Redis.
    pub consumer_id: String,
    /// This process: give every process of one consumer another name. In the groups of Redis it bears this
    /// name and a number that is new with every start, `worker-1:3f2a91c0`; with `share_streams` the name
    /// alone: keep it over restarts then.
    pub worker: String,
    /// Redis, for example `"redis://:password@127.0.0.1:6379/0".parse()?`.
    pub redis: Target,
    /// Keys of the streams to read (`StreamNaming::keys` of the event crate).
    pub streams: Vec<String>,
    /// Where to begin in streams that the consumer's database has no position for. Streams that are
    /// empty need no answer; with `None`, ones that hold entries already are refused
    /// ([`Error::StartNeeded`](crate::Error::StartNeeded)).
    pub from: Option<Start>,
    /// Most entries of one transaction.
    pub batch: usize,
    /// Bytes of one transaction to aim at: large entries are read in smaller batches.
    pub batch_bytes: usize,
    /// How long one read waits for entries; also bounds how long a stop waits for the read.
    pub block: Duration,
    /// How long to wait for any other reply of Redis, and beyond `block` for that of a read.
    pub response_timeout: Duration,
    /// How often to look for entries that other workers left pending.
    pub claim_interval: Duration,
    /// How long an entry must have been pending before it is taken from its worker: more than the
    /// longest transaction. Correctness does not rest on it (the inbox key is the fence), work
    /// done twice does.
    pub claim_min_idle: Duration,
    /// How often to measure lag and to store the position of an idle stream.
    pub report_interval: Duration,
    /// Longest run of one transaction; then its connection is dropped and the batch tried again.
    pub apply_timeout: Duration,
    /// How long this worker has a stream for itself without renewing that; another one takes it no
    /// earlier, unless it sees that this one is gone. More than twice `block`.
    pub lease: Duration,
    /// Several workers read one stream at once, and give up the order within an aggregate for it.
    pub share_streams: bool,
    /// How often an event is tried before it becomes a dead letter. Lost connections, deadlocks,
    /// shutdowns and a projection that no event can succeed with (a missing table) do not count.
    pub max_attempts: u32,
    /// What happens to the events behind a dead letter.
    pub on_failure: OnFailure,
    /// What to do about a `seq` that is missing in an aggregate.
    pub on_gap: OnGap,
    /// How long to wait for it; then the aggregate goes on without, and says so.
    pub gap_wait: Duration,
    /// Delay between the first attempt of an event and the second; doubles up to `attempt_longest`.
    /// Other aggregates go on meanwhile.
    pub attempt_first: Duration,
    /// Longest delay between two attempts of an event.
    pub attempt_longest: Duration,
    /// First delay after a failure that is no event's fault; doubles up to `retry_longest`.
    pub retry_first: Duration,
    /// Longest delay between two attempts.
    pub retry_longest: Duration,
    /// How long a stop may take to finish what was read.
    pub stop_timeout: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            consumer_id: String::new(),
            worker: "worker-1".to_owned(),
            redis: Target::default(),
            streams: Vec::new(),
            from: None,
            batch: 1_000,
            batch_bytes: 16 << 20,
            block: Duration::from_secs(2),
            response_timeout: Duration::from_secs(5),
            claim_interval: Duration::from_secs(5),
            claim_min_idle: Duration::from_secs(60),
            report_interval: Duration::from_secs(1),
            apply_timeout: Duration::from_secs(300),
            lease: Duration::from_secs(15),
            share_streams: false,
            max_attempts: 5,
            on_failure: OnFailure::ParkAggregate,
            on_gap: OnGap::Ignore,
            gap_wait: Duration::from_secs(30),
            attempt_first: Duration::from_secs(1),
            attempt_longest: Duration::from_secs(60),
            retry_first: Duration::from_millis(100),
            retry_longest: Duration::from_secs(5),
            stop_timeout: Duration::from_secs(10),
        }
    }
}

impl ConsumerOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigError`] names the key, its value and what is allowed.
    pub fn validate(mut self) -> Result<ConsumerConfig, ConfigError> {
        name("consumer_id", &self.consumer_id)?;
        name("worker", &self.worker)?;
        let value = format!("{:?}", self.streams);
        self.streams.sort_unstable();
        let all = self.streams.len();
        self.streams.dedup();
        if all == 0 || self.streams.len() != all || self.streams.iter().any(|key| !is_text(key)) {
            let allowed = "expected at least one key, none of them empty, none twice";
            return Err(ConfigError { key: "streams", value, allowed });
        }
        range("batch", self.batch, 1, 10_000, "expected 1 to 10000 entries")?;
        range("batch_bytes", self.batch_bytes, 1 << 10, 512 << 20, "expected 1 KiB to 512 MiB")?;
        let attempts = usize::try_from(self.max_attempts).unwrap_or(usize::MAX);
        range("max_attempts", attempts, 1, 1_000, "expected 1 to 1000 attempts")?;
        let ms = Duration::from_millis;
        let times = [
            ("block", self.block, ms(1), ms(60_000), "expected 1ms to 1min"),
            (
                "response_timeout",
                self.response_timeout,
                ms(100),
                ms(60_000),
                "expected 100ms to 1min",
            ),
            ("claim_interval", self.claim_interval, ms(10), ms(3_600_000), "expected 10ms to 1h"),
            ("claim_min_idle", self.claim_min_idle, ms(1), ms(86_400_000), "expected 1ms to 1d"),
            ("report_interval", self.report_interval, ms(10), ms(60_000), "expected 10ms to 1min"),
            ("apply_timeout", self.apply_timeout, ms(100), ms(86_400_000), "expected 100ms to 1d"),
            (
                "lease",
                self.lease,
                (self.block * 2).max(ms(500)),
                ms(3_600_000),
                "expected twice `block`, at least 500ms, to 1h",
            ),
            ("gap_wait", self.gap_wait, ms(1), ms(86_400_000), "expected 1ms to 1d"),
            ("attempt_first", self.attempt_first, ms(1), ms(86_400_000), "expected 1ms to 1d"),
            (
                "attempt_longest",
                self.attempt_longest,
                self.attempt_first,
                ms(86_400_000),
                "expected attempt_first to 1d",
            ),
            ("retry_first", self.retry_first, ms(1), ms(60_000), "expected 1ms to 1min"),
            (
                "retry_longest",
                self.retry_longest,
                self.retry_first,
                ms(600_000),
                "expected retry_first to 10min",
            ),
            ("stop_timeout", self.stop_timeout, ms(10), ms(3_600_000), "expected 10ms to 1h"),
        ];
        for (key, value, least, most, allowed) in times {
            if value < least || value > most {
                return Err(ConfigError { key, value: format!("{value:?}"), allowed });
            }
        }
        Ok(ConsumerConfig(self))
    }
}

/// The checked configuration of a consumer; made by [`ConsumerOptions::validate`].
#[derive(Debug, Clone)]
pub struct ConsumerConfig(ConsumerOptions);

impl ConsumerConfig {
    pub(crate) fn failure_policy(&self) -> FailurePolicy {
        FailurePolicy {
            max_attempts: self.max_attempts,
            on_failure: self.on_failure,
            on_gap: self.on_gap,
            gap_wait: self.gap_wait,
            attempt_first: self.attempt_first,
            attempt_longest: self.attempt_longest,
        }
    }
}

impl std::ops::Deref for ConsumerConfig {
    type Target = ConsumerOptions;

    fn deref(&self) -> &ConsumerOptions {
        &self.0
    }
}

fn is_text(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

fn name(key: &'static str, value: &str) -> Result<(), ConfigError> {
    if is_text(value) && value.len() <= 200 {
        return Ok(());
    }
    let allowed = "expected 1 to 200 bytes of text";
    Err(ConfigError { key, value: format!("{value:?}"), allowed })
}

fn range(
    key: &'static str,
    value: usize,
    least: usize,
    most: usize,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError { key, value: value.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ConsumerOptions {
        ConsumerOptions {
            consumer_id: "accounting".to_owned(),
            streams: vec!["outflow:b".to_owned(), "outflow:a".to_owned()],
            ..ConsumerOptions::default()
        }
    }

    #[test]
    fn the_defaults_need_only_a_consumer_and_streams() {
        let config = options().validate().unwrap();
        assert_eq!(config.streams, ["outflow:a", "outflow:b"]);
        assert_eq!(ConsumerOptions::default().validate().unwrap_err().key, "consumer_id");
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        let error = ConsumerOptions { batch: 0, ..options() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "batch = 0: expected 1 to 10000 entries");
        let twice = ConsumerOptions { streams: vec!["a".into(), "a".into()], ..options() };
        assert_eq!(twice.validate().unwrap_err().key, "streams");
        let longest = ConsumerOptions { retry_longest: Duration::ZERO, ..options() };
        assert_eq!(longest.validate().unwrap_err().key, "retry_longest");
    }

    #[test]
    fn a_password_is_not_shown() {
        let redis = "redis://:secret@host".parse().unwrap();
        let options = ConsumerOptions { redis, ..options() };
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn a_start_is_a_word_a_place_or_a_time() {
        assert_eq!("beginning".parse(), Ok(Start::Beginning));
        assert_eq!("now".parse(), Ok(Start::Now));
        assert_eq!("5-1".parse(), Ok(Start::After(EntryId { major: 5, minor: 1 })));
        assert_eq!("$".parse::<Start>().unwrap_err().key, "from");
        for text in ["beginning", "now", "5-1", "0/16B3748:3", "2026-01-31T12:00:00Z"] {
            assert_eq!(text.parse::<Start>().unwrap().to_string(), text);
        }
    }
}
