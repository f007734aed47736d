//! A throwaway PostgreSQL server.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::account::Account;
use crate::daemon::{Daemon, Home, POLL};
use crate::error::{Error, Result};
use crate::port::Port;
use crate::{binaries, place, template};

/// Attempts to start when other processes take the port first.
const PORT_ATTEMPTS: u32 = 5;
/// Always first in `pg_hba.conf`: the sandbox itself comes in through the Unix socket.
const OWN_HBA: &str = "local all postgres trust\nlocal replication postgres trust\n";
const DEFAULT_HBA: &str =
    "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust";

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

/// Settings of a server that is not yet started; see [`Postgres::builder`].
#[derive(Debug, Clone)]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    durable: bool,
    on_disk: bool,
    hba: String,
    tls: Option<(PathBuf, PathBuf)>,
    bin: Option<PathBuf>,
    start_timeout: Duration,
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

impl PostgresBuilder {
    /// Sets a parameter of `postgresql.conf`; a later value of the same parameter wins.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.settings.push((name.into(), value.to_string()));
        self
    }

    /// Whether commits reach the disk: `fsync`, `full_page_writes`. Off by default, which survives
    /// the death of the server but not of the machine. Measurements need it on.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Keeps the data folder out of memory: for gigabytes of data or WAL. Implied by
    /// [`durable`](Self::durable).
    #[must_use]
    pub fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    /// Lines of `pg_hba.conf` in place of "trust everyone on 127.0.0.1". The superuser `postgres`
    /// is always trusted on the Unix socket.
    #[must_use]
    pub fn pg_hba(mut self, lines: impl Into<String>) -> Self {
        self.hba = lines.into();
        self
    }

    /// Turns TLS on with this PEM certificate and key; both files are copied.
    #[must_use]
    pub fn tls(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some((certificate.into(), key.into()));
        self
    }

    /// Uses the programs in this folder rather than those that are found.
    #[must_use]
    pub fn bin_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin = Some(folder.into());
        self
    }

    /// How long a start may take, recovery included. 60 s by default.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// When no binaries are found ([`Error::Missing`]) or the server does not come up
    /// ([`Error::Start`], with the end of its log).
    ///
    /// # Cancel safety
    /// Cancelling removes the half-started server.
    pub async fn start(self) -> Result<Postgres> {
        let mut attempt = 1;
        loop {
            let postgres = self.prepare().await?;
            match postgres.start_again().await {
                Err(error) if error.port_taken() && attempt < PORT_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
                Ok(_) => return Ok(postgres),
            }
        }
    }

    /// A server with its data folder and configuration, ready to start.
    async fn prepare(&self) -> Result<Postgres> {
        let this = self.clone();
        blocking(move || {
            let bin = binaries::postgres(this.bin.as_deref())?;
            let account = Account::of_servers()?;
            let port = Port::reserve()?;
            let parent = place::parent(!this.durable && !this.on_disk);
            let home = Home::create(&parent, account, &port.address().to_string(), "QUIT")?;
            let data = home.path().join("data");
            template::instantiate(&bin, account, &data)?;
            this.configure(&data, home.path(), port.number(), account)?;
            let version = fs::read_to_string(data.join("PG_VERSION"))
                .map_err(Error::io("read", &data.join("PG_VERSION")))?;
            let args = vec!["-D".to_owned(), data.display().to_string()];
            let program = bin.join("postgres");
            let daemon = Daemon::new("postgres", program, args, account, port, home, Signal::QUIT);
            Ok(Postgres {
                daemon,
                bin,
                version: version.trim().parse().unwrap_or_default(),
                start_timeout: this.start_timeout,
                databases: AtomicU32::new(1),
            })
        })
        .await
    }

    fn configure(&self, data: &Path, home: &Path, port: u16, account: Account) -> Result<()> {
        let on_off = if self.durable { "on" } else { "off" };
        let mut conf = format!("\n# sandbox\nport = {port}\n");
        for (name, value) in [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", &home.display().to_string()),
            ("wal_level", "logical"),
            ("max_wal_senders", "32"),
            ("max_replication_slots", "32"),
            ("max_connections", "200"),
            ("fsync", on_off),
            ("full_page_writes", on_off),
            ("logging_collector", "off"),
            ("log_line_prefix", "%m [%p] %q%u@%d/%a "),
        ] {
            write_setting(&mut conf, name, value)?;
        }
        if let Some((certificate, key)) = &self.tls {
            for (file, source) in [("server.crt", certificate), ("server.key", key)] {
                let target = data.join(file);
                fs::copy(source, &target).map_err(Error::io("copy", source))?;
                account.give(&target, 0o600)?;
            }
            write_setting(&mut conf, "ssl", "on")?;
        }
        for (name, value) in &self.settings {
            write_setting(&mut conf, name, value)?;
        }
        append(&data.join("postgresql.conf"), &conf)?;
        write_hba(data, &self.hba)
    }
}

impl Postgres {
    /// A server with defaults that suit tests: `wal_level = logical`, 32 walsenders and slots, no
    /// fsync, trust authentication on 127.0.0.1.
    #[must_use]
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder {
            settings: Vec::new(),
            durable: false,
            on_disk: false,
            hba: DEFAULT_HBA.to_owned(),
            tls: None,
            bin: None,
            start_timeout: Duration::from_secs(60),
        }
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

/// Runs work that blocks the thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|failed| {
        Err(Error::Io { what: "prepare a server".into(), source: failed.into() })
    })
}

fn check_setting(name: &str) -> Result<()> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !name.is_empty() && name.chars().all(valid) {
        return Ok(());
    }
    Err(Error::BadSetting(name.to_owned()))
}

fn write_setting(conf: &mut String, name: &str, value: &str) -> Result<()> {
    check_setting(name)?;
    // writing to a String cannot fail
    let _ = writeln!(conf, "{name} = '{}'", value.replace('\'', "''"));
    Ok(())
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
