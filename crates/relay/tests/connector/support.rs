//! What the integration tests share: real servers, an outbox, a connector that runs in the test.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;
use std::time::Duration;

use outflow_event::{EntryId, StreamNaming};
use outflow_pgoutput::ConnectOptions;
use outflow_relay::PollingConfig;
use outflow_relay::config::{
    ColumnNames, ConnectorConfig, Durability, EntryIdMode, OffsetConfig, OffsetStoreKind,
    SinkConfig, SnapshotMode, SourceConfig, TableName,
};
use outflow_relay::status::{On, Reporter, State, Status};
use outflow_sandbox::logs::Capture;
use outflow_sandbox::{Database, Postgres, Redis};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest time that anything in a test may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Servers, a database with the outbox, and a configuration for them.
pub struct World {
    pub pg: Postgres,
    pub redis: Redis,
    pub database: Database,
    pub sql: tokio_postgres::Client,
    pub config: ConnectorConfig,
    /// Fails the test when the connector warns of something that the test does not expect.
    pub logs: Arc<Capture>,
}

/// A connector that runs as a task of the test.
pub struct Running {
    pub shutdown: CancellationToken,
    pub status: watch::Receiver<Status>,
    pub task: JoinHandle<Result<(), outflow_relay::Error>>,
    logs: Arc<Capture>,
}

type Record = (String, Vec<(String, Vec<u8>)>);

/// An entry as Redis has it, fields in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    pub id: EntryId,
    pub fields: Vec<(String, Vec<u8>)>,
}

impl RawEntry {
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(field, _)| field == name)?;
        std::str::from_utf8(value).ok()
    }
}

impl World {
    /// Servers with the outbox of sql/producer.
    pub async fn start() -> Self {
        Self::with(Postgres::builder(), Redis::builder()).await
    }

    pub async fn with(
        pg: outflow_sandbox::PostgresBuilder,
        redis: outflow_sandbox::RedisBuilder,
    ) -> Self {
        let logs = Arc::new(Capture::install());
        // the sandbox's Redis keeps nothing on disk, which is worth a warning elsewhere
        logs.expect_warn("persistence");
        let (pg, redis) = tokio::join!(pg.start(), redis.start());
        let (pg, redis) = (pg.unwrap(), redis.unwrap());
        let database = pg.fresh_database().await.unwrap();
        let sql = pg.connect_to(&database.name).await.unwrap();
        for migration in migrations("producer") {
            sql.batch_execute(&migration).await.unwrap();
        }
        let config = config(&database.url, &redis.url());
        Self { pg, redis, database, sql, config, logs }
    }

    /// Starts a connector with the world's configuration and waits until it streams.
    pub async fn connector(&self) -> Running {
        let running = self.spawn();
        running.streaming().await;
        running
    }

    /// Starts a connector.
    pub fn spawn(&self) -> Running {
        self.spawn_with(self.config.clone())
    }

    /// Starts a connector with another configuration.
    pub fn spawn_with(&self, config: ConnectorConfig) -> Running {
        let (reporter, shutdown) = (Reporter::new(), CancellationToken::new());
        let status = reporter.subscribe();
        let task = tokio::spawn(outflow_relay::connector::run(config, reporter, shutdown.clone()));
        Running { shutdown, status, task, logs: Arc::clone(&self.logs) }
    }

    /// Adds what the polling relay needs to the outbox.
    pub async fn allow_polling(&self) {
        for migration in migrations("polling") {
            self.execute(&migration).await;
        }
    }

    /// Starts a polling relay.
    pub fn poll(&self, polling: PollingConfig) -> Running {
        let (reporter, shutdown) = (Reporter::new(), CancellationToken::new());
        let status = reporter.subscribe();
        let work =
            outflow_relay::polling::run(self.config.clone(), polling, reporter, shutdown.clone());
        Running { shutdown, status, task: tokio::spawn(work), logs: Arc::clone(&self.logs) }
    }

    /// Emits one event of aggregate `order/1` and returns its id.
    pub async fn emit(&self, event_id: &str) {
        self.execute(&format!("SELECT outflow.emit('order', '1', 'T', '{{}}', '{event_id}')"))
            .await;
    }

    pub async fn execute(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap();
    }

    pub async fn entries(&self, stream: &str) -> Vec<RawEntry> {
        let mut redis = self.redis.connect().await.unwrap();
        let raw: Vec<Record> = redis::cmd("XRANGE")
            .arg(stream)
            .arg("-")
            .arg("+")
            .query_async(&mut redis)
            .await
            .unwrap();
        raw.into_iter().map(|(id, fields)| RawEntry { id: id.parse().unwrap(), fields }).collect()
    }

    /// Event ids of the stream, in order.
    pub async fn ids(&self, stream: &str) -> Vec<String> {
        let entries = self.entries(stream).await;
        entries.iter().map(|entry| entry.get("event_id").unwrap().to_owned()).collect()
    }

    /// Waits until the stream holds exactly these events, and fails with what it holds instead.
    pub async fn expect_ids(&self, stream: &str, expected: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ids = self.ids(stream).await;
            if ids == expected {
                return;
            }
            assert!(
                Instant::now() < deadline && ids.len() <= expected.len(),
                "stream {stream} holds {ids:?}, expected {expected:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A column of the slot, as text.
    pub async fn slot(&self, column: &str) -> Option<String> {
        let sql = format!(
            "SELECT {column}::text FROM pg_replication_slots WHERE slot_name = '{}'",
            self.config.source.slot
        );
        self.sql.query_opt(&sql, &[]).await.unwrap().and_then(|row| row.get(0))
    }
}

impl Running {
    /// Waits until the connector streams.
    pub async fn streaming(&self) {
        self.until("it streams", |status| matches!(status.state, State::Streaming)).await;
    }

    /// Waits until the connector says that it stands still for a reason with this text.
    pub async fn waiting_for(&self, text: &str) {
        self.logs.expect_warn("standing still");
        self.until(text, |status| match &status.state {
            State::Waiting { reason, .. } => reason.contains(text),
            _ => false,
        })
        .await;
    }

    /// The same, and the metric has it under this label.
    pub async fn waiting_on(&self, label: On, text: &str) {
        self.logs.expect_warn("standing still");
        self.until(text, |status| match &status.state {
            State::Waiting { on, reason } => *on == label && reason.contains(text),
            _ => false,
        })
        .await;
    }

    pub async fn until(&self, what: &str, mut reached: impl FnMut(&Status) -> bool) {
        let mut status = self.status.clone();
        let seen = tokio::time::timeout(PATIENCE, status.wait_for(|status| reached(status))).await;
        match seen {
            Ok(Ok(_)) => {}
            _ => panic!(
                "waiting until {what}: {:?}, ended: {}",
                self.status.borrow(),
                self.task.is_finished()
            ),
        }
    }

    /// It may or may not have been slow enough to say so.
    pub fn logs_may_say_it_stood_still(&self) {
        self.logs.expect_warn("standing still");
    }

    /// Stops the connector in order.
    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
    }

    /// The error that the connector ends with.
    pub async fn failure(self) -> outflow_relay::Error {
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap_err()
    }

    /// Ends the connector as a crash would: no drain, no last status.
    pub async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// The numbered files of sql/<side>, in order.
pub fn migrations(side: &str) -> Vec<String> {
    let folder = format!("{}/../../sql/{side}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "sql"))
        .collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// A configuration with the defaults of the binary, for these servers.
pub fn config(source: &str, redis: &str) -> ConnectorConfig {
    ConnectorConfig {
        connector: "outflow".into(),
        source: SourceConfig {
            connect: ConnectOptions::parse(source).unwrap(),
            table: TableName { schema: "outflow".into(), name: "outbox".into() },
            publication: "outflow".into(),
            slot: "outflow".into(),
            snapshot: SnapshotMode::Initial,
            message_prefix: Some("outflow".into()),
            max_payload: 16 << 20,
            status_interval: Duration::from_secs(10),
            check_interval: Duration::from_millis(500),
            rewind_interval: Duration::ZERO,
            columns: ColumnNames::default(),
            order_by: Vec::new(),
        },
        sink: SinkConfig {
            redis: redis.parse().unwrap(),
            naming: StreamNaming::new("outflow:", 1),
            entry_id: EntryIdMode::Lsn,
            durability: Durability::Memory,
            batch_entries: 500,
            batch_bytes: 1 << 20,
            timeout: Duration::from_secs(5),
        },
        offset: OffsetConfig {
            store: OffsetStoreKind::Redis,
            ledger_entries: 10_000,
            ledger_interval: Duration::from_secs(1),
        },
    }
}
