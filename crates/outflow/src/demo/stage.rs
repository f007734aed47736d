//! Servers, databases, configuration and processes of the demo.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use outflow_sandbox::{Fsync, Postgres, Redis};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::rig::child::{Child, Program, why};
use crate::rig::folder::Folder;
use crate::rig::ways::Ways;
use crate::rig::{CONSUMER, PRODUCER, PROJECTION, STREAMS};

/// The connector, and its slot.
pub(super) const CONNECTOR: &str = "demo";

/// How long the connector may take to create its slot.
const SLOT_WITHIN: Duration = Duration::from_secs(30);

/// All of it. What is dropped first ends first.
pub(super) struct Stage {
    /// `outflow relay`; locked while it is being killed and started again.
    pub(super) relay: tokio::sync::Mutex<Child>,
    /// `outflow consume`.
    pub(super) consumer: tokio::sync::Mutex<Child>,
    program: Program,
    /// Removed with the last of the children.
    _folder: Arc<Mutex<Folder>>,
    pub(super) redis: Redis,
    pub(super) postgres: Postgres,
}

impl Stage {
    /// Starts the servers, creates both databases and their schemas. Nothing else runs yet.
    ///
    /// # Cancel safety
    /// What was started ends with the future.
    pub(super) async fn build() -> anyhow::Result<Self> {
        let folder = Folder::create()?;
        let path = folder.path().to_owned();
        let program = Program {
            path: std::env::current_exe().context("this program does not know its own path")?,
            config: path.join("outflow.toml"),
            set: Vec::new(),
        };
        // the times of commits tell how long an event took from end to end
        let postgres = Postgres::builder().setting("track_commit_timestamp", "on").start();
        let redis = Redis::builder().appendonly(Fsync::EverySec).start();
        let (postgres, redis) = tokio::try_join!(postgres, redis)?;
        let ways = Ways {
            source: postgres.create_database(PRODUCER).await?,
            sink: redis.url(),
            inbox: redis.url(),
            books: postgres.create_database(CONSUMER).await?,
        };
        let projection = path.join("projection.sql");
        fs::write(&projection, PROJECTION).context("the demo's folder cannot be written")?;
        let config = ways.config("demo", CONNECTOR, STREAMS, &projection);
        fs::write(&program.config, config).context("the demo's folder cannot be written")?;
        let folder = Arc::new(Mutex::new(folder));
        let child = |name| {
            let child = Child::new(name, &[name], program.clone(), Arc::clone(&folder));
            tokio::sync::Mutex::new(child)
        };
        let stage = Self {
            relay: child("relay"),
            consumer: child("consume"),
            program,
            _folder: folder,
            redis,
            postgres,
        };
        stage.init().await?;
        Ok(stage)
    }

    /// Path of this program.
    pub(super) fn program(&self) -> &PathBuf {
        &self.program.path
    }

    /// Path of the configuration.
    pub(super) fn config(&self) -> &PathBuf {
        &self.program.config
    }

    /// A connection to the database with the outbox.
    pub(super) async fn producer_database(&self) -> anyhow::Result<Client> {
        Ok(self.postgres.connect_to(PRODUCER).await?)
    }

    /// A connection to the database with the inbox.
    pub(super) async fn consumer_database(&self) -> anyhow::Result<Client> {
        Ok(self.postgres.connect_to(CONSUMER).await?)
    }

    /// A connection to Redis.
    pub(super) async fn broker(&self) -> anyhow::Result<MultiplexedConnection> {
        Ok(self.redis.connect().await?)
    }

    async fn init(&self) -> anyhow::Result<()> {
        let output = self.program.command(&["init", "--demo"]).output().await?;
        if !output.status.success() {
            bail!("outflow init failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Starts connector and consumer and waits until the connector reads the log: a message that is
    /// older than its slot would be nowhere.
    pub(super) async fn start(&self) -> anyhow::Result<()> {
        self.relay.lock().await.start()?;
        self.consumer.lock().await.start()?;
        let client = self.producer_database().await?;
        let ready = async {
            loop {
                let slot = client
                    .query_opt(
                        "SELECT FROM pg_replication_slots
                         WHERE slot_name = $1 AND active AND confirmed_flush_lsn IS NOT NULL",
                        &[&CONNECTOR],
                    )
                    .await?;
                if slot.is_some() {
                    return anyhow::Ok(());
                }
                self.relay.lock().await.check()?;
                self.consumer.lock().await.check()?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        match tokio::time::timeout(SLOT_WITHIN, ready).await {
            Ok(ready) => ready,
            Err(_) => bail!(
                "the connector has not created its slot within {SLOT_WITHIN:?}{}",
                self.why().await
            ),
        }
    }

    /// What status and the logs say about why nothing moves.
    pub(super) async fn why(&self) -> String {
        let (relay, consumer) = (self.relay.lock().await, self.consumer.lock().await);
        why(&self.program, &[&*relay, &*consumer]).await
    }
}
