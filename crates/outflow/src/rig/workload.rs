//! The producers: concurrent transactions of the demo ledger, of every kind that an outbox meets.
//!
//! | share | transaction |
//! | --- | --- |
//! | most | one posting |
//! | some | several postings of one customer |
//! | some | a posting, a savepoint, postings that are rolled back to it, perhaps one more posting |
//! | some | postings that are rolled back as a whole |
//!
//! One posting in eight, in each of them, emits its event as a message in the log, without a row.
//! Customers are shared by all producers, so that transactions wait for each other and commit in
//! another order than they insert in. Everything random comes from the seed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, NoTls, Statement};
use tokio_util::sync::CancellationToken;

use crate::oracle::check::Record;
use crate::oracle::collect::{MESSAGE_EVENT, MESSAGE_MARK};

const CUSTOMERS: u32 = 50;
const CURRENCIES: [&str; 3] = ["CHF", "EUR", "USD"];
/// Before a producer that lost its connection tries again.
const RECONNECT: Duration = Duration::from_millis(50);
/// Above 2^53: what goes through a float on its way comes out wrong.
const LARGE: i64 = 9_007_199_254_740_993;

const POST: &str = "\
SELECT ledger.post($1, 'receivable:' || $2::text, 'revenue:' || $2, $2, $3, $4)";

// what ledger.post does, with a message in place of a row in the outbox
const POST_AS_MESSAGE: &str = "\
WITH next AS (
    INSERT INTO ledger.customer AS known (customer, seq) VALUES ($2::text, 1)
    ON CONFLICT (customer) DO UPDATE SET seq = known.seq + 1
    RETURNING known.seq
), line AS (
    INSERT INTO ledger.journal (journal_id, customer, seq) SELECT $1::text, $2, seq FROM next
), side AS (
    SELECT line, account, amount
    FROM next, (VALUES (1, 'receivable:' || $2, $4::bigint), (2, 'revenue:' || $2, -$4::bigint))
               AS given (line, account, amount)
), entered AS (
    INSERT INTO ledger.entries (journal_id, line, account, currency, amount)
    SELECT $1, line, account, $3::text, amount FROM side
), balanced AS (
    INSERT INTO ledger.balance AS known (account, currency, amount)
    SELECT account, $3, amount FROM side ORDER BY account
    ON CONFLICT (account, currency) DO UPDATE SET amount = known.amount + excluded.amount
)
SELECT outflow.emit_message(
    'journal', $2, 'Posted',
    jsonb_build_object('journal_id', $1, 'consumer', $2, 'currency', $3, 'amount', $4),
    event_id => $5 || $1, seq => next.seq)
FROM next";

/// When the producers are done.
#[derive(Debug, Clone)]
pub(crate) enum Goal {
    /// After so many committed events.
    Events(u64),
    /// After so long.
    Time(Duration),
    /// When somebody says so.
    Until(CancellationToken),
}

/// Makes connections to the producers' database.
pub(crate) type Connect =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = anyhow::Result<Client>> + Send>> + Send + Sync>;

/// Connections to this URL, without TLS.
pub(crate) fn connect_to(url: String) -> Connect {
    Arc::new(move || {
        let url = url.clone();
        Box::pin(async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            // what ends it shows in the statement that was under way
            tokio::spawn(connection);
            Ok(client)
        })
    })
}

/// What the producers should do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Begins the ids of journal lines; another one for every workload.
    pub(crate) name: &'static str,
    pub(crate) producers: u32,
    pub(crate) goal: Goal,
    /// Events a second over all producers; none for as fast as they can.
    pub(crate) rate: Option<f64>,
    pub(crate) seed: u64,
    /// Whether some events are messages; they need a slot that exists.
    pub(crate) messages: bool,
    /// Whether a failure makes a producer connect again and go on. What became of its transaction it
    /// does not know then, and does not record.
    pub(crate) survives: bool,
}

/// What the producers have done so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) committed: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    pub(crate) rolled_back_to_savepoint: AtomicU64,
}

/// What all producers share.
struct Shared {
    plan: Plan,
    connect: Connect,
    counts: Arc<Counts>,
    /// Events that nobody has taken on yet.
    left: AtomicU64,
    since: Instant,
}

impl Shared {
    /// Takes on up to `wanted` events; 0 at the end.
    fn claim(&self, wanted: u64) -> u64 {
        if !self.goes_on() {
            return 0;
        }
        if !matches!(self.plan.goal, Goal::Events(_)) {
            return wanted;
        }
        let take = |left: u64| Some(left.saturating_sub(wanted));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.map_or(0, |left| left.min(wanted))
    }

    /// Whether there is something left to do.
    fn goes_on(&self) -> bool {
        match &self.plan.goal {
            Goal::Events(_) => self.left.load(Ordering::Relaxed) > 0,
            Goal::Time(time) => self.since.elapsed() < *time,
            Goal::Until(stop) => !stop.is_cancelled(),
        }
    }
}

/// Runs the plan, each producer over a connection of its own, and returns what the producers know of
/// it.
///
/// # Errors
/// The first statement that fails ends all producers, unless they survive failures.
///
/// # Cancel safety
/// Transactions under way are rolled back; the record is lost.
pub(crate) async fn run(
    plan: Plan,
    connect: Connect,
    counts: Arc<Counts>,
) -> anyhow::Result<Record> {
    let left = match plan.goal {
        Goal::Events(events) => events,
        Goal::Time(_) | Goal::Until(_) => u64::MAX,
    };
    let (left, since) = (AtomicU64::new(left), Instant::now());
    let shared = Arc::new(Shared { plan, connect, counts, left, since });
    let mut producers = JoinSet::new();
    for number in 1..=u64::from(shared.plan.producers) {
        producers.spawn(Producer::new(number, Arc::clone(&shared)).run());
    }
    let mut record = Record::default();
    while let Some(producer) = producers.join_next().await {
        let own = producer??;
        record.committed.extend(own.committed);
        record.rolled_back.extend(own.rolled_back);
    }
    Ok(record)
}

struct Producer {
    number: u64,
    shared: Arc<Shared>,
    rng: StdRng,
    record: Record,
    /// Numbers its journal lines.
    next: u64,
}

struct Statements {
    post: Statement,
    post_as_message: Statement,
}

/// One journal line.
struct Posting {
    journal_id: String,
    customer: String,
    currency: &'static str,
    amount: i64,
}

impl Posting {
    fn is_message(&self) -> bool {
        self.journal_id.ends_with(MESSAGE_MARK)
    }

    async fn post(&self, client: &impl GenericClient, with: &Statements) -> anyhow::Result<()> {
        let Self { journal_id, customer, currency, amount } = self;
        if self.is_message() {
            let line: [&(dyn ToSql + Sync); 5] =
                [journal_id, customer, currency, amount, &MESSAGE_EVENT];
            client.query_one(&with.post_as_message, &line).await?;
        } else {
            client.query_one(&with.post, &[journal_id, customer, currency, amount]).await?;
        }
        Ok(())
    }
}

impl Producer {
    fn new(number: u64, shared: Arc<Shared>) -> Self {
        let rng = StdRng::seed_from_u64(shared.plan.seed.wrapping_add(number));
        Self { number, shared, rng, record: Record::default(), next: 1 }
    }

    async fn run(mut self) -> anyhow::Result<Record> {
        while let Err(error) = self.session().await {
            if !self.shared.plan.survives {
                return Err(error);
            }
            if !self.shared.goes_on() {
                break;
            }
            tokio::time::sleep(RECONNECT).await;
        }
        Ok(self.record)
    }

    /// Works over one connection until all is done.
    async fn session(&mut self) -> anyhow::Result<()> {
        let mut client = (self.shared.connect)().await?;
        let with = Statements {
            post: client.prepare(POST).await?,
            post_as_message: client.prepare(POST_AS_MESSAGE).await?,
        };
        let plan = &self.shared.plan;
        let pause = plan.rate.map(|rate| f64::from(plan.producers) / rate);
        let mut due = Instant::now();
        loop {
            if let Some(pause) = pause {
                tokio::time::sleep_until(due).await;
                // a producer that fell behind does not hurry to catch up for long
                due = due.max(Instant::now() - Duration::from_millis(100));
                let events = self.transaction(&mut client, &with).await?;
                let Some(events) = events else { break };
                due += Duration::from_secs_f64(pause * f64::from(events));
            } else if self.transaction(&mut client, &with).await?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// One transaction of a random kind; none when there is nothing left to do. Returns how many
    /// events it committed.
    async fn transaction(
        &mut self,
        client: &mut Client,
        with: &Statements,
    ) -> anyhow::Result<Option<u32>> {
        let customer = format!("c-{}", self.rng.random_range(1..=CUSTOMERS));
        let kind = self.rng.random_range(0..100);
        let wanted = match kind {
            0..6 => return self.rolled_back(client, with, &customer).await.map(Some),
            6..12 => return self.savepoint(client, with, &customer).await,
            12..16 => self.rng.random_range(2..=20),
            _ => 1,
        };
        let events = self.shared.claim(wanted);
        let postings = self.postings(&customer, events);
        match postings.as_slice() {
            [] => return Ok(None),
            [single] => single.post(client, with).await?,
            several => {
                let transaction = client.transaction().await?;
                for posting in several {
                    posting.post(&transaction, with).await?;
                }
                transaction.commit().await?;
            }
        }
        Ok(Some(self.committed(postings)))
    }

    async fn rolled_back(
        &mut self,
        client: &mut Client,
        with: &Statements,
        customer: &str,
    ) -> anyhow::Result<u32> {
        let events = self.rng.random_range(1..=3);
        let postings = self.postings(customer, events);
        let transaction = client.transaction().await?;
        for posting in &postings {
            posting.post(&transaction, with).await?;
        }
        transaction.rollback().await?;
        self.shared.counts.rolled_back.fetch_add(1, Ordering::Relaxed);
        self.record.rolled_back.extend(postings.into_iter().map(|posting| posting.journal_id));
        Ok(0)
    }

    async fn savepoint(
        &mut self,
        client: &mut Client,
        with: &Statements,
        customer: &str,
    ) -> anyhow::Result<Option<u32>> {
        let wanted = self.rng.random_range(1..=2);
        let events = self.shared.claim(wanted);
        if events == 0 {
            return Ok(None);
        }
        let kept = self.postings(customer, events);
        let undone = self.rng.random_range(1..=3);
        let undone = self.postings(customer, undone);
        let mut transaction = client.transaction().await?;
        for (number, posting) in kept.iter().enumerate() {
            if number == 1 {
                let savepoint = transaction.savepoint("before").await?;
                for posting in &undone {
                    posting.post(&savepoint, with).await?;
                }
                savepoint.rollback().await?;
            }
            posting.post(&transaction, with).await?;
        }
        if kept.len() == 1 {
            let savepoint = transaction.savepoint("after").await?;
            for posting in &undone {
                posting.post(&savepoint, with).await?;
            }
            savepoint.rollback().await?;
        }
        transaction.commit().await?;
        self.shared.counts.rolled_back_to_savepoint.fetch_add(1, Ordering::Relaxed);
        self.record.rolled_back.extend(undone.into_iter().map(|posting| posting.journal_id));
        Ok(Some(self.committed(kept)))
    }

    fn postings(&mut self, customer: &str, count: u64) -> Vec<Posting> {
        let one = |_| {
            let number = self.next;
            self.next += 1;
            let message = self.shared.plan.messages && self.rng.random_ratio(1, 8);
            let mark = if message { MESSAGE_MARK } else { "" };
            let large = self.rng.random_ratio(1, 500);
            Posting {
                journal_id: format!("{}{}-{number}{mark}", self.shared.plan.name, self.number),
                customer: customer.to_owned(),
                currency: CURRENCIES
                    .get(self.rng.random_range(0..CURRENCIES.len()))
                    .copied()
                    .unwrap_or("EUR"),
                amount: if large { LARGE } else { self.rng.random_range(1..1_000_000) },
            }
        };
        (0..count).map(one).collect()
    }

    fn committed(&mut self, postings: Vec<Posting>) -> u32 {
        let messages = postings.iter().filter(|posting| posting.is_message()).count();
        let events = u32::try_from(postings.len()).unwrap_or(u32::MAX);
        let counts = &self.shared.counts;
        counts.messages.fetch_add(messages as u64, Ordering::Relaxed);
        counts.committed.fetch_add(events.into(), Ordering::Relaxed);
        self.record.committed.extend(postings.into_iter().map(|posting| posting.journal_id));
        events
    }
}
