//! Keeps the transaction in the inbox's hands while a handler has its connection.
//!
//! The inbox rows of the whole batch stand before a handler runs. Were it to send COMMIT, those of events that it
//! has not applied would stand for good, and the events would be lost as duplicates. So the transaction holds a
//! cursor WITH HOLD, which a COMMIT has to run to its end (PostgreSQL documentation, DECLARE), and whose query
//! fails: until the inbox has closed it, a COMMIT commits nothing. It needs no table, no right and no round trip: both
//! statements are sent together with others.
//!
//! ROLLBACK cannot be refused, and what follows it is no longer the inbox's transaction. That is found
//! out, and ends the consumer: doing it again may not repeat what the handler did outside.

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;

use crate::apply::count;
use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::handler::HandlerError;
use crate::statements::{Reached, Statements};

const CLOSE: &str = "DECLARE outflow_commit NO SCROLL CURSOR WITH HOLD FOR \
                     SELECT pg_catalog.to_char(pg_catalog.now(), '\"leave COMMIT to the inbox\"')::int4";
// by name it would fail where the handler has closed all cursors
const OPEN: &str = "CLOSE ALL";
const CURRENT: &str = "SELECT pg_current_xact_id_if_assigned()::text";

/// From here on a COMMIT fails.
pub(crate) async fn close(tx: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    tx.batch_execute(CLOSE).await
}

/// Writes the position, if this still is the transaction `id` (where it has written anything) and the streams are
/// in this worker's hands, and lets the COMMIT pass. `given` is what the handler had.
pub(crate) async fn open(
    tx: &Transaction<'_>,
    statements: &Statements,
    consumer_id: &str,
    reached: &[Reached<'_>],
    (id, given): (Option<&str>, &[Delivery]),
) -> Result<(), Failure> {
    let (opened, written) = tokio::join!(
        tx.batch_execute(OPEN),
        statements.position(tx.client(), consumer_id, reached, id),
    );
    opened?;
    if written? == count(reached.len()) {
        return Ok(());
    }
    let ended = match id {
        Some(id) => has_ended(tx, id).await?,
        None => false,
    };
    Err(if ended { Failure::ended_by_handler(given) } else { Failure::Taken })
}

/// What it means that the handler failed: it may have ended the transaction before.
pub(crate) async fn failure(
    tx: &Transaction<'_>,
    (id, given): (&str, &[Delivery]),
    error: HandlerError,
) -> Failure {
    match has_ended(tx, id).await {
        Ok(true) => Failure::ended_by_handler(given),
        Ok(false) | Err(_) => error.into(),
    }
}

/// Whether a savepoint is gone, and the transaction with it.
pub(crate) fn is_gone(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::S_E_INVALID_SPECIFICATION, SqlState::NO_ACTIVE_SQL_TRANSACTION].contains(code)
    })
}

async fn has_ended(tx: &Transaction<'_>, id: &str) -> Result<bool, tokio_postgres::Error> {
    let current: Option<String> = tx.query_one(CURRENT, &[]).await?.try_get(0)?;
    Ok(current.as_deref() != Some(id))
}
