//! What a consumer does with fresh events.

use std::future::Future;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::delivery::Delivery;
use crate::error::Chain;
use crate::projection::ProjectionError;
use crate::transaction::Transaction;

/// Maintains a projection.
///
/// The effects of `apply` and the inbox rows of its events commit together: each event has its
/// effect exactly once, whatever dies. That holds for what is done through `tx`. Anything else
/// (a mail, another database) may happen more often than once.
///
/// ```
/// # use outflow_inbox::{Delivery, Handler, HandlerError, Transaction};
/// struct Count;
///
/// impl Handler for Count {
///     async fn apply(&mut self, tx: &Transaction<'_>, events: &[Delivery]) -> Result<(), HandlerError> {
///         let fresh = i64::try_from(events.len()).map_err(HandlerError::other)?;
///         tx.execute("UPDATE total SET events = events + $1", &[&fresh]).await?;
///         Ok(())
///     }
/// }
/// ```
pub trait Handler: Send + 'static {
    /// Applies `events` inside `tx`, which already holds their inbox rows.
    ///
    /// `events` are all fresh, none twice, in the order of their streams; entries of one aggregate
    /// stand in commit order.
    ///
    /// Leave BEGIN, COMMIT and ROLLBACK to the caller. A COMMIT fails, and takes everything back; a
    /// ROLLBACK ends the consumer ([`Error::TransactionEnded`](crate::Error::TransactionEnded)), for what is done
    /// behind it is done without inbox rows. A part of the work is taken back by a savepoint of any name that does not
    /// begin with `outflow_`. A cursor does not outlive the call.
    ///
    /// # Errors
    /// The transaction is rolled back and the same events come again: at once for what the error
    /// shows to be transient (a lost connection, a deadlock), otherwise after a growing delay, for
    /// as long as it takes. No event is skipped or acknowledged.
    ///
    /// # Cancel safety
    /// The future is dropped when a stop exceeds its deadline or a transaction its time limit; the
    /// transaction is then rolled back.
    fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Whether [`Handler::apply`] leaves the transaction as it is, come what may: neither ended nor begun anew. Where
    /// events of a batch fail, the others are then tried without waiting for an answer between two calls.
    ///
    /// The inbox relies on it: what a handler that says so does behind a ROLLBACK of its own can stand without
    /// inbox rows.
    fn keeps_transaction(&self) -> bool {
        false
    }

    /// The events that [`Handler::apply`] will most likely be given next, while the database is busy
    /// with their inbox rows: time to prepare without holding anything up. It may be given others
    /// (without those that turn out to be duplicates), or nothing.
    fn expect(&mut self, events: &[Delivery]) {
        let _ = events;
    }

    /// A new connection is there: prepare statements for it. Called before the first `apply` on it.
    ///
    /// # Errors
    /// Transient ones are waited out, any other ends the consumer: a projection that cannot be
    /// prepared cannot be applied.
    fn connected(
        &mut self,
        client: &Client,
    ) -> impl Future<Output = Result<(), ProjectionError>> + Send {
        let _ = client;
        async { Ok(()) }
    }
}

/// Why a handler could not apply a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The database refused a statement.
    #[error("{}", Chain::new(.0))]
    Database(#[from] tokio_postgres::Error),
    /// The database refused a statement of a projection file.
    #[error(transparent)]
    Projection(#[from] ProjectionError),
    /// The handler's own reason.
    #[error("{}", Chain(.0.as_ref()))]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl HandlerError {
    /// The handler's own reason: an error, or just a text.
    pub fn other(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(reason.into())
    }

    /// The database's error, where there is one.
    #[must_use]
    pub fn database(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Self::Database(error) => Some(error),
            Self::Projection(error) => error.database(),
            Self::Other(error) => error.downcast_ref(),
        }
    }

    /// The SQLSTATE, where there is one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        self.database().and_then(tokio_postgres::Error::code)
    }
}
