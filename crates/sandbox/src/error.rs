//! What can go wrong with a sandbox server, with the remedy in the message.

use std::io;
use std::path::Path;
use std::time::Duration;

/// Result of sandbox operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a sandbox server or proxy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server binary on this machine.
    #[error(
        "{program} was not found: install it (apt-get install {package}) or set {variable} to the \
         folder that holds it; looked in {looked_in}"
    )]
    Missing {
        /// The program that is needed.
        program: &'static str,
        /// The Debian package that holds it.
        package: &'static str,
        /// The environment variable that overrides the search.
        variable: &'static str,
        /// The folders that were searched.
        looked_in: String,
    },
    /// PostgreSQL refuses to run as root, and there is no other account to run it as.
    #[error(
        "running as root, and no account `postgres` or `nobody` exists to run the servers as: \
         create one (useradd --system postgres) or run as an ordinary user"
    )]
    NoAccount,
    /// A file, folder or process operation failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was attempted, naming the file or program.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The cache folder belongs to somebody else.
    #[error(
        "{path} is not a folder that belongs to this user: remove it, or set TMPDIR to another folder"
    )]
    ForeignCache {
        /// The folder.
        path: String,
    },
    /// `initdb`, `pg_basebackup` or another tool failed.
    #[error("{program} failed: {output}")]
    Tool {
        /// The program.
        program: String,
        /// What it printed.
        output: String,
    },
    /// A server ended or did not answer in time while it was starting.
    #[error("{server} did not start: {reason}; its log ends with:\n{log}")]
    Start {
        /// `postgres` or `redis-server`.
        server: &'static str,
        /// Why it counts as not started.
        reason: String,
        /// The last lines of the server's log.
        log: String,
    },
    /// The path of a Unix socket is longer than systems allow.
    #[error(
        "{path} is longer than the path of a socket may be (103 bytes): use a folder with a shorter \
         path, or name it relative to the current folder"
    )]
    LongSocketPath {
        /// The path.
        path: String,
    },
    /// No free loopback port in the sandbox's range.
    #[error("no free port between {first} and {last} on 127.0.0.1: stop some servers")]
    NoPort {
        /// First port of the range.
        first: u16,
        /// Last port of the range.
        last: u16,
    },
    /// The server was asked to end and is still there.
    #[error("{server} (pid {pid}) is still running after {waited:?}")]
    StillRunning {
        /// `postgres` or `redis-server`.
        server: &'static str,
        /// Its process id.
        pid: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The operation needs a running server.
    #[error("{0} is not running: call start_again()")]
    NotRunning(&'static str),
    /// The server is already running.
    #[error("{0} is already running")]
    AlreadyRunning(&'static str),
    /// The nodes of a Redis Cluster did not find together in time.
    #[error("the cluster did not form; CLUSTER INFO of one node:\n{0}")]
    Cluster(String),
    /// A setting that the sandbox cannot write.
    #[error("`{0}` is not the name of a setting")]
    BadSetting(String),
    /// A statement or connection of the sandbox itself failed.
    #[error("postgres: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    /// A command or connection of the sandbox itself failed.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
}

impl Error {
    /// Wraps an I/O error with what was attempted on which file.
    pub(crate) fn io(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let what = format!("{what} {}", path.display());
        move |source| Self::Io { what, source }
    }

    /// Whether the server was asked for TLS and is built without it: reason to skip a test, and no
    /// other.
    #[must_use]
    pub fn is_without_tls(&self) -> bool {
        let words = ["SSL is not supported by this build", "Failed finding TLS support"];
        matches!(self, Self::Start { log, .. } if words.iter().any(|text| log.contains(text)))
    }

    /// Whether the server could not bind its port because another process took it first.
    pub(crate) fn port_taken(&self) -> bool {
        matches!(self, Self::Start { log, .. } if log.contains("Address already in use"))
    }
}
