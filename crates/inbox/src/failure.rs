//! Why a batch was rolled back, and whose fault that was.

use tokio_postgres::error::SqlState;

use crate::database::{Fault, Verdict, fault, statement_failed, verdict};
use crate::delivery::{Delivery, named};
use crate::error::Error;
use crate::handler::HandlerError;

/// Why a batch was rolled back.
pub(crate) enum Failure {
    /// Nobody's fault; with `reconnect` on another connection.
    Transient { reason: String, reconnect: bool },
    /// The server refused a value: perhaps a payload that `jsonb` cannot hold after all.
    Data(tokio_postgres::Error),
    /// The handler could not apply some of the events.
    Handler(HandlerError),
    /// The handler applied them, and the commit was refused for it.
    Commit(HandlerError),
    /// The projection cannot apply any event.
    Projection(HandlerError),
    /// The stream, or the parked events, are in other hands by now.
    Taken,
    /// Nothing changes until a person acts.
    Fatal(Error),
}

impl Failure {
    /// By the one that was `given` these events.
    pub(crate) fn ended_by_handler(given: &[Delivery]) -> Self {
        Self::Fatal(Error::TransactionEnded { events: named(given) })
    }
}

impl From<tokio_postgres::Error> for Failure {
    /// One of the inbox's own statements failed.
    fn from(error: tokio_postgres::Error) -> Self {
        if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            return Self::Handler(hidden());
        }
        match verdict(&error) {
            Verdict::Data => Self::Data(error),
            Verdict::Fatal(_) | Verdict::Statement => Self::Fatal(statement_failed(error)),
            Verdict::Reconnect => {
                Self::Transient { reason: statement_failed(error).to_string(), reconnect: true }
            }
            Verdict::Again => {
                Self::Transient { reason: statement_failed(error).to_string(), reconnect: false }
            }
        }
    }
}

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Self {
        if error.sqlstate() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            return Self::Handler(hidden());
        }
        match error.database().map(fault) {
            Some(Fault::Weather { reconnect }) => {
                Self::Transient { reason: format!("database: {error}"), reconnect }
            }
            Some(Fault::Projection) => Self::Projection(error),
            Some(Fault::Event) | None => Self::Handler(error),
        }
    }
}

/// A value that has no binary form.
pub(crate) fn encode_failed(source: crate::encoded::EncodeError) -> Failure {
    Failure::Fatal(Error::Database { source, advice: Some("this is a bug") })
}

/// What the database says of a transaction in which something failed before.
fn hidden() -> HandlerError {
    HandlerError::other("a statement of the handler failed, and the handler reported success")
}
