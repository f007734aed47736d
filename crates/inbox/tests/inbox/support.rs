//! One database and one set of streams for each test.

use std::sync::Arc;
use std::time::Duration;

use outflow_inbox::{
    Connect, Consumer, ConsumerOptions, Counts, Delivery, Error, Handler, HandlerError,
    SqlProjection, Start, State, Status, Summary, connect_no_tls,
};
use outflow_sandbox::logs::Capture;
use outflow_sandbox::{Database, Postgres, Redis, RedisBuilder, shared_postgres, shared_redis};
use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Transaction};
use tokio_util::sync::CancellationToken;

/// Long enough for a busy machine; no test waits for it unless it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MIGRATIONS: [&str; 6] = [
    include_str!("../../../../sql/consumer/0001_inbox.sql"),
    include_str!("../../../../sql/consumer/0002_roles.sql"),
    include_str!("../../../../sql/consumer/0003_attempts.sql"),
    include_str!("../../../../sql/consumer/0004_conflicts.sql"),
    include_str!("../../../../sql/consumer/0005_lost_entries.sql"),
    include_str!("../../../../sql/consumer/0006_retention.sql"),
];
pub(crate) const TURNOVER: &str = include_str!("../../../../sql/demo/consumer/0001_turnover.sql");
pub(crate) const PROJECTION: &str = include_str!("../../../../sql/demo/consumer/projection.sql");

pub(crate) struct Bed {
    pub(crate) postgres: &'static Postgres,
    pub(crate) redis_server: &'static Redis,
    pub(crate) database: Database,
    pub(crate) sql: Client,
    pub(crate) redis: MultiplexedConnection,
    /// The only stream of most tests; others append to the name.
    pub(crate) stream: String,
    pub(crate) log: Capture,
}

impl Bed {
    pub(crate) async fn new() -> Self {
        let log = Capture::install();
        let postgres = shared_postgres().await.unwrap();
        let redis_server = shared_redis().await.unwrap();
        let database = postgres.fresh_database().await.unwrap();
        let sql = postgres.connect_to(&database.name).await.unwrap();
        for migration in MIGRATIONS.into_iter().chain([TURNOVER]) {
            sql.batch_execute(migration).await.unwrap();
        }
        sql.batch_execute(
            "CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, event_id text, \
             aggregate_id text, v text)",
        )
        .await
        .unwrap();
        let redis = redis_server.connect().await.unwrap();
        let stream = format!("{}:order", database.name);
        Self { postgres, redis_server, database, sql, redis, stream, log }
    }

    pub(crate) fn options(&self) -> ConsumerOptions {
        ConsumerOptions {
            consumer_id: "accounting".to_owned(),
            redis: self.redis_server.url().parse().unwrap(),
            streams: vec![self.stream.clone()],
            // streams of tests hold entries before their consumers begin
            from: Some(Start::Beginning),
            block: Duration::from_millis(200),
            report_interval: Duration::from_millis(50),
            // no claims unless a test asks for them
            claim_interval: Duration::from_secs(3600),
            attempt_first: Duration::from_millis(10),
            attempt_longest: Duration::from_millis(100),
            retry_first: Duration::from_millis(10),
            retry_longest: Duration::from_millis(100),
            ..ConsumerOptions::default()
        }
    }

    /// A Redis that the test has for itself, and may take away; and options for it.
    pub(crate) async fn with_own_redis(&mut self, redis: RedisBuilder) -> (Redis, ConsumerOptions) {
        self.log.expect_warn("waiting: redis");
        let redis = redis.start().await.unwrap();
        self.redis = redis.connect().await.unwrap();
        let options = ConsumerOptions { redis: redis.url().parse().unwrap(), ..self.options() };
        (redis, options)
    }

    pub(crate) fn connect(&self) -> Connect {
        connect_no_tls(&self.database.url)
    }

    pub(crate) fn start<H: Handler>(&self, options: ConsumerOptions, handler: H) -> Running {
        start(options, self.connect(), handler)
    }

    /// Runs until `counts` holds, stops, and returns the end.
    pub(crate) async fn run_until<H: Handler>(
        &self,
        options: ConsumerOptions,
        handler: H,
        counts: impl FnMut(&Counts) -> bool,
    ) -> Summary {
        let mut running = self.start(options, handler);
        running.until(counts).await;
        running.stop().await
    }

    pub(crate) async fn add(
        &mut self,
        event_id: &str,
        aggregate_id: &str,
        payload: &[u8],
    ) -> String {
        let stream = self.stream.clone();
        self.add_to(&stream, event_id, aggregate_id, payload).await
    }

    pub(crate) async fn add_to(
        &mut self,
        stream: &str,
        event_id: &str,
        aggregate_id: &str,
        payload: &[u8],
    ) -> String {
        redis::cmd("XADD")
            .arg(stream)
            .arg("*")
            .arg(&[("event_id", event_id), ("aggregate_type", "order")])
            .arg(&[("aggregate_id", aggregate_id), ("event_type", "T")])
            .arg("payload")
            .arg(payload)
            .query_async(&mut self.redis)
            .await
            .unwrap()
    }

    /// Events `e1 ..` with payloads `{"v": 1} ..`, over `aggregates` aggregates, in one round trip.
    pub(crate) async fn add_many(&mut self, range: std::ops::RangeInclusive<u64>, aggregates: u64) {
        let mut pipe = redis::pipe();
        for n in range {
            pipe.cmd("XADD")
                .arg(&self.stream)
                .arg("*")
                .arg(&[("event_id", format!("e{n}")), ("aggregate_type", "order".to_owned())])
                .arg(&[("aggregate_id", (n % aggregates).to_string())])
                .arg(&[("event_type", "T".to_owned()), ("payload", format!(r#"{{"v": {n}}}"#))])
                .ignore();
        }
        pipe.exec_async(&mut self.redis).await.unwrap();
    }

    pub(crate) async fn count(&self, from: &str) -> i64 {
        self.value(&format!("SELECT count(*) FROM {from}"), &[]).await
    }

    pub(crate) async fn value<T: tokio_postgres::types::FromSqlOwned>(
        &self,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> T {
        self.sql.query_one(query, parameters).await.unwrap().get(0)
    }

    /// A checksum over everything that `seen` holds, in the order in which it came.
    pub(crate) async fn checksum(&self) -> String {
        self.value("SELECT md5(coalesce(string_agg(s::text, ';' ORDER BY n), '')) FROM seen s", &[])
            .await
    }

    /// Every event `e1 .. e<events>` had its effect once, in order within its aggregate, and
    /// nothing is pending.
    pub(crate) async fn assert_exactly_once(&mut self, events: i64) {
        assert_eq!(self.count("outflow.inbox WHERE consumer_id = 'accounting'").await, events);
        assert_eq!(self.count("seen").await, events);
        assert_eq!(self.count("(SELECT DISTINCT event_id FROM seen) s").await, events);
        assert_eq!(self.pending().await, 0);
    }

    pub(crate) async fn assert_order_within_aggregates(&self) {
        let disorder = self
            .count(
                "(SELECT v::bigint - lag(v::bigint) OVER (PARTITION BY aggregate_id ORDER BY n) AS step \
                 FROM seen) s WHERE step <= 0",
            )
            .await;
        assert_eq!(disorder, 0);
    }

    pub(crate) async fn pending(&mut self) -> u64 {
        let summary: (u64, redis::Value, redis::Value, redis::Value) = redis::cmd("XPENDING")
            .arg(&self.stream)
            .arg("accounting")
            .query_async(&mut self.redis)
            .await
            .unwrap();
        summary.0
    }

    /// Waits until so many entries are pending.
    pub(crate) async fn until_pending(&mut self, entries: u64) {
        let poll = async {
            while self.pending().await != entries {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, poll).await;
        assert!(reached.is_ok(), "{entries} pending entries");
    }

    /// Entries that the group has not delivered; none after `XGROUP SETID` made that unknown.
    pub(crate) async fn lag(&mut self) -> i64 {
        let groups: redis::streams::StreamInfoGroupsReply = redis::cmd("XINFO")
            .arg("GROUPS")
            .arg(&self.stream)
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let last: redis::streams::StreamInfoStreamReply = redis::cmd("XINFO")
            .arg("STREAM")
            .arg(&self.stream)
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let behind = |group: &redis::streams::StreamInfoGroup| {
            i64::from(group.last_delivered_id != last.last_generated_id)
        };
        groups.groups.iter().map(behind).sum()
    }

    /// Reads as `worker` and never acknowledges, as a worker does that dies.
    pub(crate) async fn read_and_die(&mut self, worker: &str, count: usize) {
        let _: redis::Value = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg("accounting")
            .arg(worker)
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(&self.stream)
            .arg(">")
            .query_async(&mut self.redis)
            .await
            .unwrap();
    }

    pub(crate) async fn redis_command(&mut self, command: &[&str]) -> redis::Value {
        let mut cmd = redis::cmd(command[0]);
        for argument in &command[1..] {
            cmd.arg(argument);
        }
        cmd.query_async(&mut self.redis).await.unwrap()
    }

    /// `entry_id` and `resume_id` of the stream.
    pub(crate) async fn position(&self) -> (String, String) {
        let row = self
            .sql
            .query_one(
                "SELECT entry_id, resume_id FROM outflow.position WHERE stream = $1",
                &[&self.stream],
            )
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }

    /// Waits until a query returns true.
    pub(crate) async fn until_true(&self, query: &str) {
        let poll = async {
            while !self.value::<bool>(query, &[]).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.expect(query);
    }
}

/// What most tests apply: every fresh event becomes a row of `seen`.
pub(crate) fn seen() -> SqlProjection {
    SqlProjection::parse(
        "INSERT INTO seen (event_id, aggregate_id, v) \
         SELECT event_id, aggregate_id, payload ->> 'v' FROM events ORDER BY ordinal",
    )
    .unwrap()
}

pub(crate) fn start<H: Handler>(options: ConsumerOptions, connect: Connect, handler: H) -> Running {
    let consumer = Consumer::new(options.validate().unwrap(), connect, handler);
    let status = consumer.status();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    Running { status, shutdown, task }
}

pub(crate) struct Running {
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) shutdown: CancellationToken,
    task: JoinHandle<Result<Summary, Error>>,
}

impl Running {
    pub(crate) async fn until(&mut self, mut counts: impl FnMut(&Counts) -> bool) {
        self.until_status(|status| counts(&status.counts)).await;
    }

    pub(crate) async fn until_status(&mut self, test: impl FnMut(&Status) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, self.status.wait_for(test)).await;
        let reached = waited.is_ok_and(|status| status.is_ok());
        assert!(reached, "it stands at {:?}", self.status.borrow().clone());
    }

    pub(crate) async fn until_waiting_for(&mut self, text: &str) {
        self.until_status(|status| {
            matches!(&status.state, State::Waiting { reason, .. } if reason.contains(text))
        })
        .await;
    }

    pub(crate) async fn stop(self) -> Summary {
        self.shutdown.cancel();
        self.end().await.unwrap()
    }

    pub(crate) async fn end(self) -> Result<Summary, Error> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it does not end").unwrap()
    }

    /// Whether it has ended by itself.
    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it without a stop, as a crash would.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// [`seen`], and then something else that may refuse the events.
pub(crate) struct Checked<F> {
    inner: SqlProjection,
    check: F,
}

pub(crate) fn checked<F>(check: F) -> Checked<F>
where
    F: FnMut(&[Delivery]) -> Result<(), HandlerError> + Send + 'static,
{
    Checked { inner: seen(), check }
}

impl<F> Handler for Checked<F>
where
    F: FnMut(&[Delivery]) -> Result<(), HandlerError> + Send + 'static,
{
    async fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> Result<(), HandlerError> {
        self.inner.apply(tx, events).await?;
        (self.check)(events)
    }

    async fn connected(&mut self, client: &Client) -> Result<(), outflow_inbox::ProjectionError> {
        self.inner.connected(client).await
    }
}

/// A handler that stops at a gate inside its transaction: it says so, and goes on when it is let.
pub(crate) struct Gated {
    inner: SqlProjection,
    entered: mpsc::UnboundedSender<usize>,
    gate: Arc<Semaphore>,
}

pub(crate) fn gated() -> (Gated, mpsc::UnboundedReceiver<usize>, Arc<Semaphore>) {
    let (entered, enters) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    (Gated { inner: seen(), entered, gate: gate.clone() }, enters, gate)
}

impl Handler for Gated {
    async fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> Result<(), HandlerError> {
        self.inner.apply(tx, events).await?;
        let _ = self.entered.send(events.len());
        self.gate.acquire().await.map_err(HandlerError::other)?.forget();
        Ok(())
    }

    async fn connected(&mut self, client: &Client) -> Result<(), outflow_inbox::ProjectionError> {
        self.inner.connected(client).await
    }
}
