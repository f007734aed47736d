//! A throwaway Redis server.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, InfoDict};
use rustix::process::Signal;

use crate::account::Account;
use crate::daemon::{Daemon, Home, POLL};
use crate::error::{Error, Result};
use crate::port::Port;
use crate::postgres::blocking;
use crate::{binaries, place};

/// Attempts to start when other processes take the port first.
const PORT_ATTEMPTS: u32 = 5;

/// The client's own default, half a second, is short for a busy test machine.
const RESPONSE_WITHIN: Duration = Duration::from_secs(10);

/// When the append-only file is synced (`appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Never; the operating system decides.
    No,
    /// Once a second: a crash of the machine may lose a second.
    EverySec,
    /// Before every reply.
    Always,
}

/// Settings of a server that is not yet started; see [`Redis::builder`].
#[derive(Debug, Clone)]
pub struct RedisBuilder {
    settings: Vec<(String, String)>,
    password: Option<String>,
    on_disk: bool,
    bin: Option<PathBuf>,
    start_timeout: Duration,
}

/// A running (or stopped, or killed) Redis server. Dropping it ends the server and removes its
/// folder.
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    password: Option<String>,
    version: String,
    start_timeout: Duration,
}

impl RedisBuilder {
    /// Sets a directive of `redis.conf`; a later value of the same directive wins where it takes one.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.settings.push((name.into(), value.to_string()));
        self
    }

    /// Turns the append-only file on. Without it nothing survives the end of the server.
    #[must_use]
    pub fn appendonly(self, fsync: Fsync) -> Self {
        let policy = match fsync {
            Fsync::No => "no",
            Fsync::EverySec => "everysec",
            Fsync::Always => "always",
        };
        self.setting("appendonly", "yes").setting("appendfsync", policy)
    }

    /// Keeps the files on the disk: for measurements of the append-only file, which is only worth
    /// its `fsync` there.
    #[must_use]
    pub fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    /// Asks clients for this password; [`Redis::url`] holds it.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Uses the programs in this folder rather than those that are found.
    #[must_use]
    pub fn bin_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin = Some(folder.into());
        self
    }

    /// How long a start may take, loading included. 30 s by default.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Starts the server and waits until it answers and has loaded its data.
    ///
    /// # Errors
    /// When no binary is found ([`Error::Missing`]) or the server does not come up
    /// ([`Error::Start`], with the end of its log).
    ///
    /// # Cancel safety
    /// Cancelling removes the half-started server.
    pub async fn start(self) -> Result<Redis> {
        let mut attempt = 1;
        loop {
            let mut redis = self.prepare().await?;
            match redis.start_again().await {
                Err(error) if error.port_taken() && attempt < PORT_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
                Ok(_) => {
                    redis.version =
                        redis.info("server").await?.get("redis_version").unwrap_or_default();
                    return Ok(redis);
                }
            }
        }
    }

    async fn prepare(&self) -> Result<Redis> {
        let this = self.clone();
        blocking(move || {
            let bin = binaries::redis(this.bin.as_deref())?;
            let account = Account::of_servers()?;
            let port = Port::reserve()?;
            let parent = place::parent(!this.on_disk);
            let home = Home::create(&parent, account, &port.address().to_string(), "KILL")?;
            let conf = home.path().join("redis.conf");
            fs::write(&conf, this.configuration(home.path(), port.number())?)
                .map_err(Error::io("write", &conf))?;
            account.give(&conf, 0o600)?;
            let args = vec![conf.display().to_string()];
            let program = bin.join("redis-server");
            let daemon =
                Daemon::new("redis-server", program, args, account, port, home, Signal::KILL);
            Ok(Redis {
                daemon,
                password: this.password,
                version: String::new(),
                start_timeout: this.start_timeout,
            })
        })
        .await
    }

    fn configuration(&self, home: &Path, port: u16) -> Result<String> {
        let mut conf = String::new();
        for (name, value) in [
            ("port", port.to_string()),
            ("bind", "127.0.0.1".into()),
            ("unixsocket", home.join("redis.sock").display().to_string()),
            ("unixsocketperm", "700".into()),
            ("dir", home.display().to_string()),
            ("daemonize", "no".into()),
            ("save", String::new()),
            ("appendonly", "no".into()),
            // by default a primary waits 5 s for further replicas before it syncs the first one
            ("repl-diskless-sync-delay", "0".into()),
        ] {
            directive(&mut conf, name, &value)?;
        }
        if let Some(password) = &self.password {
            directive(&mut conf, "requirepass", password)?;
        }
        for (name, value) in &self.settings {
            directive(&mut conf, name, value)?;
        }
        Ok(conf)
    }
}

impl Redis {
    /// A server without persistence and without password, on 127.0.0.1.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder {
            settings: Vec::new(),
            password: None,
            on_disk: false,
            bin: None,
            start_timeout: Duration::from_secs(30),
        }
    }

    /// URL over TCP, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|p| format!(":{p}@")).unwrap_or_default();
        format!("redis://{password}{}", self.daemon.port().address())
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

    /// Connects over TCP; a reply may take 10 s.
    ///
    /// # Errors
    /// When the server does not accept the connection.
    pub async fn connect(&self) -> Result<MultiplexedConnection> {
        open(self.url()).await
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
    /// When it runs already, or does not come up ([`Error::Start`]).
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
    /// [`Error::StillRunning`] when it takes longer than `timeout`.
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

    /// Makes this server a replica of `primary` and waits until it is in sync.
    ///
    /// # Errors
    /// When a server refuses, or [`Error::Start`] when the replica is not in sync in time.
    pub async fn replica_of(&self, primary: &Self) -> Result<()> {
        let mut connection = self.connect_locally().await?;
        if let Some(password) = &primary.password {
            config_set(&mut connection, "masterauth", password).await?;
        }
        let target = ("127.0.0.1", primary.port());
        redis::cmd("REPLICAOF").arg(target).exec_async(&mut connection).await?;
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
        Ok(redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec_async(&mut connection).await?)
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

async fn open(url: String) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_WITHIN));
    Ok(Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn config_set(connection: &mut MultiplexedConnection, name: &str, value: &str) -> Result<()> {
    Ok(redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec_async(connection).await?)
}

/// One line of `redis.conf`. A value with several arguments (`client-output-buffer-limit`) is
/// written as it is; an empty one as `""`.
fn directive(conf: &mut String, name: &str, value: &str) -> Result<()> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(valid) || value.contains(['\n', '\r']) {
        return Err(Error::BadSetting(name.to_owned()));
    }
    let value = if value.is_empty() { "\"\"" } else { value };
    // writing to a String cannot fail
    let _ = writeln!(conf, "{name} {value}");
    Ok(())
}
