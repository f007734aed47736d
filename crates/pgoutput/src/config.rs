//! Where and how to connect.
//!
//! A connection string in either form of libpq (PostgreSQL documentation, "Connection Strings"), completed
//! from the `PG*` variables ("Environment Variables") and a password file ("The Password File"). What
//! [`tokio_postgres::Config`] knows is left to it; the rest, which is all about TLS, is read here.

mod dsn;
mod env;
mod passfile;
mod ssl;
#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio_postgres::config::Host;

pub(crate) use self::ssl::RootCert;
pub use self::ssl::SslMode;
use self::{passfile::PassFile, ssl::ssl_mode};
use crate::Error;

/// `connect_timeout` where nobody gave one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Validated connection options, for the replication link and for ordinary SQL connections alike.
///
/// # TLS
/// Without `sslmode`: none on Unix sockets and loopback addresses, [`SslMode::Prefer`] elsewhere.
/// `sslmode=require` verifies too, see [`SslMode`]. Authorities come from `sslrootcert` (a PEM file, or
/// `system`), else from the operating system. `sslcert` and `sslkey` (PEM) name a client certificate. The
/// files are read at each connection, so a renewed certificate needs no restart.
///
/// # Several hosts
/// All addresses of all hosts are tried in order, each for at most `connect_timeout` (10 s unless given);
/// `load_balance_hosts` is not honoured. `target_session_attrs` passes over hosts of the wrong kind.
///
/// `Debug` and `Display` never show the password.
#[derive(Clone)]
pub struct ConnectOptions {
    config: tokio_postgres::Config,
    user: String,
    database: String,
    ssl_mode: Option<SslMode>,
    ssl_root: Option<RootCert>,
    ssl_cert: Option<PathBuf>,
    ssl_key: Option<PathBuf>,
    passwords: PassFile,
}

/// One host of the connection string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) addr: Option<IpAddr>,
    pub(crate) port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.addr) {
            (Host::Unix(dir), _) => write!(f, "{}/.s.PGSQL.{}", dir.display(), self.port),
            (Host::Tcp(name), Some(addr)) if *name != addr.to_string() => {
                write!(f, "{name}:{} ({addr})", self.port)
            }
            (Host::Tcp(name), _) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl Target {
    fn is_local(&self) -> bool {
        match (&self.host, self.addr) {
            (Host::Unix(_), _) => true,
            (Host::Tcp(_), Some(addr)) => addr.is_loopback(),
            (Host::Tcp(name), None) => {
                name == "localhost" || name.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback())
            }
        }
    }
}

impl ConnectOptions {
    /// Reads a connection string, URL or keyword/value, and completes it from the process environment.
    /// An empty string takes everything from there.
    ///
    /// # Errors
    /// [`Error::Config`] names the keyword or variable that is not usable, and never shows a password.
    pub fn parse(dsn: &str) -> Result<Self, Error> {
        Self::parse_with(dsn, &|name| std::env::var(name).ok())
    }

    /// [`Self::parse`] with another source of environment variables than the process.
    ///
    /// # Errors
    /// As of [`Self::parse`].
    pub fn parse_with(dsn: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let (mut config, mut own) = dsn::parse(dsn)?;
        env::fill(&mut config, &env)?;
        let mut own = |key: &str, variable: &str| own.remove(key).or_else(|| env(variable));

        let user = match (config.get_user(), env("USER").or_else(|| env("LOGNAME"))) {
            (Some(user), _) => user.to_owned(),
            (None, Some(user)) => user,
            (None, None) => return Err(invalid("no user: add user=.. or set PGUSER")),
        };
        config.user(&user);
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        config.dbname(&database);

        let ssl_root = own("sslrootcert", "PGSSLROOTCERT").map(|value| match value.as_str() {
            "system" => RootCert::System,
            path => RootCert::File(path.into()),
        });
        let ssl_mode = own("sslmode", "PGSSLMODE")
            .map(|mode| ssl_mode(&mode, ssl_root.as_ref()))
            .transpose()?;
        let ssl_cert = own("sslcert", "PGSSLCERT").map(PathBuf::from);
        let ssl_key = own("sslkey", "PGSSLKEY").map(PathBuf::from);
        if ssl_cert.is_some() != ssl_key.is_some() {
            return Err(invalid("sslcert and sslkey belong together: one of them is missing"));
        }
        let passwords = match own("passfile", "PGPASSFILE") {
            Some(path) => PassFile::read(Path::new(&path))?,
            None => env("HOME")
                .map(|home| PassFile::read(&Path::new(&home).join(".pgpass")))
                .transpose()?
                .unwrap_or_default(),
        };
        let options =
            Self { config, user, database, ssl_mode, ssl_root, ssl_cert, ssl_key, passwords };
        options.check_hosts()?;
        Ok(options)
    }

    fn check_hosts(&self) -> Result<(), Error> {
        let at_sign =
            |target: &Target| matches!(&target.host, Host::Tcp(name) if name.contains('@'));
        if self.targets()?.iter().any(at_sign) {
            return Err(invalid(
                "the host has an \"@\" in it: where user or password have one, write it as %40",
            ));
        }
        Ok(())
    }

    /// Sets `application_name`, by which an operator finds the session in `pg_stat_activity` and
    /// `pg_stat_replication`, unless the connection string already has one.
    pub fn default_application_name(&mut self, name: &str) -> &mut Self {
        if self.config.get_application_name().is_none() {
            self.config.application_name(name);
        }
        self
    }

    /// Replaces the database.
    pub fn set_database(&mut self, database: &str) -> &mut Self {
        self.config.dbname(database);
        self.database = database.to_owned();
        self
    }

    /// The role.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Limit of one attempt to reach one address, authentication included.
    pub fn connect_timeout(&self) -> Duration {
        self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT)
    }

    /// The options that `tokio_postgres` knows. Connecting with them skips what is only here: TLS
    /// verification and the password file.
    pub fn as_tokio_postgres(&self) -> &tokio_postgres::Config {
        &self.config
    }

    /// The options as a URL, for logs and error messages: everything that tells two configurations apart,
    /// and no password.
    pub fn redacted(&self) -> String {
        let mut url = format!("postgresql://{}@", self.user);
        let targets = self.targets().unwrap_or_default();
        for (i, target) in targets.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = match &target.host {
                Host::Unix(dir) => write!(url, "{comma}{}:{}", dir.display(), target.port),
                Host::Tcp(name) => write!(url, "{comma}{name}:{}", target.port),
            };
        }
        let _ = write!(url, "/{}", self.database);
        let mode = match (self.ssl_mode, targets.first()) {
            (Some(mode), _) => mode,
            (None, Some(target)) => self.ssl_mode_for(target),
            (None, None) => SslMode::Prefer,
        };
        let _ = write!(url, "?sslmode={mode}");
        if let Some(name) = self.config.get_application_name() {
            let _ = write!(url, "&application_name={name}");
        }
        url
    }

    /// What TLS means for one host.
    pub(crate) fn ssl_mode_for(&self, target: &Target) -> SslMode {
        match (&target.host, self.ssl_mode) {
            // PostgreSQL has no TLS on Unix sockets
            (Host::Unix(_), _) => SslMode::Disable,
            (Host::Tcp(_), Some(mode)) => mode,
            (Host::Tcp(_), None) if target.is_local() => SslMode::Disable,
            (Host::Tcp(_), None) => SslMode::Prefer,
        }
    }

    pub(crate) fn root_cert(&self) -> &RootCert {
        self.ssl_root.as_ref().unwrap_or(&RootCert::System)
    }

    pub(crate) fn client_cert(&self) -> Option<(&Path, &Path)> {
        Some((self.ssl_cert.as_deref()?, self.ssl_key.as_deref()?))
    }

    pub(crate) fn password_for(&self, target: &Target) -> Option<Vec<u8>> {
        match self.config.get_password() {
            Some(password) => Some(password.to_vec()),
            None => self.passwords.find(target, &self.database, &self.user),
        }
    }

    /// Hosts, addresses and ports, paired as libpq pairs them.
    pub(crate) fn targets(&self) -> Result<Vec<Target>, Error> {
        let (hosts, addrs) = (self.config.get_hosts(), self.config.get_hostaddrs());
        let ports = self.config.get_ports();
        let count = hosts.len().max(addrs.len());
        if !hosts.is_empty() && !addrs.is_empty() && hosts.len() != addrs.len() {
            return Err(Error::Config(format!(
                "{} host but {} hostaddr: give as many of one as of the other",
                hosts.len(),
                addrs.len()
            )));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(Error::Config(format!(
                "{} port for {count} hosts: give one for all, or one for each",
                ports.len()
            )));
        }
        let target = |i: usize| {
            let addr = addrs.get(i).copied();
            let host = match (hosts.get(i), addr) {
                (Some(host), _) => host.clone(),
                (None, Some(addr)) => Host::Tcp(addr.to_string()),
                (None, None) => Host::Tcp("localhost".to_owned()),
            };
            let port = ports.get(i).or(ports.first()).copied().unwrap_or(5432);
            Target { host, addr, port }
        };
        Ok((0..count).map(target).collect())
    }
}

/// What is not in the configuration stays absent: neither variables nor password files are looked at.
/// [`SslMode::VerifyFull`] where TLS is required.
impl TryFrom<tokio_postgres::Config> for ConnectOptions {
    type Error = Error;

    fn try_from(mut config: tokio_postgres::Config) -> Result<Self, Error> {
        use tokio_postgres::config::SslMode as Theirs;
        let user =
            config.get_user().ok_or_else(|| invalid("no user in the configuration"))?.to_owned();
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        let ssl_mode = match config.get_ssl_mode() {
            Theirs::Disable => Some(SslMode::Disable),
            Theirs::Prefer => None,
            _ => Some(SslMode::VerifyFull),
        };
        let (ssl_root, ssl_cert, ssl_key) = (None, None, None);
        let passwords = PassFile::default();
        let options =
            Self { config, user, database, ssl_mode, ssl_root, ssl_cert, ssl_key, passwords };
        options.check_hosts()?;
        Ok(options)
    }
}

impl fmt::Display for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectOptions").field(&self.redacted()).finish()
    }
}

impl std::str::FromStr for ConnectOptions {
    type Err = Error;

    fn from_str(dsn: &str) -> Result<Self, Error> {
        Self::parse(dsn)
    }
}

fn invalid(text: &str) -> Error {
    Error::Config(text.to_owned())
}
