//! A Redis that outlives the processes that use it: its data, its socket and its pid are in a folder
//! of the user's.
//!
//! The other servers of this crate end with their owner. This one is for an exercise that goes over
//! several commands: the first one starts it, the next ones find it, and it comes back with its data
//! if something has ended it in between. It listens on a Unix socket that only its user may open, and
//! on no port: it needs no password and no account of its own, runs as whoever started it, and cannot
//! collide with another server.
//!
//! It ends by [`ResidentRedis::stop`]; with its folder; or by itself, when nobody has used it for a
//! while. A few lines of `sh` (`resident.sh`) see to the latter two.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;

use super::open;
use crate::binaries;
use crate::cache::Lock;
use crate::daemon::{POLL, blocking};
use crate::error::{Error, Result};

/// Systems allow 104 to 108 bytes for the path of a socket, its end included.
const SOCKET_PATH: usize = 103;
/// How long a start may take, loading included.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Paths are relative to the folder, which may be moved. Every reply waits for the disk: what was
/// acknowledged survives a kill.
const CONFIGURATION: &str = "\
port 0
unixsocket redis.sock
unixsocketperm 700
pidfile redis.pid
save \"\"
appendonly yes
appendfsync always
";

/// A Redis server in a folder, over the processes that use it. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct ResidentRedis {
    home: PathBuf,
    idle_minutes: u32,
}

/// How [`ResidentRedis::start`] found the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It was running.
    Running,
    /// It was not, and is now.
    Started,
}

impl ResidentRedis {
    /// The server of the folder `home`, which is for this server alone; see [`start`](Self::start).
    /// It ends by itself after so many minutes without a start, connections or not.
    #[must_use]
    pub fn new(home: impl Into<PathBuf>, idle_minutes: u32) -> Self {
        Self { home: home.into(), idle_minutes }
    }

    /// The socket that it listens on (`redis-cli -s`).
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.home.join("redis.sock")
    }

    /// What it has recorded as its process id; none if it was ended in order, or never started.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        fs::read_to_string(self.home.join("redis.pid")).ok()?.trim().parse().ok()
    }

    /// Starts the server unless it runs, waits until it has loaded its data, and counts as a use.
    /// Makes the folder if need be; its parent must exist.
    ///
    /// # Errors
    /// [`Error::Missing`] without a `redis-server`, [`Error::LongSocketPath`] for a folder too deep
    /// for a socket, [`Error::Start`] when the server does not come up or does not answer.
    ///
    /// # Cancel safety
    /// Cancelling leaves a server behind that ends as every other one does.
    pub async fn start(&self) -> Result<Found> {
        let socket = self.socket();
        if socket.as_os_str().len() > SOCKET_PATH {
            return Err(Error::LongSocketPath { path: socket.display().to_string() });
        }
        let this = self.clone();
        // two processes that start it at once would be two servers with one set of files
        let (_turn, mut guardian) = blocking(move || {
            make(&this.home)?;
            let turn = Lock::wait(&this.home.join("redis.lock"))?;
            let conf = this.home.join("redis.conf");
            fs::write(&conf, CONFIGURATION).map_err(Error::io("write", &conf))?;
            let guardian = if this.listens()? { None } else { Some(this.spawn()?) };
            Ok((turn, guardian))
        })
        .await?;
        let since = Instant::now();
        loop {
            if let Some(guardian) = &mut guardian
                && !matches!(guardian.try_wait(), Ok(None))
            {
                return Err(self.start_error("it ended"));
            }
            match self.answers().await {
                Ok(()) if guardian.is_some() => return Ok(Found::Started),
                Ok(()) => return Ok(Found::Running),
                Err(error) if since.elapsed() > START_TIMEOUT => {
                    let pid = self.pid().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                    return Err(self.start_error(&format!("no answer{pid}: {error}")));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Connects. A reply may take 10 s.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn connect(&self) -> Result<MultiplexedConnection> {
        open(ConnectionAddr::Unix(self.socket())).await
    }

    /// Ends the server in order and waits until it is gone; its data stays. False if it did not run.
    ///
    /// # Errors
    /// [`Error::StillRunning`] when it takes longer than `timeout`.
    pub async fn stop(&self, timeout: Duration) -> Result<bool> {
        if !self.listens()? {
            return Ok(false);
        }
        let pid = self.pid().unwrap_or_default();
        let since = Instant::now();
        // it closes the connection in place of an answer
        let end = async {
            redis::cmd("SHUTDOWN").exec_async(&mut self.connect().await?).await.map_err(Error::from)
        };
        let _ = tokio::time::timeout(timeout, end).await;
        while self.listens()? {
            let waited = since.elapsed();
            if waited > timeout {
                return Err(Error::StillRunning { server: "redis-server", pid, waited });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }

    /// Whether somebody listens on the socket, busy or not.
    fn listens(&self) -> Result<bool> {
        match UnixStream::connect(self.socket()) {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(false),
                _ => Err(Error::io("connect to", &self.socket())(error)),
            },
        }
    }

    fn spawn(&self) -> Result<Child> {
        let program = binaries::redis(None)?.join("redis-server");
        Command::new("sh")
            .args(["-c", include_str!("resident.sh"), "outflow-resident-redis"])
            .arg(&self.home)
            .arg(program)
            .arg(self.idle_minutes.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // ctrl-C is for the command that starts it
            .process_group(0)
            .spawn()
            .map_err(Error::io("run", Path::new("sh")))
    }

    async fn answers(&self) -> Result<()> {
        let mut connection = self.connect().await?;
        // a server that still loads refuses it
        Ok(redis::cmd("PING").exec_async(&mut connection).await?)
    }

    fn start_error(&self, reason: &str) -> Error {
        const LINES: usize = 20;
        let log = fs::read(self.home.join("redis.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n");
        Error::Start { server: "redis-server", reason: reason.to_owned(), log: tail }
    }
}

fn make(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("create", folder)(error))
        }
        _ => Ok(()),
    }
}
