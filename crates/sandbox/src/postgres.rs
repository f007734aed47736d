//! A throwaway PostgreSQL server.

mod builder;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::daemon::{Daemon, POLL};
use crate::error::{Error, Result};

/// Always first in `pg_hba.conf`: the sandbox itself comes in through the Unix socket.
const OWN_HBA: &str = "local all postgres trust\nlocal replication postgres trust\n";

pub use self::builder::PostgresBuilder;

/// How a PostgreSQL server is asked to end (PostgreSQL documentation, "Shutting Down the Server").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// SIGTERM: waits for clients to leave.
    Smart,
    /// SIGINT: ends sessions, writes a checkpoint; walsenders first send what is left.
    Fast,
    /// SIGQUIT: ends at once, recovery at the next start.
    Immediate,
}

/// A database and its URL.
#[derive(Debug, Clone)]
pub struct Database {
    /// Name of the database.
    pub name: String,
    /// URL of the database as superuser, over TCP.
    pub url: String,
}

/// A running (or stopped, or killed) PostgreSQL server. Dropping it ends the server and removes its
/// folder.
#[derive(Debug)]
pub struct Postgres {
    daemon: Daemon,
    bin: PathBuf,
    version: u32,
    start_timeout: Duration,
    /// Numbers the databases of [`Postgres::fresh_database`].
    databases: AtomicU32,
}

impl Postgres {
    /// A server with defaults that suit tests: `wal_level = logical`, 32 walsenders and slots, no
    /// fsync, trust authentication on 127.0.0.1.
    #[must_use]
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::new()
    }

    /// URL of the database `postgres` as superuser, over TCP.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// URL of a database as superuser, over TCP.
    #[must_use]
    pub fn url_for(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// URL of a database as this user (`user` or `user:password`), over TCP.
    #[must_use]
    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@{}/{database}", self.daemon.port().address())
    }

    /// URL of the database `postgres` as superuser, over the Unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        self.unix_url_for("postgres")
    }

    /// URL of a database as superuser, over the Unix socket: works whatever `pg_hba.conf` says.
    #[must_use]
    pub fn unix_url_for(&self, database: &str) -> String {
        let folder = self.daemon.home().display();
        format!("postgres:///{database}?user=postgres&host={folder}&port={}", self.port())
    }

    /// The TCP port; stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.daemon.port().number()
    }

    /// The postmaster's process id; none while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// The data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.daemon.home().join("data")
    }

    /// The folder of PostgreSQL's programs.
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// The path of a tool of the same version, such as `pg_recvlogical`.
    #[must_use]
    pub fn tool(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// The major version: 15.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Everything that the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Whether the postmaster runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.daemon.running()
    }

    /// Creates a database and returns its URL.
    ///
    /// # Errors
    /// When the server refuses, for one because the database exists.
    pub async fn create_database(&self, name: &str) -> Result<String> {
        let quoted = name.replace('"', "\"\"");
        self.connect().await?.batch_execute(&format!("CREATE DATABASE \"{quoted}\"")).await?;
        Ok(self.url_for(name))
    }

    /// Creates a database with a name that no other caller gets.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn fresh_database(&self) -> Result<Database> {
        let name = format!("fresh_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let url = self.create_database(&name).await?;
        Ok(Database { name, url })
    }

    /// Connects to the database `postgres` as superuser, over the Unix socket.
    ///
    /// # Errors
    /// When the server does not accept the connection.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_to("postgres").await
    }

    /// Connects to a database as superuser, over the Unix socket. The connection's task runs on the
    /// caller's runtime.
    ///
    /// # Errors
    /// When the server does not accept the connection.
    pub async fn connect_to(&self, database: &str) -> Result<Client> {
        let (client, connection) =
            tokio_postgres::connect(&self.unix_url_for(database), NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // servers are killed on purpose here
                tracing::debug!(%error, "sandbox connection ended");
            }
        });
        Ok(client)
    }

    /// Starts a server that was stopped or killed: same port, same data. Returns how long it took.
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
            match self.connect().await {
                Ok(_) => return Ok(since.elapsed()),
                Err(error) if since.elapsed() > self.start_timeout => {
                    return Err(self.daemon.start_error(format!("no answer: {error}")));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Asks the server to end and waits until it has. Returns how long it took.
    ///
    /// # Errors
    /// [`Error::StillRunning`] when it takes longer than `timeout`; it still ends later.
    pub async fn stop(&self, how: Shutdown, timeout: Duration) -> Result<Duration> {
        let _turn = self.daemon.turn().await;
        self.daemon.signal(match how {
            Shutdown::Smart => Signal::TERM,
            Shutdown::Fast => Signal::INT,
            Shutdown::Immediate => Signal::QUIT,
        })?;
        self.daemon.ended(timeout).await
    }

    /// Kills postmaster and children at one instant, as a crash of the machine would (what the
    /// server wrote stays written), and waits until all are gone.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn kill(&self) -> Result<()> {
        let _turn = self.daemon.turn().await;
        self.daemon.kill_tree().await
    }

    /// Ends recovery on a standby (`pg_promote`), on a new timeline, and waits until it has.
    ///
    /// # Errors
    /// When the server is no standby.
    pub async fn promote(&self) -> Result<()> {
        Ok(self.connect().await?.batch_execute("SELECT pg_promote()").await?)
    }

    /// Appends lines to `postgresql.conf`; takes effect at the next [`reload`](Self::reload) or start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append_conf(&self, lines: &str) -> Result<()> {
        append(&self.data_dir().join("postgresql.conf"), &format!("{lines}\n"))
    }

    /// Replaces the lines of `pg_hba.conf`, and reloads it if the server runs.
    ///
    /// # Errors
    /// When the file cannot be written or the server not reached.
    pub async fn pg_hba(&self, lines: &str) -> Result<()> {
        write_hba(&self.data_dir(), lines)?;
        if self.is_running() { self.reload().await } else { Ok(()) }
    }

    /// `ALTER SYSTEM SET` and a reload. What needs a restart takes effect at the next start.
    ///
    /// # Errors
    /// When the server refuses the value.
    pub async fn alter_system(&self, name: &str, value: &str) -> Result<()> {
        check_setting(name)?;
        let value = value.replace('\'', "''");
        let client = self.connect().await?;
        client.batch_execute(&format!("ALTER SYSTEM SET {name} = '{value}'")).await?;
        self.reload().await
    }

    /// Reloads the configuration, and waits until new sessions see it. Running sessions follow
    /// before their next statement.
    ///
    /// # Errors
    /// When the server is not reached.
    pub async fn reload(&self) -> Result<()> {
        const LOADED: &str = "SELECT pg_conf_load_time()::text";
        let client = self.connect().await?;
        let before: String = client.query_one(LOADED, &[]).await?.get(0);
        client.batch_execute("SELECT pg_reload_conf()").await?;
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) {
            let now: String = self.connect().await?.query_one(LOADED, &[]).await?.get(0);
            if now != before {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Gives the server up: it runs on after this process, and its folder stays. Returns the folder;
    /// `kill -INT` of the pid ends the server.
    #[must_use]
    pub fn leave_running(mut self) -> PathBuf {
        self.daemon.leave_running();
        self.daemon.home().to_path_buf()
    }
}

fn check_setting(name: &str) -> Result<()> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !name.is_empty() && name.chars().all(valid) {
        return Ok(());
    }
    Err(Error::BadSetting(name.to_owned()))
}

fn append(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::io("append to", path))
}

fn write_hba(data: &Path, lines: &str) -> Result<()> {
    let path = data.join("pg_hba.conf");
    fs::write(&path, format!("{OWN_HBA}{lines}\n")).map_err(Error::io("write", &path))
}
