//! The servers, the database and the programs of a run.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use outflow_sandbox::Postgres;
use tempfile::TempDir;
use tokio::process::Command;
use tokio_postgres::Client;

use super::Options;
use super::broker::Broker;
use super::compare::given::Given;
use super::process::{POLL, Program};
use super::progress::Progress;

/// Name of the database, which holds both the outbox and the inbox.
const DATABASE: &str = "bench";
/// Names the aggregate type of every event here, and with it the stream.
pub(super) const AGGREGATE_TYPE: &str = "journal";
/// The stream of every event, with the default prefix.
pub(super) const STREAM: &str = "outflow:journal";
/// How long a program may take until it is at work.
const START_WITHIN: Duration = Duration::from_secs(30);

/// What does not matter to the comparison is kept from falling into one of the rounds: checkpoints
/// and autovacuum. Everything else is as the server has it.
const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "32GB"),
    ("checkpoint_timeout", "1h"),
    ("autovacuum", "off"),
];

/// A PostgreSQL server with outbox and inbox, and what is needed to start programs against it.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) options: Options,
    servers: Servers,
    /// A connection for everything that is not measured.
    pub(super) sql: Client,
    /// This program.
    outflow: PathBuf,
    /// Configurations, logs, and projections.
    folder: TempDir,
    /// Numbers connectors, slots and consumers: none ever meets the state of an earlier one.
    names: AtomicU32,
    /// Redis's version, once there was one.
    redis_version: Mutex<String>,
}

/// Whose servers are measured on.
#[derive(Debug)]
enum Servers {
    /// PostgreSQL of this run; Redis is started for each case.
    Own(Postgres),
    /// Somebody else's, with a database of this run.
    Given(Given),
}

/// A walsender at work for one slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walsender {
    pub(super) pid: u32,
    /// When it was first seen, at most [`POLL`] and a query after it took the slot.
    pub(super) since: Instant,
}

impl Stage {
    pub(super) async fn open(options: Options, progress: &Progress) -> anyhow::Result<Self> {
        Self::open_with(options, &[], &[], progress).await
    }

    /// With further settings of PostgreSQL, which outrank the usual ones, and flags of `outflow init`.
    pub(super) async fn open_with(
        options: Options,
        settings: &[(&str, &str)],
        init: &[&str],
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        progress.step("starting PostgreSQL", 1);
        let mut builder = Postgres::builder().durable(true);
        for (name, value) in SETTINGS.iter().chain(settings) {
            builder = builder.setting(*name, *value);
        }
        let postgres = builder.start().await?;
        postgres.create_database(DATABASE).await?;
        let sql = postgres.connect_to(DATABASE).await?;
        Self::furnish(options, Servers::Own(postgres), sql, init).await
    }

    /// On servers that were given, in the database that was made there.
    pub(super) async fn open_given(
        options: Options,
        given: Given,
        init: &[&str],
    ) -> anyhow::Result<Self> {
        let sql = given.connect().await?;
        Self::furnish(options, Servers::Given(given), sql, init).await
    }

    async fn furnish(
        options: Options,
        servers: Servers,
        sql: Client,
        init: &[&str],
    ) -> anyhow::Result<Self> {
        let stage = Self {
            options,
            servers,
            sql,
            outflow: std::env::current_exe().context("this program cannot be found")?,
            folder: tempfile::tempdir().context("no temporary folder")?,
            names: AtomicU32::new(1),
            redis_version: Mutex::default(),
        };
        let mut command = Command::new(&stage.outflow);
        command.current_dir(stage.folder.path());
        let url = stage.url();
        command.args(["init", "--demo", "--source", &url, "--consumer", &url]).args(init);
        Program::start("outflow init", command, stage.file("init.log"))?.finish().await?;
        Ok(stage)
    }

    /// URL of the database, through the socket that was asked for.
    pub(super) fn url(&self) -> String {
        match &self.servers {
            Servers::Own(postgres) if self.options.unix_socket => postgres.unix_url_for(DATABASE),
            Servers::Own(postgres) => postgres.url_for(DATABASE),
            Servers::Given(given) => given.database_url.clone(),
        }
    }

    /// PostgreSQL of this run; an error if it was given.
    pub(super) fn own(&self) -> anyhow::Result<&Postgres> {
        match &self.servers {
            Servers::Own(postgres) => Ok(postgres),
            Servers::Given(_) => bail!("this needs a PostgreSQL of its own"),
        }
    }

    /// A further connection, through that socket.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        if let Servers::Given(given) = &self.servers {
            return given.connect().await;
        }
        let (client, connection) =
            tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await?;
        // ends with the client, which reports what went wrong
        tokio::spawn(connection);
        Ok(client)
    }

    /// A name that nothing had before; valid for slots, connectors and consumers.
    pub(super) fn fresh_name(&self) -> String {
        let run = match &self.servers {
            Servers::Own(_) => "bench",
            Servers::Given(given) => given.name.as_str(),
        };
        format!("{run}_{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A file in the folder of this run.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A Redis, or a prefix, beside that of [`Self::broker`].
    pub(super) async fn second_broker(&self) -> anyhow::Result<Broker> {
        match &self.servers {
            Servers::Own(_) => Broker::start(false).await,
            Servers::Given(given) => {
                Broker::given(&given.redis_url, &format!("{}-other:", given.name)).await
            }
        }
    }

    /// A Redis server; AOF with a sync every second if asked for.
    pub(super) async fn broker(&self, aof: bool) -> anyhow::Result<Broker> {
        let broker = match &self.servers {
            Servers::Own(_) => Broker::start(aof).await?,
            Servers::Given(given) => Broker::given(&given.redis_url, &given.prefix()).await?,
        };
        if let Ok(mut version) = self.redis_version.lock() {
            *version = broker.version();
        }
        Ok(broker)
    }

    pub(super) fn redis_version(&self) -> String {
        self.redis_version.lock().map(|version| version.clone()).unwrap_or_default()
    }

    pub(super) async fn server_version(&self) -> anyhow::Result<String> {
        Ok(self.sql.query_one("SHOW server_version", &[]).await?.try_get(0)?)
    }

    /// `outflow relay` for the slot `name`, which is also the connector's name. It has no stored
    /// offset and begins where the slot stands.
    pub(super) fn connector(&self, name: &str, broker: &Broker) -> anyhow::Result<Program> {
        let mut config = toml::Table::new();
        config.insert("connector".to_owned(), name.into());
        set(&mut config, "source", &[("url", &self.url()), ("slot", name), ("snapshot", "never")]);
        let (redis, prefix) = (broker.relay_url(), broker.prefix.as_str());
        set(&mut config, "sink", &[("url", &redis), ("stream_prefix", prefix)]);
        set(&mut config, "http", &[("listen", "")]);
        self.outflow("outflow relay", &["relay"], name, &config)
    }

    /// `outflow relay --polling` under this name, with these settings of `[polling]`.
    pub(super) fn polling_relay(
        &self,
        name: &str,
        broker: &Broker,
        polling: &[(&str, &str)],
    ) -> anyhow::Result<Program> {
        let mut config = toml::Table::new();
        config.insert("connector".to_owned(), name.into());
        set(&mut config, "source", &[("url", &self.url())]);
        let (redis, prefix) = (broker.relay_url(), broker.prefix.as_str());
        set(&mut config, "sink", &[("url", &redis), ("stream_prefix", prefix)]);
        set(&mut config, "polling", polling);
        set(&mut config, "http", &[("listen", "")]);
        self.outflow("outflow relay --polling", &["relay", "--polling"], name, &config)
    }

    /// `outflow consume` as the consumer `name`, from the beginning of the stream.
    pub(super) fn consumer(
        &self,
        name: &str,
        broker: &Broker,
        projection: &str,
    ) -> anyhow::Result<Program> {
        let config = self.consumer_config(name, "worker-1", broker, projection)?;
        self.outflow("outflow consume", &["consume"], name, &config)
    }

    /// `outflow consume` as a worker of the consumer `name` over streams of another prefix and number
    /// of partitions, with what to do about gaps. What is refused becomes a dead letter at once and holds
    /// nobody up.
    pub(super) fn worker(
        &self,
        name: &str,
        worker: &str,
        broker: &Broker,
        projection: &str,
        (prefix, partitions, on_gap): (&str, u32, &str),
    ) -> anyhow::Result<Program> {
        let mut config = self.consumer_config(name, worker, broker, projection)?;
        if let Some(toml::Value::Table(consumer)) = config.get_mut("consumer") {
            consumer.insert("max_attempts".to_owned(), 1.into());
            consumer.insert("on_failure".to_owned(), "skip".into());
            consumer.insert("on_gap".to_owned(), on_gap.into());
        }
        let partitions = partitions.to_string();
        set(&mut config, "sink", &[("stream_prefix", prefix), ("partitions", &partitions)]);
        self.outflow("outflow consume", &["consume"], &format!("{name}-{worker}"), &config)
    }

    fn consumer_config(
        &self,
        name: &str,
        worker: &str,
        broker: &Broker,
        projection: &str,
    ) -> anyhow::Result<toml::Table> {
        // a file of its own: another worker may be reading its own at this moment
        let file = self.file(&format!("{name}-{worker}.sql"));
        fs::write(&file, projection).with_context(|| file.display().to_string())?;
        let (url, redis) = (self.url(), broker.url());
        let mut config = toml::Table::new();
        let projection = file.display().to_string();
        let consumer = [
            ("id", name),
            ("worker", worker),
            ("url", &url),
            ("redis_url", &redis),
            ("projection", &projection),
            ("from", "beginning"),
        ];
        set(&mut config, "consumer", &consumer);
        if let Some(toml::Value::Table(consumer)) = config.get_mut("consumer") {
            consumer.insert("streams".to_owned(), vec![AGGREGATE_TYPE].into());
        }
        set(&mut config, "http", &[("listen", "")]);
        Ok(config)
    }

    fn outflow(
        &self,
        title: &'static str,
        command: &[&str],
        name: &str,
        config: &toml::Table,
    ) -> anyhow::Result<Program> {
        let file = self.file(&format!("{name}.toml"));
        let text = toml::to_string(config).context("the configuration cannot be written")?;
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        let mut process = Command::new(&self.outflow);
        process.current_dir(self.folder.path()).args(command).arg("--config").arg(file);
        for pair in &self.options.overrides {
            process.args(["--set", pair]);
        }
        Program::start(title, process, self.file(&format!("{name}.log")))
    }

    /// Waits until a walsender works for `slot`: `program` has sent START_REPLICATION.
    pub(super) async fn walsender(
        &self,
        slot: &str,
        program: &mut Program,
    ) -> anyhow::Result<Walsender> {
        const ACTIVE: &str = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
        let statement = self.sql.prepare(ACTIVE).await?;
        let started = Instant::now();
        loop {
            let row = self.sql.query_opt(&statement, &[&slot]).await?;
            let row = row.with_context(|| format!("slot {slot} is gone"))?;
            if let Some(pid) = row.try_get::<_, Option<i32>>(0)? {
                let pid = u32::try_from(pid).context("a process id below zero")?;
                return Ok(Walsender { pid, since: Instant::now() });
            }
            program.must_run()?;
            if started.elapsed() > START_WITHIN {
                return Err(program.failure("did not begin to read its slot within 30s"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Drops a slot as soon as nobody uses it, and the rewind points that its connector has made of it.
    pub(super) async fn drop_slot(&self, slot: &str) -> anyhow::Result<()> {
        const DROP: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                            WHERE slot_name = $1 AND active_pid IS NULL";
        const COPIES: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                              WHERE starts_with(slot_name, $1) AND active_pid IS NULL";
        let started = Instant::now();
        while self.sql.query(DROP, &[&slot]).await?.is_empty() {
            if started.elapsed() > START_WITHIN {
                bail!("slot {slot} is still in use");
            }
            tokio::time::sleep(POLL).await;
        }
        self.sql.query(COPIES, &[&format!("{slot}_rewind_")]).await?;
        Ok(())
    }
}

/// Adds a section of texts.
fn set(config: &mut toml::Table, section: &str, values: &[(&str, &str)]) {
    let values = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).into()));
    config.insert(section.to_owned(), toml::Value::Table(values.collect()));
}
