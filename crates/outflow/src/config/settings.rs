//! Every setting with its default and its limits.

use std::net::SocketAddr;
use std::time::Duration;

use outflow_broker::Target;
use outflow_relay::PollingConfig;
use outflow_relay::config::{
    Column, ColumnNames, Durability, EntryIdMode, OffsetStoreKind, SnapshotMode, TableName,
};

use super::check;
use super::consumer::Consumer;
use super::layers::{Layers, Sources};
use super::problem::Problems;
use super::reader::{Reader, Setting};
use super::redact::Url;
use super::retention::Retention;
use super::size::ByteSize;

/// The configuration of every command.
#[derive(Debug)]
pub(crate) struct Config {
    /// Names the offset, the ledger and the metrics.
    pub(crate) connector: String,
    /// The database with the outbox.
    pub(crate) source: Source,
    /// The broker.
    pub(crate) sink: Sink,
    /// Where the connector keeps its position.
    pub(crate) offset: Offset,
    /// The polling relay.
    pub(crate) polling: PollingConfig,
    /// The consumer.
    pub(crate) consumer: Consumer,
    /// What to keep for how long.
    pub(crate) retention: Retention,
    /// Address of the health and metrics endpoints.
    pub(crate) listen: Option<SocketAddr>,
    /// What is logged.
    pub(crate) log: Log,
    /// All of it as it is shown.
    pub(crate) settings: Vec<Setting>,
}

/// `[source]`.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) url: Url,
    pub(crate) table: TableName,
    pub(crate) publication: String,
    pub(crate) slot: String,
    pub(crate) snapshot: SnapshotMode,
    pub(crate) message_prefix: Option<String>,
    pub(crate) max_payload: usize,
    pub(crate) status_interval: Duration,
    pub(crate) check_interval: Duration,
    pub(crate) rewind_interval: Duration,
    pub(crate) columns: ColumnNames,
    pub(crate) order_by: Vec<String>,
}

/// `[sink]`.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) redis: Target,
    pub(crate) stream_prefix: String,
    pub(crate) partitions: u32,
    pub(crate) entry_id: EntryIdMode,
    pub(crate) durability: Durability,
    pub(crate) batch_entries: u32,
    pub(crate) batch_bytes: usize,
    pub(crate) timeout: Duration,
}

/// `[offset]`.
#[derive(Debug)]
pub(crate) struct Offset {
    pub(crate) store: OffsetStoreKind,
    pub(crate) ledger_entries: u32,
    pub(crate) ledger_interval: Duration,
}

/// `[log]`.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) level: String,
    /// Whether somebody asked for this level: then it outranks RUST_LOG.
    pub(crate) level_is_flag: bool,
    pub(crate) format: LogFormat,
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people on a terminal, JSON for machines.
    Auto,
    /// One readable line an event.
    Human,
    /// One JSON object an event.
    Json,
}

impl LogFormat {
    /// As the configuration writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(super) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// All mistakes of all layers at once.
    pub(crate) fn load(sources: &Sources) -> Result<Self, Problems> {
        let mut read = Reader::new(Layers::read(sources));
        let connector = read.text("connector", "outflow", check::name);
        let mut config = Self {
            source: Source::read(&mut read, &connector),
            sink: Sink::read(&mut read),
            offset: Offset::read(&mut read),
            polling: super::polling::read(&mut read),
            consumer: Consumer::read(&mut read),
            retention: Retention::read(&mut read),
            listen: read.shown("http.listen", None, check::show_listen, check::listen),
            log: Log::read(&mut read),
            connector,
            settings: Vec::new(),
        };
        let (settings, problems) = read.finish();
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        config.settings = settings;
        Ok(config)
    }
}

impl Source {
    fn read(read: &mut Reader, connector: &str) -> Self {
        let url = Url(read.url("source.url", "", check::postgres_url));
        let default_table = TableName { schema: "outflow".to_owned(), name: "outbox".to_owned() };
        let table = read.shown("source.table", default_table, TableName::to_string, check::table);
        let publication = read.text("source.publication", "outflow", check::identifier);
        let slot = read.text("source.slot", connector, check::slot);
        if !read.is_set("source.slot") && check::slot(&slot).is_err() {
            read.problem(
                "source.slot",
                "the connector's name cannot name a slot: set source.slot (lower-case letters, \
                 digits and `_`)",
            );
        }
        let snapshot = read.choice(
            "source.snapshot",
            ("initial", SnapshotMode::Initial),
            &[("never", SnapshotMode::Never)],
        );
        let message_prefix = read.text("source.message_prefix", "outflow", check::any);
        Self {
            url,
            table,
            publication,
            slot,
            snapshot,
            message_prefix: Some(message_prefix).filter(|prefix| !prefix.is_empty()),
            max_payload: read.size(
                "source.max_payload",
                ByteSize::mib(16),
                ByteSize::kib(1)..=ByteSize::mib(512),
            ),
            status_interval: read.duration(
                "source.status_interval",
                seconds(10),
                millis(100)..=seconds(30),
            ),
            rewind_interval: read.duration(
                "source.rewind_interval",
                seconds(300),
                Duration::ZERO..=seconds(86_400),
            ),
            check_interval: read.duration(
                "source.check_interval",
                seconds(5),
                millis(100)..=seconds(300),
            ),
            columns: read_columns(read),
            order_by: read.list("source.order_by", &[], check::identifier),
        }
    }
}

fn read_columns(read: &mut Reader) -> ColumnNames {
    let mut optional = |key: &'static str, name: &str| {
        let column = read.text(key, name, check::optional_identifier);
        match (column.is_empty(), read.is_set(key)) {
            (true, _) => Column::None,
            (false, true) => Column::Required(column),
            (false, false) => Column::IfPresent(column),
        }
    };
    let seq = optional("source.columns.seq", "seq");
    let headers = optional("source.columns.headers", "headers");
    let created_at = optional("source.columns.created_at", "created_at");
    let mut required = |key: &'static str, name: &str| read.text(key, name, check::identifier);
    ColumnNames {
        event_id: required("source.columns.event_id", "event_id"),
        aggregate_type: required("source.columns.aggregate_type", "aggregate_type"),
        aggregate_id: required("source.columns.aggregate_id", "aggregate_id"),
        event_type: required("source.columns.event_type", "event_type"),
        payload: required("source.columns.payload", "payload"),
        seq,
        headers,
        created_at,
        omit: read.list(
            "source.columns.omit",
            &["id", "claimed_by", "claimed_until", "published_at"],
            check::identifier,
        ),
    }
}

const DEFAULT_REDIS: &str = "redis://127.0.0.1:6379";

/// A URL that the reader has checked: one that it complained of is not used.
pub(super) fn target(url: &str) -> Target {
    url.parse().unwrap_or_default()
}

impl Sink {
    fn read(read: &mut Reader) -> Self {
        let url = read.url("sink.url", DEFAULT_REDIS, check::redis_url);
        Self {
            redis: target(&url),
            stream_prefix: read.text("sink.stream_prefix", "outflow:", check::any),
            partitions: read.integer("sink.partitions", 1, 1..=1024),
            entry_id: read.choice(
                "sink.entry_id",
                ("lsn", EntryIdMode::Lsn),
                &[("auto", EntryIdMode::Auto)],
            ),
            durability: read.shown(
                "sink.durability",
                Durability::Memory,
                check::show_durability,
                check::durability,
            ),
            batch_entries: read.integer("sink.batch_entries", 500, 1..=100_000),
            batch_bytes: read.size(
                "sink.batch_bytes",
                ByteSize::mib(1),
                ByteSize::kib(1)..=ByteSize::mib(256),
            ),
            timeout: read.duration("sink.timeout", seconds(5), millis(100)..=seconds(600)),
        }
    }
}

impl Offset {
    fn read(read: &mut Reader) -> Self {
        Self {
            store: read.choice(
                "offset.store",
                ("redis", OffsetStoreKind::Redis),
                &[("postgres", OffsetStoreKind::Postgres)],
            ),
            ledger_entries: read.integer("offset.ledger_entries", 10_000, 1..=10_000_000),
            ledger_interval: read.duration(
                "offset.ledger_interval",
                seconds(1),
                millis(0)..=seconds(3600),
            ),
        }
    }
}

impl Log {
    fn read(read: &mut Reader) -> Self {
        let level = read.text("log.level", "info", check::log_level);
        Self {
            level,
            level_is_flag: read.is_flag("log.level"),
            format: read.choice(
                "log.format",
                ("auto", LogFormat::Auto),
                &[("human", LogFormat::Human), ("json", LogFormat::Json)],
            ),
        }
    }
}
