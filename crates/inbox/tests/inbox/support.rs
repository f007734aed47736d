//! One database and one set of streams for each test.

mod handlers;
mod running;
mod streams;

use std::time::Duration;

use outflow_inbox::{Connect, ConsumerOptions, Counts, Handler, Start, Summary, connect_no_tls};
use outflow_sandbox::logs::Capture;
use outflow_sandbox::{Database, Postgres, Redis, RedisBuilder, shared_postgres, shared_redis};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

pub(crate) use handlers::{checked, gated, seen, seen_then};
pub(crate) use running::{Running, start};

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
