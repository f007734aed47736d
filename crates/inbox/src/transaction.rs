//! The transaction of a batch: it stays in the inbox's hands while a handler has its connection.
//!
//! The inbox rows of the whole batch stand before a handler runs. Were it to send COMMIT, those of events that it
//! has not applied would stand for good, and the events would be lost as duplicates. So the transaction holds a
//! cursor WITH HOLD, which a COMMIT has to run to its end (PostgreSQL documentation, DECLARE), and whose query
//! fails: until the inbox has closed it, a COMMIT commits nothing. It needs no table, no right and no round trip: both
//! statements are sent together with others.
//!
//! ROLLBACK cannot be refused, and what follows it is no longer the inbox's transaction. That is found
//! out, and ends the consumer: doing it again may not repeat what the handler did outside.

use std::ops::Deref;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::apply::count;
use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::handler::HandlerError;
use crate::statements::{Reached, Statements};

// whatever the role's or the database's defaults are; and from here on a COMMIT fails
const BEGIN: &str = include_str!("sql/transaction.sql");
// by name it would fail where the handler has closed all cursors
const OPEN: &str = "CLOSE ALL";
const CURRENT: &str = "SELECT pg_current_xact_id_if_assigned()::text";

/// The transaction in which a handler has its effects: everything that a [`Client`] can do is done in it.
/// It is begun and ended by the inbox.
///
/// It is not [`tokio_postgres::Transaction`], which can be had only after the server has answered to the
/// beginning: here the inbox rows are on their way by then. On a machine whose processors are busy that
/// answer costs a tenth of the throughput (docs/adr/0015).
#[derive(Debug)]
pub struct Transaction<'a> {
    client: &'a Client,
}

impl Deref for Transaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl<'a> Transaction<'a> {
    /// The one that [`Transaction::begin`] begins.
    pub(crate) fn of(client: &'a Client) -> Self {
        Self { client }
    }

    /// Begins it, with the cursor that makes a COMMIT fail. What is sent before the answer is there must have
    /// no effect without that cursor.
    pub(crate) async fn begin(&self) -> Result<(), Error> {
        self.batch_execute(BEGIN).await
    }

    /// Writes the position, if this still is the transaction `id` (where it has written anything) and the streams
    /// are in this worker's hands, and lets the COMMIT pass. `given` is what the handler had.
    pub(crate) async fn open(
        &self,
        statements: &Statements,
        consumer_id: &str,
        reached: &[Reached<'_>],
        (id, given): (Option<&str>, &[Delivery]),
    ) -> Result<(), Failure> {
        let (opened, written) = tokio::join!(
            self.batch_execute(OPEN),
            statements.position(self, consumer_id, reached, id),
        );
        opened?;
        if written? == count(reached.len()) {
            return Ok(());
        }
        let ended = match id {
            Some(id) => self.has_ended(id).await?,
            None => false,
        };
        Err(if ended { Failure::ended_by_handler(given) } else { Failure::Taken })
    }

    /// Commits what was opened.
    pub(crate) async fn commit(&self) -> Result<(), Error> {
        self.batch_execute("COMMIT").await
    }

    /// Takes everything back.
    pub(crate) async fn rollback(&self) -> Result<(), Error> {
        self.batch_execute("ROLLBACK").await
    }

    /// What it means that the handler failed: it may have ended the transaction before.
    pub(crate) async fn failure(
        &self,
        (id, given): (&str, &[Delivery]),
        error: HandlerError,
    ) -> Failure {
        match self.has_ended(id).await {
            Ok(true) => Failure::ended_by_handler(given),
            Ok(false) | Err(_) => error.into(),
        }
    }

    async fn has_ended(&self, id: &str) -> Result<bool, Error> {
        let current: Option<String> = self.query_one(CURRENT, &[]).await?.try_get(0)?;
        Ok(current.as_deref() != Some(id))
    }
}

/// Whether a savepoint is gone, and the transaction with it.
pub(crate) fn is_gone(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::S_E_INVALID_SPECIFICATION, SqlState::NO_ACTIVE_SQL_TRANSACTION].contains(code)
    })
}
