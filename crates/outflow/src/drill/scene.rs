//! Servers, databases and processes of a drill: everything that can be broken, and what is needed to
//! see what became of it.
//!
//! ```text
//! producers ─────────> PostgreSQL <─ source ─ relay ─ sink ─> Redis <─ inbox ─ consumer ─> PostgreSQL
//! ```
//!
//! `source`, `sink` and `inbox` are proxies, so that each way can be cut by itself. Producers and the
//! oracle go straight to the servers.

mod load;
mod look;
mod reason;
mod series;
mod servers;
mod setup;

pub(super) use load::Load;
pub(super) use reason::{names_it, says, says_why, shows_it};
pub(super) use series::Series;
pub(super) use servers::Broker;
pub(super) use setup::{Relay, Setup};

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use outflow_sandbox::{Postgres, Proxy, Redis};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use self::servers::Source;
use super::course::Course;
use crate::given::with_address;
use crate::oracle::check::{Record, Rules};
use crate::rig::PROJECTION;
use crate::rig::child::{Child, Program};
use crate::rig::folder::Folder;
use crate::rig::ways::Ways;

/// The connector, and its slot. All of these begin with the name that tells what is a drill's.
pub(super) const CONNECTOR: &str = "outflow_drill";
/// Begins every stream.
const STREAMS: &str = "outflow_drill:";
/// The stream of all events.
pub(super) const STREAM: &str = "outflow_drill:journal";
/// The database with the outbox.
const SHOP: &str = "outflow_drill_shop";
/// The database with the inbox.
const BOOKS: &str = "outflow_drill_books";
/// How long a process may take until it is at work, on a machine that is busy.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long anything may stand still once nothing is broken any more.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to stop in order.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(30);

const SIGKILL: i32 = 9;

/// All of it. What is dropped first ends first.
pub(super) struct Scene {
    /// `outflow relay`, perhaps with `--polling`.
    pub(super) relay: Child,
    /// `outflow consume`.
    pub(super) consumer: Child,
    pub(super) program: Program,
    /// Removed with the last of the children.
    folder: Arc<Mutex<Folder>>,
    /// Between relay and PostgreSQL.
    pub(super) source: Proxy,
    /// Between relay and Redis.
    pub(super) sink: Proxy,
    /// Between consumer and Redis.
    pub(super) inbox: Proxy,
    redis: Broker,
    postgres: Source,
    /// Where the inbox is: beside the outbox, if not apart.
    books: Source,
    pub(super) kind: Relay,
    /// What the oracle is to expect of the relay.
    pub(super) rules: Rules,
    /// What producers know of what they did.
    pub(super) record: Record,
}

/// Which of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Relay,
    Consumer,
}

impl Scene {
    /// Starts the servers that are not given, creates both databases and their schemas. No process runs
    /// yet.
    ///
    /// # Cancel safety
    /// What was started ends with the future; what was made on given servers is removed by the next
    /// scene, or at the end.
    pub(super) async fn set(course: &Course, setup: Setup) -> anyhow::Result<Self> {
        let folder = Folder::create()?;
        let path = folder.path().to_owned();
        let program = Program {
            path: std::env::current_exe().context("this program does not know its own path")?,
            config: path.join("outflow.toml"),
            set: setup.set.clone(),
        };
        let rules = setup.rules();
        let given = &course.given;
        let (postgres, redis) = tokio::try_join!(
            Source::open(given.postgres.as_ref(), setup.postgres),
            Broker::open(given.redis.as_ref(), setup.redis),
        )?;
        let books = match setup.books_apart {
            true => Source::open(None, Postgres::builder()).await?,
            false => postgres.clone(),
        };
        let source = Proxy::to(postgres.address()).start().await?;
        let sink = Proxy::to(redis.address()).start().await?;
        let inbox = Proxy::to(redis.address()).start().await?;
        postgres.create_database(SHOP).await?;
        books.create_database(BOOKS).await?;
        let through = |proxy: &Proxy, url: &str| with_address(url, &proxy.address().to_string());
        let ways = Ways {
            source: through(&source, &postgres.url(SHOP)?),
            sink: through(&sink, redis.url()),
            inbox: through(&inbox, redis.url()),
            books: books.url(BOOKS)?,
        };
        let projection = path.join("projection.sql");
        let write = |path: &Path, text: &str| {
            fs::write(path, text).context("the drill's folder cannot be written")
        };
        write(&projection, &format!("{PROJECTION}\n{}\n", setup.projection))?;
        write(&program.config, &ways.config("drill", CONNECTOR, STREAMS, &projection))?;
        let folder = Arc::new(Mutex::new(folder));
        let kind = setup.relay;
        let scene = Self {
            relay: process(&program, &folder, "relay", kind.args()),
            consumer: process(&program, &folder, "consume", &["consume"]),
            program,
            folder,
            source,
            sink,
            inbox,
            redis,
            postgres,
            books,
            kind,
            rules,
            record: Record::default(),
        };
        scene.init().await?;
        Ok(scene)
    }

    async fn init(&self) -> anyhow::Result<()> {
        let mut args = vec!["init", "--demo"];
        args.extend((self.kind == Relay::Polling).then_some("--polling"));
        let (status, said) = self.program.output(&args, READY_WITHIN).await?;
        if !status.success() {
            bail!("outflow init failed: {}", said.trim());
        }
        Ok(())
    }

    /// Settings of all processes that are not started yet, beside those of the setup.
    pub(super) fn reached_by(&mut self, set: &[String]) {
        self.program.set.extend_from_slice(set);
        self.relay = self.process("relay", self.kind.args());
        self.consumer = self.process("consume", &["consume"]);
    }

    /// The PostgreSQL with the outbox, to be broken: a throwaway one.
    pub(super) fn postgres(&self) -> anyhow::Result<&Arc<Postgres>> {
        self.postgres.own()
    }

    /// The Redis, to be broken: a throwaway one.
    pub(super) fn redis(&self) -> anyhow::Result<&Arc<Redis>> {
        self.redis.own()
    }

    /// The relay's way leads to another PostgreSQL from now on. Returns the one before.
    pub(super) fn source_moves_to(&mut self, postgres: Postgres) -> Source {
        let postgres = Source::from(postgres);
        self.source.point_at(postgres.address());
        self.source.cut();
        std::mem::replace(&mut self.postgres, postgres)
    }

    /// Streams are looked for in another Redis from now on. Returns the one before.
    pub(super) fn broker_moves_to(&mut self, redis: Redis) -> Broker {
        std::mem::replace(&mut self.redis, redis.into())
    }

    /// Another process of the scene, not started yet; logs to `<name>.log`.
    pub(super) fn process(&self, name: &str, args: &[&str]) -> Child {
        process(&self.program, &self.folder, name, args)
    }

    /// Runs a command of this program to its end and returns what it wrote.
    pub(super) async fn command(&self, args: &[&str]) -> anyhow::Result<(bool, String)> {
        let (status, said) = self.program.output(args, READY_WITHIN).await?;
        Ok((status.success(), said))
    }

    /// Starts relay and consumer and waits until the relay is at work.
    pub(super) async fn begin(&mut self) -> anyhow::Result<()> {
        self.begin_relay().await?;
        self.consumer.start()
    }

    /// Starts the relay and waits until it is at work.
    pub(super) async fn begin_relay(&mut self) -> anyhow::Result<()> {
        let from = self.relay.log_end();
        self.relay.start()?;
        self.relay.says(from, READY_WITHIN, is_at_work).await.map(drop)
    }

    /// A connection to the database with the outbox.
    pub(super) async fn producer_database(&self) -> anyhow::Result<Client> {
        self.postgres.connect(SHOP).await
    }

    /// A connection to the database with the inbox.
    pub(super) async fn consumer_database(&self) -> anyhow::Result<Client> {
        self.books.connect(BOOKS).await
    }

    /// Makes the table `drill_divisor` with a zero, for projections that divide by it. Returns a connection
    /// to the database with the inbox, to mend it.
    pub(super) async fn divisor_is_zero(&self) -> anyhow::Result<Client> {
        let books = self.consumer_database().await?;
        let sql = "CREATE TABLE drill_divisor AS SELECT 0 AS divisor";
        books.batch_execute(sql).await?;
        Ok(books)
    }

    /// A connection to Redis.
    pub(super) async fn broker(&self) -> anyhow::Result<MultiplexedConnection> {
        self.redis.connect().await
    }

    /// One side's process.
    pub(super) fn side(&mut self, side: Side) -> &mut Child {
        match side {
            Side::Relay => &mut self.relay,
            Side::Consumer => &mut self.consumer,
        }
    }

    /// Waits until one side has met the fault that it was started with: SIGKILL.
    pub(super) async fn was_killed(&mut self, side: Side) -> anyhow::Result<()> {
        let child = self.side(side);
        let status = child.ended(PATIENCE).await?;
        if status.signal() == Some(SIGKILL) {
            return Ok(());
        }
        let told = child.trouble().join("\n  ");
        bail!("outflow {} ended ({status}) before it met its fault:\n  {told}", child.name())
    }

    /// Stops one side in order, starts it with a fault, waits for its death, starts it without, and
    /// waits until it has caught up.
    pub(super) async fn dies_at(
        &mut self,
        course: &mut Course,
        side: Side,
        point: &str,
        hit: u32,
    ) -> anyhow::Result<()> {
        let child = self.side(side);
        child.stop(STOP_WITHIN).await?;
        child.start_with(&["--fault", &format!("{point}=kill@{hit}")])?;
        self.was_killed(side).await?;
        let child = self.side(side);
        course.injected(format!("{} killed at {point}, hit {hit}", child.name()));
        child.start()?;
        let took = self.caught_up().await?;
        course.recovered(took);
        Ok(())
    }

    /// Commits one event.
    pub(super) async fn post(&mut self, journal_id: &str, amount: i64) -> anyhow::Result<()> {
        self.post_for("c-1", journal_id, amount).await
    }

    /// Commits one event of this customer.
    pub(super) async fn post_for(
        &mut self,
        customer: &str,
        journal_id: &str,
        amount: i64,
    ) -> anyhow::Result<()> {
        let client = self.producer_database().await?;
        let sql = "SELECT ledger.post($1, 'receivable:' || $2::text, 'revenue', $2, 'EUR', $3)";
        client.execute(sql, &[&journal_id, &customer, &amount]).await?;
        self.record.committed.insert(journal_id.to_owned());
        Ok(())
    }
}

/// A process that tells at an address of its own how it is.
fn process(program: &Program, folder: &Arc<Mutex<Folder>>, name: &str, args: &[&str]) -> Child {
    let args = [args, &["--listen", "127.0.0.1:0"]].concat();
    Child::new(name, &args, program.clone(), Arc::clone(folder))
}

/// Whether a line of a relay's log says that it moves events.
pub(super) fn is_at_work(line: &str) -> bool {
    let said = line.split_whitespace().next_back();
    said.is_some_and(|word| word == "streaming" || word == "polling")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::given::NAME;

    #[test]
    fn whatever_a_drill_makes_can_be_told_by_its_name() {
        for name in [CONNECTOR, STREAMS, STREAM, SHOP, BOOKS] {
            assert!(name.starts_with(NAME), "{name}");
        }
    }
}
