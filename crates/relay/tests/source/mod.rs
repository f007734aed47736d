//! A source database of its own for each test, and what a connector does with it, step by step.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use outflow_event::Position;
use outflow_pgoutput::message::{Message, TupleValue};
use outflow_pgoutput::{
    ConnectOptions, FeedbackOptions, Frame, Lsn, ReplicationClient, StartOptions,
};
use outflow_relay::Error;
use outflow_relay::config::{ColumnNames, SnapshotMode, SourceConfig, TableName};
use outflow_relay::offset::{Offset, OffsetStore};
use outflow_relay::resume::{self, Decision, Facts};
use outflow_relay::snapshot::{Bootstrap, SnapshotReader, bootstrap};
use outflow_sandbox::{Postgres, PostgresBuilder};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

/// Longest time that anything in a test may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server, a database with the outbox, and a configuration for it.
pub(crate) struct Source {
    pub(crate) pg: Postgres,
    pub(crate) sql: Client,
    pub(crate) config: SourceConfig,
}

impl Source {
    /// A server with the outbox of sql/producer.
    pub(crate) async fn start() -> Self {
        Self::with(Postgres::builder()).await
    }

    pub(crate) async fn with(builder: PostgresBuilder) -> Self {
        let source = Self::bare(builder).await;
        for migration in migrations() {
            source.run(&migration).await;
        }
        source
    }

    /// A server without any table.
    pub(crate) async fn bare(builder: PostgresBuilder) -> Self {
        let pg = builder.start().await.unwrap();
        let database = pg.fresh_database().await.unwrap();
        let sql = pg.connect_to(&database.name).await.unwrap();
        let config = SourceConfig {
            connect: ConnectOptions::parse(&database.url).unwrap(),
            table: TableName { schema: "outflow".into(), name: "outbox".into() },
            publication: "outflow".into(),
            slot: "outflow".into(),
            snapshot: SnapshotMode::Initial,
            message_prefix: None,
            max_payload: 16 << 20,
            status_interval: Duration::from_secs(10),
            check_interval: Duration::from_millis(50),
            rewind_interval: Duration::ZERO,
            columns: ColumnNames::default(),
            order_by: Vec::new(),
        };
        Self { pg, sql, config }
    }

    /// Another session on the same database.
    pub(crate) async fn session(&self) -> Client {
        self.config.connect.connect_sql().await.unwrap().client
    }

    pub(crate) async fn link(&self) -> ReplicationClient {
        ReplicationClient::connect(&self.config.connect).await.unwrap()
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The first column of all rows, as text.
    pub(crate) async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.sql.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn lsn(&self, sql: &str) -> Lsn {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Emits an event of aggregate `order/1`.
    pub(crate) async fn emit(&self, event_id: &str) {
        self.run(&format!("SELECT outflow.emit('order', '1', 'T', '{{}}', '{event_id}')")).await;
    }

    pub(crate) async fn facts(&self, stored: Option<&Offset>) -> Facts {
        resume::inspect(&mut self.link().await, &self.config.slot, stored).await.unwrap()
    }

    pub(crate) async fn decide(&self, stored: Option<&Offset>) -> Decision {
        resume::decide(&self.facts(stored).await, stored, self.config.snapshot)
    }

    /// What is stored, and a reader at that point, after whatever a start does up to there.
    pub(crate) async fn begin<O: OffsetStore>(
        &self,
        store: &mut O,
    ) -> Result<(Offset, Option<SnapshotReader>), Error> {
        let stored = store.load().await?;
        let mut link = ReplicationClient::connect(&self.config.connect).await?;
        let facts = resume::inspect(&mut link, &self.config.slot, stored.as_ref()).await?;
        let sql = self.config.connect.connect_sql().await?.client;
        let offset = match resume::decide(&facts, stored.as_ref(), self.config.snapshot) {
            Decision::Bootstrap { drop_slot, epoch } => {
                let plan = Bootstrap {
                    source: &self.config,
                    facts: &facts,
                    stored: stored.as_ref(),
                    drop_slot,
                    epoch,
                    stop: &CancellationToken::new(),
                };
                bootstrap(plan, &mut link, &sql, store, &mut |_| {}).await?.unwrap()
            }
            Decision::ContinueSnapshot { from }
            | Decision::Adopt { from }
            | Decision::Resume { from, .. } => from,
            Decision::Wait(wait) => return Err(Error::NotYet(wait)),
            Decision::Refuse(refusal) => return Err(Error::NoResume(refusal)),
            other => panic!("{other:?}"),
        };
        let reader = match &offset.snapshot {
            Some(progress) => Some(SnapshotReader::open(sql, &self.config, progress).await?),
            None => None,
        };
        Ok((offset, reader))
    }

    /// Publishes the snapshot from where it stands to its end.
    pub(crate) async fn snapshot<O: OffsetStore>(
        &self,
        store: &mut O,
        broker: &Broker,
        page: usize,
    ) -> Result<Offset, Error> {
        let (mut offset, reader) = self.begin(store).await?;
        let Some(mut reader) = reader else { return Ok(offset) };
        let id = reader.columns().iter().position(|c| *c == self.config.columns.event_id).unwrap();
        let lsn: Lsn = offset.snapshot.as_ref().unwrap().lsn.parse().unwrap();
        loop {
            let rows = reader.next_page(page, 1 << 20).await?;
            let Some(last) = rows.last() else { break };
            let mut index = offset.position.map_or(0, |position| position.index + 1);
            for row in &rows {
                let position = Position::new(lsn, index);
                broker.publish(position, text(row.columns[id].as_ref()).unwrap());
                (offset.position, index) = (Some(position), index + 1);
            }
            offset.published_count += u64::try_from(rows.len()).unwrap();
            offset.snapshot.as_mut().unwrap().last_key.clone_from(&last.key);
            store.save(&offset).await?;
        }
        let offset = offset.after_snapshot()?;
        store.save(&offset).await?;
        Ok(offset)
    }

    /// Every event that the slot delivers up to now, each row as text.
    pub(crate) async fn stream(&self, start: Lsn) -> Vec<(Position, Vec<Option<String>>)> {
        let end = self.lsn("SELECT pg_current_wal_lsn()").await;
        let options = StartOptions {
            start,
            ..StartOptions::new(&self.config.slot, &self.config.publication)
        };
        let link = self.link().await;
        let mut stream = link.start_replication(options, FeedbackOptions::default()).await.unwrap();
        let mut rows = Vec::new();
        let (mut commit_lsn, mut index) = (Lsn::from(0), 0);
        loop {
            let chunk = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap();
            let chunk = chunk.expect("the stream goes on");
            for frame in chunk.frames() {
                let (body, wal_end) = match frame {
                    Frame::XLogData { body, wal_end, .. } => (body, wal_end),
                    Frame::Keepalive { wal_end, .. } if wal_end >= end => {
                        stream.stop(Duration::from_secs(5)).await.unwrap();
                        return rows;
                    }
                    Frame::Keepalive { .. } => continue,
                };
                match Message::decode(body).unwrap() {
                    Message::Begin(begin) => (commit_lsn, index) = (begin.final_lsn, 0),
                    Message::Insert(insert) => {
                        let row = insert.new.values().map(|value| match value {
                            TupleValue::Text(text) => {
                                Some(String::from_utf8_lossy(text).into_owned())
                            }
                            _ => None,
                        });
                        rows.push((Position::new(commit_lsn, index), row.collect()));
                        index += 1;
                    }
                    Message::Commit(_) if wal_end >= end => {
                        stream.stop(Duration::from_secs(5)).await.unwrap();
                        return rows;
                    }
                    _ => {}
                }
            }
        }
    }

    /// The event ids that the slot delivers up to now.
    pub(crate) async fn streamed_ids(&self, start: Lsn) -> Vec<(Position, String)> {
        // the second column of the outbox is its event id
        let rows = self.stream(start).await;
        rows.into_iter().map(|(at, mut row)| (at, row.swap_remove(1).unwrap())).collect()
    }
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn text(value: Option<&Bytes>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn migrations() -> Vec<String> {
    let folder = format!("{}/../../sql/producer", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// What stands in for Redis: an entry's position can be taken only once, and only upwards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Broker(Arc<Mutex<BTreeMap<Position, String>>>);

impl Broker {
    /// Publishes; an entry that is there already must be the same event.
    pub(crate) fn publish(&self, position: Position, event_id: String) {
        let mut entries = self.0.lock().unwrap();
        if entries.last_key_value().is_none_or(|(last, _)| *last < position) {
            entries.insert(position, event_id);
            return;
        }
        assert_eq!(entries.get(&position), Some(&event_id), "another event at {position}");
    }

    /// All event ids in the order of their positions.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.0.lock().unwrap().values().cloned().collect()
    }
}

/// An offset store in memory that obeys the contract and can fail like a crash.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryStore(Arc<Mutex<Memory>>);

#[derive(Debug, Default)]
struct Memory {
    stored: Option<Offset>,
    saves: usize,
    crash: Option<(usize, bool)>,
}

impl MemoryStore {
    /// Fails the `at`-th save from now on (from 0), before or after it took effect. Once.
    pub(crate) fn crash_at(&self, at: usize, took_effect: bool) {
        let mut memory = self.0.lock().unwrap();
        (memory.saves, memory.crash) = (0, Some((at, took_effect)));
    }

    /// Whether the crash is still to come.
    pub(crate) fn crash_pending(&self) -> bool {
        self.0.lock().unwrap().crash.is_some()
    }

    pub(crate) fn stored(&self) -> Option<Offset> {
        self.0.lock().unwrap().stored.clone()
    }

    pub(crate) fn put(&self, offset: Option<Offset>) {
        self.0.lock().unwrap().stored = offset;
    }
}

impl OffsetStore for MemoryStore {
    async fn load(&mut self) -> Result<Option<Offset>, Error> {
        Ok(self.stored())
    }

    async fn save(&mut self, offset: &Offset) -> Result<(), Error> {
        let mut memory = self.0.lock().unwrap();
        let crash = memory.crash.filter(|(at, _)| *at == memory.saves);
        memory.saves += 1;
        if let Some((_, took_effect)) = crash {
            memory.crash = None;
            if took_effect {
                memory.stored = Some(offset.clone());
            }
            return Err(Error::SinkUnavailable("crash".into()));
        }
        let own = offset.resume_point();
        if let Some(stored) = memory.stored.as_ref().filter(|s| s.resume_point() > own) {
            return Err(Error::Superseded {
                connector: "test".into(),
                stored: stored.resume_point().to_string(),
                own: own.to_string(),
            });
        }
        memory.stored = Some(offset.clone());
        Ok(())
    }

    async fn ledger(&mut self, _: usize) -> Result<Vec<Offset>, Error> {
        Ok(Vec::new())
    }
}
