//! What can end a consumer, and what to do about it.

use std::fmt;

use crate::start::StartNeeded;

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The surroundings failed (a server, a network): the same work can succeed later.
    Transient,
    /// Nothing changes until a person acts on what the error says.
    Fatal,
}

/// Why a consumer could not start or had to stop.
///
/// A running consumer waits out whatever is [`Retry::Transient`] by itself, so that what
/// [`Consumer::run`](crate::Consumer::run) returns is fatal: fix what the message names, then start
/// again. Nothing is lost by it, unacknowledged entries stay pending.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration value is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Redis refused a command, or cannot be reached.
    #[error("redis: {}{}", RedisText(.source), Advice(.advice))]
    Redis {
        /// What Redis or the network said.
        source: redis::RedisError,
        /// What to do, where waiting does not help.
        advice: Option<&'static str>,
    },
    /// The database refused the inbox's own statements, or cannot be reached.
    #[error("database: {}{}", Chain(.source.as_ref()), Advice(.advice))]
    Database {
        /// What the database or the network said.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What to do, where waiting does not help.
        advice: Option<&'static str>,
    },
    /// Nobody said where a consumer begins that is new to streams with entries.
    #[error("{0}")]
    StartNeeded(Box<StartNeeded>),
    /// The projection cannot be used as it is.
    #[error(transparent)]
    Projection(#[from] crate::projection::ProjectionError),
    /// The handler ended the transaction, which is the inbox's.
    #[error(
        "{events}: the handler ended the transaction by itself: leave BEGIN, COMMIT and ROLLBACK to the inbox, and take \
         back a part of the work by a savepoint. Nothing that was done before stands; what the handler did behind its \
         ROLLBACK does, without an inbox row: look for it before you start the consumer again"
    )]
    TransactionEnded {
        /// Those that the handler was given: `event e7`, or the first and the last of several.
        events: String,
    },
    /// Another process runs under this worker's name.
    #[error(
        "worker `{worker}` of consumer `{consumer_id}` is running already, in another process: give every process \
         a name of its own"
    )]
    NameTaken {
        /// The consumer.
        consumer_id: String,
        /// The name.
        worker: String,
    },
    /// One of the consumer's own tasks panicked.
    #[error(
        "the consumer's {0} panicked: this is a bug, and nothing was acknowledged that was not committed"
    )]
    Panicked(&'static str),
}

impl Error {
    /// Whether trying again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Redis { advice: None, .. } | Self::Database { advice: None, .. } => {
                Retry::Transient
            }
            Self::Redis { .. }
            | Self::Database { .. }
            | Self::Config(_)
            | Self::StartNeeded(_)
            | Self::Projection(_)
            | Self::TransactionEnded { .. }
            | Self::NameTaken { .. }
            | Self::Panicked(_) => Retry::Fatal,
        }
    }
}

/// A configuration value that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {allowed}")]
pub struct ConfigError {
    /// The key, as [`ConsumerOptions`](crate::ConsumerOptions) names it.
    pub key: &'static str,
    /// The value that was given.
    pub value: String,
    /// What is allowed.
    pub allowed: &'static str,
}

/// What the server said, in its own words: the code that its documentation names comes first.
struct RedisText<'a>(&'a redis::RedisError);

impl fmt::Display for RedisText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.detail()) {
            (Some(code), Some(detail)) => write!(f, "{code} {detail}"),
            _ => write!(f, "{}", self.0),
        }
    }
}

struct Advice<'a>(&'a Option<&'static str>);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(advice) => write!(f, ": {advice}"),
            None => Ok(()),
        }
    }
}

/// An error with everything that caused it: the outer message alone is often just "db error".
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn std::error::Error + 'static));

impl<'a> Chain<'a> {
    pub(crate) fn new(error: &'a (dyn std::error::Error + 'static)) -> Self {
        Self(error)
    }
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut last = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            cause = error.source();
        }
        Ok(())
    }
}
