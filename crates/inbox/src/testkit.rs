//! A kit for tests of handlers: events in, projection and inbox out, and everything that goes wrong in
//! production in between, on real servers.
//!
//! ```no_run
//! # use outflow_inbox::testkit::{TestKit, event};
//! # use outflow_inbox::SqlProjection;
//! # async fn test() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let projection = || SqlProjection::parse("INSERT INTO seen SELECT event_id FROM events").unwrap();
//! let mut kit = TestKit::start("postgres://localhost/test", "redis://localhost", projection).await?;
//! let order = event("o-1").payload(r#"{"total": 5}"#);
//! kit.feed(&[order.clone()]).await?;
//! assert_eq!(kit.feed(&[order.clone()]).await?.duplicates, 1);
//! assert_eq!(kit.feed(&[order.payload(r#"{"total": 6}"#)]).await?.conflicts, 1);
//! kit.crash_in_transaction(&[event("o-2")]).await?;
//! assert_eq!(kit.applied().await?, ["o-1", "o-2"]);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use outflow_broker::{Connection, Target};
use outflow_event::entry::field;
use tokio::sync::mpsc;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::config::{ConsumerOptions, Start};
use crate::consumer::Consumer;
use crate::database::{Connect, connect_no_tls};
use crate::delivery::Delivery;
use crate::handler::{Handler, HandlerError};
use crate::projection::ProjectionError;
use crate::status::{Counts, State};
use crate::transaction::Transaction;

/// What a test does not expect.
pub type Unexpected = Box<dyn std::error::Error + Send + Sync>;

/// No step of a test takes as long as this, unless it fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// A reply of Redis takes no longer.
const REPLY: Duration = Duration::from_secs(10);

const MIGRATIONS: [&str; 6] = [
    include_str!("../../../sql/consumer/0001_inbox.sql"),
    include_str!("../../../sql/consumer/0002_roles.sql"),
    include_str!("../../../sql/consumer/0003_attempts.sql"),
    include_str!("../../../sql/consumer/0004_conflicts.sql"),
    include_str!("../../../sql/consumer/0005_lost_entries.sql"),
    include_str!("../../../sql/consumer/0006_retention.sql"),
];

/// An event of a test. Begin with [`event`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestEvent {
    fields: Vec<(&'static str, String)>,
}

/// An event of type `Test` about aggregate `order`/`1`, with the payload `{}`.
#[must_use]
pub fn event(event_id: impl Into<String>) -> TestEvent {
    let fields = vec![
        (field::EVENT_ID, event_id.into()),
        (field::AGGREGATE_TYPE, "order".to_owned()),
        (field::AGGREGATE_ID, "1".to_owned()),
        (field::EVENT_TYPE, "Test".to_owned()),
        (field::PAYLOAD, "{}".to_owned()),
    ];
    TestEvent { fields }
}

impl TestEvent {
    /// What it is about.
    #[must_use]
    pub fn aggregate(self, aggregate_type: &str, aggregate_id: &str) -> Self {
        self.with(field::AGGREGATE_TYPE, aggregate_type).with(field::AGGREGATE_ID, aggregate_id)
    }

    /// What happened.
    #[must_use]
    pub fn event_type(self, event_type: &str) -> Self {
        self.with(field::EVENT_TYPE, event_type)
    }

    /// The body, as it is.
    #[must_use]
    pub fn payload(self, payload: impl Into<String>) -> Self {
        self.with(field::PAYLOAD, payload)
    }

    /// Its number within the aggregate.
    #[must_use]
    pub fn seq(self, seq: i64) -> Self {
        self.with(field::SEQ, seq.to_string())
    }

    /// Metadata, a JSON object.
    #[must_use]
    pub fn headers(self, headers: impl Into<String>) -> Self {
        self.with(field::HEADERS, headers)
    }

    /// When it was committed, RFC 3339 in UTC.
    #[must_use]
    pub fn commit_time(self, at: impl Into<String>) -> Self {
        self.with(field::COMMIT_TIME, at)
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.retain(|(known, _)| *known != name);
        self.fields.push((name, value.into()));
        self
    }
}

/// A consumer with a stream of its own, which runs while events are fed to it.
pub struct TestKit<F> {
    /// A connection to the consumer's database, for what the test wants to know of its projection.
    pub sql: Client,
    redis: Connection,
    connect: Connect,
    options: ConsumerOptions,
    handler: F,
}

impl<H: Handler, F: Fn() -> H> TestKit<F> {
    /// A consumer of a fresh stream, in a database that the test has for itself: the tables of the
    /// inbox are created, those of the projection are the test's own affair. `handler` makes a new
    /// handler for every start.
    ///
    /// # Errors
    /// A server cannot be reached, or refuses the tables.
    pub async fn start(database: &str, redis: &str, handler: F) -> Result<Self, Unexpected> {
        let connect = connect_no_tls(database);
        let sql = connect().await?;
        for migration in MIGRATIONS {
            sql.batch_execute(migration).await?;
        }
        let unique: String =
            sql.query_one("SELECT gen_random_uuid()::text", &[]).await?.try_get(0)?;
        let target: Target = redis.parse()?;
        let options = ConsumerOptions {
            consumer_id: "test".to_owned(),
            redis: target.clone(),
            streams: vec![format!("outflow-test:{unique}")],
            from: Some(Start::Beginning),
            block: Duration::from_millis(50),
            report_interval: Duration::from_millis(20),
            retry_first: Duration::from_millis(10),
            retry_longest: Duration::from_millis(100),
            ..ConsumerOptions::default()
        };
        let redis = target.connect(REPLY, REPLY).await?;
        Ok(Self { sql, redis, connect, options, handler })
    }

    /// Publishes `events` and waits until the consumer has dealt with all of them. Returns what it did
    /// with them: an event that was fed before is a duplicate, or with another payload a conflict.
    ///
    /// # Errors
    /// The consumer stands still or ends; the error says why.
    pub async fn feed(&mut self, events: &[TestEvent]) -> Result<Counts, Unexpected> {
        self.publish(events).await?;
        self.run((self.handler)()).await
    }

    /// As [`TestKit::feed`], with a worker that dies inside of the transaction, when the handler has done
    /// its work, and another one that finishes.
    ///
    /// # Errors
    /// As for [`TestKit::feed`]; also if no event was handed to the handler.
    pub async fn crash_in_transaction(
        &mut self,
        events: &[TestEvent],
    ) -> Result<Counts, Unexpected> {
        self.publish(events).await?;
        let (entered, mut enters) = mpsc::unbounded_channel();
        let handler = Dying { inner: (self.handler)(), entered };
        let consumer =
            Consumer::new(self.options.clone().validate()?, self.connect.clone(), handler);
        let worker = tokio::spawn(consumer.run(CancellationToken::new()));
        let died = tokio::time::timeout(PATIENCE, enters.recv()).await;
        worker.abort();
        // whatever it was at is rolled back by the time it is gone
        let _ = worker.await;
        died.ok().flatten().ok_or("no event was handed to the handler")?;
        self.run((self.handler)()).await
    }

    /// As [`TestKit::feed`], with a worker that dies after its commit, before it acknowledges: everything
    /// comes again. Returns what the second worker did.
    ///
    /// # Errors
    /// As for [`TestKit::feed`].
    pub async fn crash_before_acknowledging(
        &mut self,
        events: &[TestEvent],
    ) -> Result<Counts, Unexpected> {
        let before = self.last_id().await?;
        self.feed(events).await?;
        // what Redis knows after such a crash: nothing of it was acknowledged
        let mut command = redis::cmd("XGROUP");
        command.arg("SETID").arg(&self.options.streams).arg(&self.options.consumer_id).arg(before);
        command.exec_async(&mut self.redis).await?;
        self.run((self.handler)()).await
    }

    /// The ids of applied events, in the order in which they were applied.
    ///
    /// # Errors
    /// The database cannot be asked.
    pub async fn applied(&self) -> Result<Vec<String>, Unexpected> {
        let query = "SELECT event_id FROM outflow.inbox WHERE consumer_id = $1 \
                     ORDER BY applied_at, string_to_array(entry_id, '-')::numeric[]";
        let rows = self.sql.query(query, &[&self.options.consumer_id]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// The only value of a query, for what the projection holds.
    ///
    /// # Errors
    /// The query fails, or has not one row with a value of this type.
    pub async fn value<T>(&self, query: &str) -> Result<T, Unexpected>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        Ok(self.sql.query_one(query, &[]).await?.try_get(0)?)
    }

    async fn publish(&mut self, events: &[TestEvent]) -> Result<(), Unexpected> {
        let mut pipe = redis::pipe();
        for event in events {
            pipe.cmd("XADD").arg(&self.options.streams).arg("*").arg(&event.fields).ignore();
        }
        if !events.is_empty() {
            pipe.exec_async(&mut self.redis).await?;
        }
        Ok(())
    }

    async fn last_id(&mut self) -> Result<String, Unexpected> {
        let stream = self.options.streams.first().map_or("", String::as_str);
        Ok(crate::broker::last_generated_id(&mut self.redis, stream).await?.to_string())
    }

    /// Runs a worker until nothing is left, or it stands still.
    async fn run<W: Handler>(&self, handler: W) -> Result<Counts, Unexpected> {
        let consumer =
            Consumer::new(self.options.clone().validate()?, self.connect.clone(), handler);
        let mut status = consumer.status();
        let stop = CancellationToken::new();
        let worker = tokio::spawn(consumer.run(stop.clone()));
        let settled = status.wait_for(|status| {
            let stands_still = matches!(
                status.state,
                State::Waiting { component: "applier", .. } | State::Stopped
            );
            stands_still || status.lag_entries == Some(0)
        });
        let state = match tokio::time::timeout(PATIENCE, settled).await {
            Ok(Ok(status)) => Some(status.state.clone()),
            Ok(Err(_)) | Err(_) => None,
        };
        stop.cancel();
        let summary = worker.await??;
        match state {
            Some(State::Waiting { reason, .. }) => Err(reason.into()),
            Some(_) => Ok(summary.counts),
            None => Err(format!("the consumer has not finished within {PATIENCE:?}").into()),
        }
    }
}

/// Does its work, and never comes back from it.
struct Dying<H> {
    inner: H,
    entered: mpsc::UnboundedSender<()>,
}

impl<H: Handler> Handler for Dying<H> {
    async fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> Result<(), HandlerError> {
        self.inner.apply(tx, events).await?;
        let _ = self.entered.send(());
        std::future::pending().await
    }

    fn expect(&mut self, events: &[Delivery]) {
        self.inner.expect(events);
    }

    async fn connected(&mut self, client: &Client) -> Result<(), ProjectionError> {
        self.inner.connected(client).await
    }
}
