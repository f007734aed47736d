//! The consumer's database: connections, and what its errors mean.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::error::{Error, Retry};

/// Why a connection could not be made.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// Makes a connection to the consumer's database.
///
/// The one who supplies it decides about addresses, TLS and passwords, and drives the connection's
/// I/O (usually by spawning the `tokio_postgres::Connection`). It is called again after every loss.
pub type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<Client, ConnectError>> + Send + Sync>;

/// A [`Connect`] for a connection string, without TLS.
///
/// # Errors
/// The returned function reports a bad string as well as a refused connection.
#[must_use]
pub fn connect_no_tls(config: &str) -> Connect {
    let config = config.to_owned();
    Arc::new(move || {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) =
                tokio_postgres::connect(&config, tokio_postgres::NoTls).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    // the client's next call reports it where it matters
                    tracing::debug!("connection to the consumer's database ended: {error}");
                }
            });
            Ok(client)
        })
    })
}

/// What an error of the database says about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The connection is gone or cannot write: get another one.
    Reconnect,
    /// The same transaction can succeed.
    Again,
    /// A value was refused: the event's fault, or the projection's.
    Data,
    /// Nothing changes until a person acts.
    Fatal(&'static str),
    /// The statement is at fault.
    Statement,
}

/// Reads the SQLSTATE, never the message: messages are translated (`lc_messages`).
pub(crate) fn verdict(error: &tokio_postgres::Error) -> Verdict {
    let Some(state) = error.code() else {
        // no reply at all: the network, or a server that died
        return Verdict::Reconnect;
    };
    match *state {
        // a standby, or a primary that became one
        SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::DATABASE_DROPPED
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => Verdict::Reconnect,
        SqlState::QUERY_CANCELED
        | SqlState::LOCK_NOT_AVAILABLE
        | SqlState::OBJECT_IN_USE
        | SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => Verdict::Again,
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            Verdict::Fatal(
                "create the tables of the inbox: run the files of sql/consumer in this database",
            )
        }
        SqlState::INSUFFICIENT_PRIVILEGE => Verdict::Fatal(
            "grant outflow_consumer to the worker's role (sql/consumer/0002_roles.sql)",
        ),
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            Verdict::Fatal("check user, password and pg_hba.conf")
        }
        SqlState::INVALID_CATALOG_NAME => {
            Verdict::Fatal("create the database, or name another one")
        }
        _ => match state.code().get(..2) {
            Some("08") => Verdict::Reconnect,
            // rollbacks (serialization, deadlock), exhausted resources, the server's disk
            Some("40" | "53" | "58") => Verdict::Again,
            Some("22" | "54") => Verdict::Data,
            _ => Verdict::Statement,
        },
    }
}

/// Whose fault it is that a handler's statement failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody's; with `reconnect` on another connection.
    Weather {
        /// Whether this connection is of no use any more.
        reconnect: bool,
    },
    /// The projection's or its role's: no event can succeed until a person acts.
    Projection,
    /// The event's, as far as anybody can tell.
    Event,
}

/// Reads whose fault an error of a handler's statement is.
pub(crate) fn fault(error: &tokio_postgres::Error) -> Fault {
    match verdict(error) {
        Verdict::Reconnect => return Fault::Weather { reconnect: true },
        Verdict::Again => return Fault::Weather { reconnect: false },
        Verdict::Data | Verdict::Fatal(_) | Verdict::Statement => {}
    }
    match error.code().and_then(|state| state.code().get(..2)) {
        // what does not exist or is not allowed; transactions that were tampered with; the server's own
        // state: not one of these depends on an event's content
        Some("0A" | "25" | "28" | "2D" | "3B" | "3D" | "3F" | "42" | "F0" | "XX") => {
            Fault::Projection
        }
        _ => Fault::Event,
    }
}

impl Verdict {
    pub(crate) fn advice(self) -> Option<&'static str> {
        match self {
            Self::Fatal(advice) => Some(advice),
            Self::Reconnect | Self::Again | Self::Data | Self::Statement => None,
        }
    }
}

/// The error of a failed connection attempt.
pub(crate) fn connect_failed(source: ConnectError) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(source.as_ref());
    let mut advice = None;
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            advice = verdict(error).advice();
            break;
        }
        cause = error.source();
    }
    Error::Database { source, advice }
}

/// The error of one of the inbox's own statements.
pub(crate) fn statement_failed(source: tokio_postgres::Error) -> Error {
    let advice = match verdict(&source) {
        Verdict::Statement => Some(
            "the tables of the inbox are not as this version expects: run the files of sql/consumer",
        ),
        other => other.advice(),
    };
    Error::Database { source: source.into(), advice }
}

/// Makes the session's settings safe, whatever the role's or the database's defaults are.
///
/// - A REPEATABLE READ transaction fails where a READ COMMITTED one waits and then sees that another
///   worker has applied the event.
/// - `synchronous_commit = off` would let an acknowledged event vanish with its inbox row when the
///   server crashes.
/// - Without the two timeouts the server keeps the transaction of a worker that died without a word,
///   and whoever claims its entries waits for that transaction.
pub(crate) async fn prepare_session(
    client: &Client,
    apply_timeout: std::time::Duration,
) -> Result<(), Error> {
    client
        .batch_execute(
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
             SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'",
        )
        .await
        .map_err(statement_failed)?;
    let timeouts = format!(
        "SELECT set_config(name, value, false) FROM pg_catalog.pg_settings \
         JOIN (VALUES ('client_connection_check_interval', '10s'), \
                      ('idle_in_transaction_session_timeout', '{}ms')) AS safe (name, value) \
         USING (name) WHERE setting = '0'",
        i32::try_from(apply_timeout.as_millis()).unwrap_or(i32::MAX)
    );
    match client.batch_execute(&timeouts).await {
        Err(error) if error.as_db_error().is_none() => Err(statement_failed(error)),
        Err(error) => {
            // an old server on a platform without it: the timeouts are a help, not a need
            tracing::debug!(
                "the server keeps its own timeouts: {}",
                crate::error::Chain::new(&error)
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Names the session after its process, so that another worker can end what a stopped one has begun
/// (`sql/evict.sql`).
pub(crate) async fn name_session(client: &Client, instance: &str) -> Result<(), Error> {
    let name = format!("outflow {instance}");
    let set = client.execute("SELECT set_config('application_name', $1, false)", &[&name]).await;
    set.map(drop).map_err(statement_failed)
}

/// Ends what a session of process `instance` has begun. Returns whether there was anything.
pub(crate) async fn end_transaction(client: &Client, instance: &str) -> Result<bool, Error> {
    const SUPERSEDE: &str = include_str!("sql/supersede.sql");
    let rows = client.query(SUPERSEDE, &[&instance]).await.map_err(statement_failed)?;
    let mut ended = false;
    for row in rows {
        ended |= row.try_get::<_, bool>("ended").map_err(statement_failed)?;
    }
    Ok(ended)
}

impl Error {
    /// Splits what can be waited out from what cannot.
    pub(crate) fn transient(self) -> Result<Self, Self> {
        match self.retry() {
            Retry::Transient => Ok(self),
            Retry::Fatal => Err(self),
        }
    }
}
