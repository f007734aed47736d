//! A server with an outbox, and a reader that takes whole transactions off a stream.

use std::{
    collections::VecDeque,
    future::Future,
    time::{Duration, Instant},
};

use outflow_pgoutput::{
    Chunk, ConnectOptions, CreateSlotOptions, Error, FeedbackOptions, Frame, Lsn,
    ReplicationClient, ReplicationStream, StartOptions, TupleValue,
    message::{Message, Tuple},
};
use outflow_sandbox::{Postgres, PostgresBuilder, logs::Capture};
use tokio_postgres::Client;

pub(crate) const SLOT: &str = "ob_slot";
pub(crate) const PUBLICATION: &str = "ob_pub";

/// Longest wait for anything that should happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of its own, an outbox, a publication and a slot.
pub(crate) struct Bench {
    pub(crate) pg: Postgres,
    pub(crate) sql: Client,
    /// Unexpected WARN and ERROR lines fail the test.
    pub(crate) _logs: Capture,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::with(Postgres::builder()).await
    }

    pub(crate) async fn with(builder: PostgresBuilder) -> Self {
        let logs = Capture::install();
        let pg = builder.start().await.unwrap();
        let sql = pg.connect().await.unwrap();
        let bench = Self { pg, sql, _logs: logs };
        bench
            .execute(&format!(
                "CREATE TABLE outbox (id int PRIMARY KEY, kind text, payload text);
                 CREATE PUBLICATION {PUBLICATION} FOR TABLE outbox"
            ))
            .await;
        bench.client().await.create_slot(SLOT, CreateSlotOptions::default()).await.unwrap();
        bench
    }

    /// Starts the server again, with a new connection.
    pub(crate) async fn start_again(&mut self) {
        self.pg.start_again().await.unwrap();
        self.sql = self.pg.connect().await.unwrap();
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap();
    }

    /// Inserts one event in a transaction of its own.
    pub(crate) async fn emit(&self, id: i32) {
        self.execute(&format!("INSERT INTO outbox VALUES ({id}, 'T', 'p{id}')")).await;
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        options(&self.pg.url())
    }

    pub(crate) async fn client(&self) -> ReplicationClient {
        ReplicationClient::connect(&self.options()).await.unwrap()
    }

    pub(crate) async fn reader(&self) -> Reader {
        self.reader_with(FeedbackOptions::default()).await
    }

    /// A stream that starts at the caller's own position.
    pub(crate) async fn reader_at(&self, position: Lsn) -> Reader {
        let mut start = StartOptions::new(SLOT, PUBLICATION);
        start.start = position;
        let stream = self.client().await.start_replication(start, FeedbackOptions::default()).await;
        Reader::new(stream.unwrap())
    }

    pub(crate) async fn reader_with(&self, feedback: FeedbackOptions) -> Reader {
        let start = StartOptions::new(SLOT, PUBLICATION);
        Reader::new(self.client().await.start_replication(start, feedback).await.unwrap())
    }

    /// One value as text.
    pub(crate) async fn value(&self, sql: &str) -> Option<String> {
        let rows = self.sql.simple_query(sql).await.unwrap();
        rows.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    pub(crate) async fn lsn(&self, sql: &str) -> Lsn {
        self.value(sql).await.unwrap().parse().unwrap()
    }

    pub(crate) async fn confirmed_flush(&self) -> Lsn {
        let sql = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        );
        self.lsn(&sql).await
    }

    pub(crate) async fn tip(&self) -> Lsn {
        self.lsn("SELECT pg_current_wal_insert_lsn()").await
    }

    pub(crate) async fn slot_is_active(&self) -> bool {
        let sql = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
        self.value(&sql).await.as_deref() == Some("t")
    }

    /// The process that streams.
    pub(crate) async fn walsender(&self) -> Option<String> {
        self.value("SELECT pid FROM pg_stat_replication").await
    }
}

/// Options of this connection string alone.
pub(crate) fn options(dsn: &str) -> ConnectOptions {
    ConnectOptions::parse_with(dsn, &|_| None).unwrap()
}

/// Tries until the condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let since = Instant::now();
    while !condition().await {
        assert!(since.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The result of something that must end in time.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("took too long: {what}"),
    }
}

/// One frame, owned.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) at: Lsn,
    pub(crate) body: Vec<u8>,
}

impl Sent {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::decode(&self.body).unwrap()
    }
}

/// A whole transaction: what lies between its begin and its commit.
#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) final_lsn: Lsn,
    pub(crate) commit_lsn: Lsn,
    pub(crate) end_lsn: Lsn,
    pub(crate) frames: Vec<Sent>,
}

impl Transaction {
    /// First byte of each message.
    pub(crate) fn kinds(&self) -> String {
        self.frames.iter().map(|sent| char::from(sent.body[0])).collect()
    }

    /// The inserted rows.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.frames.iter().filter_map(|sent| match sent.message() {
            Message::Insert(insert) => Some(values(&insert.new)),
            _ => None,
        });
        rows.collect()
    }

    /// The first column of the inserted rows.
    pub(crate) fn ids(&self) -> Vec<i32> {
        self.rows().iter().map(|row| row[0].parse().unwrap()).collect()
    }
}

pub(crate) fn values(tuple: &Tuple<'_>) -> Vec<String> {
    let values = tuple.values().map(|value| match value {
        TupleValue::Null => "<null>".to_owned(),
        TupleValue::Unchanged => "<unchanged>".to_owned(),
        TupleValue::Text(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        TupleValue::Binary(bytes) => format!("{bytes:?}"),
    });
    values.collect()
}

pub(crate) struct Reader {
    pub(crate) stream: ReplicationStream,
    pending: VecDeque<Sent>,
    /// Of them, those that were looked through for a commit.
    looked: usize,
    /// Messages outside of any transaction.
    pub(crate) outside: Vec<Sent>,
    /// Highest keepalive position seen.
    pub(crate) keepalive: Lsn,
}

impl Reader {
    pub(crate) fn new(stream: ReplicationStream) -> Self {
        let zero = Lsn::from(0);
        Self { stream, pending: VecDeque::new(), looked: 0, outside: Vec::new(), keepalive: zero }
    }

    /// The next transaction.
    pub(crate) async fn transaction(&mut self) -> Transaction {
        in_time("the next transaction", self.try_transaction()).await.unwrap()
    }

    pub(crate) async fn try_transaction(&mut self) -> Result<Transaction, Error> {
        loop {
            if let Some(transaction) = self.assemble() {
                return Ok(transaction);
            }
            let chunk = self.stream.next().await?.expect("the stream goes on");
            self.take(&chunk);
        }
    }

    fn take(&mut self, chunk: &Chunk) {
        for frame in chunk.frames() {
            match frame {
                Frame::XLogData { wal_start, body, .. } => {
                    self.pending.push_back(Sent { at: wal_start, body: body.to_vec() });
                }
                Frame::Keepalive { wal_end, .. } => self.keepalive = self.keepalive.max(wal_end),
            }
        }
    }

    fn assemble(&mut self) -> Option<Transaction> {
        while self.pending.front().is_some_and(|sent| sent.body[0] == b'M') {
            self.outside.extend(self.pending.pop_front());
        }
        let fresh = self.pending.range(self.looked..);
        let Some(end) = fresh.clone().position(|sent| sent.body[0] == b'C') else {
            self.looked += fresh.len();
            return None;
        };
        let mut frames: Vec<_> = self.pending.drain(..=self.looked + end).collect();
        self.looked = 0;
        let (last, first) = (frames.pop()?, frames.remove(0));
        let (Message::Begin(begin), Message::Commit(commit)) = (first.message(), last.message())
        else {
            panic!("not a transaction: {first:?} {last:?}")
        };
        Some(Transaction {
            final_lsn: begin.final_lsn,
            commit_lsn: commit.commit_lsn,
            end_lsn: commit.end_lsn,
            frames,
        })
    }

    /// Transactions until this event came, confirmed all of them.
    pub(crate) async fn confirm_until(&mut self, id: i32) -> Vec<i32> {
        let mut ids = Vec::new();
        while ids.last() != Some(&id) {
            let transaction = self.transaction().await;
            ids.extend(transaction.ids());
            self.stream.confirm(transaction.end_lsn).unwrap();
        }
        ids
    }

    pub(crate) async fn stop(self) -> Lsn {
        self.stream.stop(PATIENCE).await.unwrap()
    }

    /// The error that ends the stream, and the transactions before it.
    pub(crate) async fn ends(&mut self) -> (Vec<Transaction>, Error) {
        let mut before = Vec::new();
        loop {
            match in_time("the end of the stream", self.try_transaction()).await {
                Ok(transaction) => before.push(transaction),
                Err(e) => return (before, e),
            }
        }
    }
}
