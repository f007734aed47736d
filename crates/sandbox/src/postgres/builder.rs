//! Settings of a PostgreSQL server, and its first start.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::process::Signal;

use super::{Postgres, append, check_setting, write_hba};
use crate::account::{Account, take};
use crate::daemon::{Daemon, Home, blocking};
use crate::error::{Error, Result};
use crate::port::Port;
use crate::{binaries, place, template};

/// Attempts to start when other processes take the port first.
const PORT_ATTEMPTS: u32 = 5;
const DEFAULT_HBA: &str =
    "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust";
/// Room for many connectors, slots and test clients.
const DEFAULTS: [(&str, &str); 7] = [
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_wal_senders", "32"),
    ("max_replication_slots", "32"),
    ("max_connections", "200"),
    ("logging_collector", "off"),
    ("log_line_prefix", "%m [%p] %q%u@%d/%a "),
];

/// Settings of a server that is not yet started; see [`Postgres::builder`].
#[derive(Debug, Clone)]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    durable: bool,
    on_disk: bool,
    hba: String,
    tls: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
    /// Connection string of the primary, for a standby.
    primary: Option<String>,
    bin: Option<PathBuf>,
    start_timeout: Duration,
}

impl PostgresBuilder {
    pub(super) fn new() -> Self {
        Self {
            settings: Vec::new(),
            durable: false,
            on_disk: false,
            hba: DEFAULT_HBA.to_owned(),
            tls: None,
            client_ca: None,
            primary: None,
            bin: None,
            start_timeout: Duration::from_secs(60),
        }
    }

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

    /// Lets clients present certificates of this PEM authority; `pg_hba` lines with `cert` or
    /// `clientcert=verify-full` ask for them. The file is copied.
    #[must_use]
    pub fn tls_client_ca(mut self, authority: impl Into<PathBuf>) -> Self {
        self.client_ca = Some(authority.into());
        self
    }

    /// Makes the server a streaming standby of a running one, from a base backup. Settings are the
    /// primary's, then this builder's.
    #[must_use]
    pub fn standby_of(mut self, primary: &Postgres) -> Self {
        let folder = primary.daemon.home().display();
        self.primary = Some(format!("host={folder} port={} user=postgres", primary.port()));
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
            match &this.primary {
                Some(primary) => base_backup(&bin, account, primary, &data)?,
                None => template::instantiate(&bin, account, &data)?,
            }
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
        let mut conf = "\n# sandbox\n".to_owned();
        write_setting(&mut conf, "port", &port.to_string())?;
        write_setting(&mut conf, "unix_socket_directories", &home.display().to_string())?;
        // a standby has its primary's settings
        if self.primary.is_none() {
            let on_off = if self.durable { "on" } else { "off" };
            for (name, value) in DEFAULTS {
                write_setting(&mut conf, name, value)?;
            }
            write_setting(&mut conf, "fsync", on_off)?;
            write_setting(&mut conf, "full_page_writes", on_off)?;
            if !self.durable {
                // in the data folder, which goes away; the default leaves a megabyte in /dev/shm for
                // every server that is killed and not started again
                write_setting(&mut conf, "dynamic_shared_memory_type", "mmap")?;
            }
        }
        if let Some((certificate, key)) = &self.tls {
            take(certificate, &data.join("server.crt"), account)?;
            take(key, &data.join("server.key"), account)?;
            write_setting(&mut conf, "ssl", "on")?;
        }
        if let Some(authority) = &self.client_ca {
            take(authority, &data.join("root.crt"), account)?;
            write_setting(&mut conf, "ssl_ca_file", "root.crt")?;
        }
        for (name, value) in &self.settings {
            write_setting(&mut conf, name, value)?;
        }
        append(&data.join("postgresql.conf"), &conf)?;
        write_hba(data, &self.hba)
    }
}

/// Copies the data folder of a running server.
fn base_backup(bin: &Path, account: Account, primary: &str, data: &Path) -> Result<()> {
    let data = format!("--pgdata={}", data.display());
    let primary = format!("--dbname={primary}");
    let fixed = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream"];
    let mut args = vec![data.as_str(), primary.as_str()];
    args.extend(fixed);
    template::run(account, &bin.join("pg_basebackup"), &args)?;
    Ok(())
}

fn write_setting(conf: &mut String, name: &str, value: &str) -> Result<()> {
    check_setting(name)?;
    // writing to a String cannot fail
    let _ = writeln!(conf, "{name} = '{}'", value.replace('\'', "''"));
    Ok(())
}
