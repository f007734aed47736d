//! A throwaway Redis server.

mod builder;
mod cluster;
mod resident;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, InfoDict, IntoConnectionInfo};
use rustix::process::Signal;

use crate::daemon::{Daemon, POLL};
use crate::error::Result;
use crate::port::Port;

pub use self::builder::{Fsync, RedisBuilder};
pub use self::cluster::{RedisCluster, RedisClusterBuilder};
pub use self::resident::{Found, ResidentRedis};

/// The client's own default, half a second, is short for a busy test machine.
const RESPONSE_WITHIN: Duration = Duration::from_secs(10);

/// A running (or stopped, or killed) Redis server. Dropping it ends the server and removes its
/// folder.
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    /// The port of the cluster bus, for a node of a cluster.
    bus: Option<Port>,
    tls: bool,
    password: Option<String>,
    version: String,
    start_timeout: Duration,
}

impl Redis {
    /// A server without persistence and without password, on 127.0.0.1.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// URL over TCP (`rediss:` with TLS), with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|p| format!(":{p}@")).unwrap_or_default();
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}://{password}{}", self.daemon.port().address())
    }

    /// The TCP port; stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.daemon.port().number()
    }

    /// The process id; none while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// The folder of its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.daemon.home()
    }

    /// The full version: `7.0.15`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Everything that the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Whether the process runs (also while it is paused by [`sigstop`](Self::sigstop)).
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.daemon.running()
    }

    /// Connects over TCP, or over the Unix socket if the server asks for TLS. A reply may take 10 s.
    ///
    /// # Errors
    /// When the server does not accept the connection.
    pub async fn connect(&self) -> Result<MultiplexedConnection> {
        if self.tls { self.connect_locally().await } else { open(self.url()).await }
    }

    /// Connects over the Unix socket, which nobody else's server can answer.
    async fn connect_locally(&self) -> Result<MultiplexedConnection> {
        let socket = self.daemon.home().join("redis.sock");
        let password = self.password.as_ref().map(|p| format!("?pass={p}")).unwrap_or_default();
        open(format!("redis+unix://{}{password}", socket.display())).await
    }

    async fn info(&self, section: &str) -> Result<InfoDict> {
        Ok(InfoDict::new(&self.info_text(section).await?))
    }

    async fn info_text(&self, section: &str) -> Result<String> {
        let mut connection = self.connect_locally().await?;
        Ok(redis::cmd("INFO").arg(section).query_async(&mut connection).await?)
    }

    /// Starts a server that was stopped or killed: same port, same folder. Returns how long it took.
    ///
    /// # Errors
    /// When it runs already, or does not come up ([`Error::Start`](crate::Error::Start)).
    pub async fn start_again(&self) -> Result<Duration> {
        let _turn = self.daemon.turn().await;
        let since = Instant::now();
        self.daemon.spawn()?;
        loop {
            if !self.daemon.running() {
                return Err(self.daemon.start_error("it ended"));
            }
            let loading = match self.info("persistence").await {
                Ok(info) => info.get::<u8>("loading").unwrap_or_default() != 0,
                Err(error) if since.elapsed() > self.start_timeout => {
                    return Err(self.daemon.start_error(format!("no answer: {error}")));
                }
                Err(_) => true,
            };
            if !loading {
                return Ok(since.elapsed());
            }
            if since.elapsed() > self.start_timeout {
                return Err(self.daemon.start_error("it is still loading its data"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// SIGTERM: saves what is configured to be saved, and ends. Returns how long it took.
    ///
    /// # Errors
    /// [`Error::StillRunning`](crate::Error::StillRunning) when it takes longer than `timeout`.
    pub async fn stop(&self, timeout: Duration) -> Result<Duration> {
        let _turn = self.daemon.turn().await;
        self.daemon.signal(Signal::TERM)?;
        self.daemon.ended(timeout).await
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn kill(&self) -> Result<()> {
        let _turn = self.daemon.turn().await;
        self.daemon.kill_tree().await
    }

    /// SIGSTOP: connections stay, answers stop.
    ///
    /// # Errors
    /// When it is not running.
    pub fn sigstop(&self) -> Result<()> {
        self.daemon.signal(Signal::STOP)
    }

    /// SIGCONT: goes on after [`sigstop`](Self::sigstop).
    ///
    /// # Errors
    /// When it is not running.
    pub fn sigcont(&self) -> Result<()> {
        self.daemon.signal(Signal::CONT)
    }

    /// Makes this server a replica of `primary`, also after a restart, and waits until it is in
    /// sync.
    ///
    /// # Errors
    /// When a server refuses, or [`Error::Start`](crate::Error::Start) when the replica is not in sync in time.
    pub async fn replica_of(&self, primary: &Self) -> Result<()> {
        let mut connection = self.connect_locally().await?;
        if let Some(password) = &primary.password {
            config_set(&mut connection, "masterauth", password).await?;
        }
        let target = ("127.0.0.1", primary.port());
        redis::cmd("REPLICAOF").arg(target).exec_async(&mut connection).await?;
        rewrite(&mut connection).await?;
        let since = Instant::now();
        // the replica's own `master_link_status` is up a second before the primary counts it in WAIT
        let online = format!("port={},state=online", self.port());
        while !primary.info_text("replication").await?.contains(&online) {
            if since.elapsed() > self.start_timeout {
                return Err(self.daemon.start_error("the replica is not in sync"));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Makes a replica a primary (`REPLICAOF NO ONE`).
    ///
    /// # Errors
    /// When the server is not reached.
    pub async fn promote(&self) -> Result<()> {
        let mut connection = self.connect_locally().await?;
        redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec_async(&mut connection).await?;
        rewrite(&mut connection).await
    }

    /// `CONFIG SET` of one directive.
    ///
    /// # Errors
    /// When the server refuses the value.
    pub async fn config_set(&self, name: &str, value: &str) -> Result<()> {
        config_set(&mut self.connect_locally().await?, name, value).await
    }

    /// Gives the server up: it runs on after this process, and its folder stays. Returns the folder;
    /// `kill` of the pid ends the server.
    #[must_use]
    pub fn leave_running(mut self) -> PathBuf {
        self.daemon.leave_running();
        self.daemon.home().to_path_buf()
    }
}

async fn open(server: impl IntoConnectionInfo) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_WITHIN));
    Ok(Client::open(server)?.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn config_set(connection: &mut MultiplexedConnection, name: &str, value: &str) -> Result<()> {
    Ok(redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec_async(connection).await?)
}

/// Keeps what was set over a restart.
async fn rewrite(connection: &mut MultiplexedConnection) -> Result<()> {
    Ok(redis::cmd("CONFIG").arg("REWRITE").exec_async(connection).await?)
}
