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

pub(super) use load::Load;
pub(super) use look::says_why;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use outflow_sandbox::{Postgres, PostgresBuilder, Proxy, Redis, RedisBuilder};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use super::course::Course;
use crate::oracle::check::{Record, Rules};
use crate::rig::child::{Child, Program};
use crate::rig::folder::Folder;
use crate::rig::{CONSUMER, PRODUCER, PROJECTION};

/// The connector, and its slot.
pub(super) const CONNECTOR: &str = "drill";
/// How long a process may take until it is at work, on a machine that is busy.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long anything may stand still once nothing is broken any more.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to stop in order.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(30);

const SIGKILL: i32 = 9;

/// Which relay is drilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relay {
    /// `outflow relay`.
    Connector,
    /// `outflow relay --polling`.
    Polling,
}

/// What a scene is made of; the defaults are those of the program.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) relay: Relay,
    /// Settings that differ from the defaults: `sink.entry_id=auto`.
    pub(super) set: Vec<String>,
    pub(super) postgres: PostgresBuilder,
    pub(super) redis: RedisBuilder,
    /// Statements behind those of the demo's projection.
    pub(super) projection: &'static str,
    /// The inbox has a PostgreSQL of its own, so that the source can be broken without it.
    pub(super) books_apart: bool,
}

impl Setup {
    /// A relay with defaults, a PostgreSQL, a Redis without persistence.
    pub(super) fn new(relay: Relay) -> Self {
        Self {
            relay,
            set: Vec::new(),
            postgres: Postgres::builder(),
            redis: Redis::builder(),
            projection: "",
            books_apart: false,
        }
    }

    /// With this setting.
    pub(super) fn set(mut self, setting: &str) -> Self {
        self.set.push(setting.to_owned());
        self
    }

    /// What the relay promises with these settings: at least once, or once.
    fn rules(&self) -> Rules {
        let has = |setting: &str| self.set.iter().any(|set| set == setting);
        let auto = has("sink.entry_id=auto") || self.relay == Relay::Polling;
        let apart = has("offset.store=postgres") || self.relay == Relay::Polling;
        Rules { lsn_ids: !auto, may_repeat: auto && apart }
    }
}

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
    pub(super) redis: Arc<Redis>,
    pub(super) postgres: Arc<Postgres>,
    /// Where the inbox is, if not beside the outbox.
    pub(super) books: Option<Postgres>,
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
    /// Starts the servers, creates both databases and their schemas. No process runs yet.
    ///
    /// # Cancel safety
    /// What was started ends with the future.
    pub(super) async fn set(setup: Setup) -> anyhow::Result<Self> {
        let folder = Folder::create()?;
        let path = folder.path().to_owned();
        let program = Program {
            path: std::env::current_exe().context("this program does not know its own path")?,
            config: path.join("outflow.toml"),
            set: setup.set.clone(),
        };
        let rules = setup.rules();
        let (postgres, redis) = tokio::try_join!(setup.postgres.start(), setup.redis.start())?;
        let books = match setup.books_apart {
            true => Some(Postgres::builder().start().await?),
            false => None,
        };
        let postgres_address = format!("127.0.0.1:{}", postgres.port());
        let redis_address = format!("127.0.0.1:{}", redis.port());
        let source = Proxy::to(postgres_address).start().await?;
        let sink = Proxy::to(&redis_address).start().await?;
        let inbox = Proxy::to(&redis_address).start().await?;
        postgres.create_database(PRODUCER).await?;
        let consumer_url = books.as_ref().unwrap_or(&postgres).create_database(CONSUMER).await?;
        let projection = path.join("projection.sql");
        let write = |path: &Path, text: &str| {
            fs::write(path, text).context("the drill's folder cannot be written")
        };
        let further = setup.projection;
        write(&projection, &format!("{PROJECTION}\n{further}\n"))?;
        write(&program.config, &config(&source, &sink, &inbox, &consumer_url, &projection))?;
        let folder = Arc::new(Mutex::new(folder));
        let child = |name, args: &[&str]| Child::new(name, args, program.clone(), folder.clone());
        let relay = match setup.relay {
            Relay::Connector => child("relay", &["relay"]),
            Relay::Polling => child("relay", &["relay", "--polling"]),
        };
        let scene = Self {
            relay,
            consumer: child("consume", &["consume"]),
            program,
            folder,
            source,
            sink,
            inbox,
            redis: Arc::new(redis),
            postgres: Arc::new(postgres),
            books,
            kind: setup.relay,
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
        let relay: &[&str] = match self.kind {
            Relay::Connector => &["relay"],
            Relay::Polling => &["relay", "--polling"],
        };
        self.relay = self.process("relay", relay);
        self.consumer = self.process("consume", &["consume"]);
    }

    /// The relay's way leads to another PostgreSQL from now on. Returns the one before.
    pub(super) fn source_moves_to(&mut self, postgres: Postgres) -> Arc<Postgres> {
        self.source.point_at(format!("127.0.0.1:{}", postgres.port()));
        self.source.cut();
        std::mem::replace(&mut self.postgres, Arc::new(postgres))
    }

    /// Another process of the scene, not started yet; logs to `<name>.log`.
    pub(super) fn process(&self, name: &str, args: &[&str]) -> Child {
        Child::new(name, args, self.program.clone(), Arc::clone(&self.folder))
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
        Ok(self.postgres.connect_to(PRODUCER).await?)
    }

    /// A connection to the database with the inbox.
    pub(super) async fn consumer_database(&self) -> anyhow::Result<Client> {
        Ok(self.books.as_ref().unwrap_or(&self.postgres).connect_to(CONSUMER).await?)
    }

    /// A connection to Redis.
    pub(super) async fn broker(&self) -> anyhow::Result<MultiplexedConnection> {
        Ok(self.redis.connect().await?)
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

/// Whether a line of a relay's log says that it moves events.
pub(super) fn is_at_work(line: &str) -> bool {
    let said = line.split_whitespace().next_back();
    said.is_some_and(|word| word == "streaming" || word == "polling")
}

fn config(
    source: &Proxy,
    sink: &Proxy,
    inbox: &Proxy,
    consumer_url: &str,
    projection: &Path,
) -> String {
    let (source, sink, inbox) = (source.address(), sink.address(), inbox.address());
    let projection = projection.display();
    format!(
        r#"# made by `outflow drill`
connector = "{CONNECTOR}"

[source]
url = "postgres://postgres@{source}/{PRODUCER}"

[sink]
url = "redis://{sink}"

[polling]
relay = "relay-1"

[consumer]
id = "{CONSUMER}"
# stays the same over restarts, so that a worker that was killed finds what it had not acknowledged
worker = "worker-1"
url = "{consumer_url}"
redis_url = "redis://{inbox}"
streams = ["journal"]
projection = "{projection}"
from = "beginning"

[log]
format = "human"
"#
    )
}
