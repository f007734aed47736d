//! Deletes rows that were published long ago, in small transactions.

use std::time::Duration;

use tokio_postgres::Client;
use tracing::debug;

use super::statements::Statements;
use crate::error::Error;
use crate::metrics;

/// Rows of one transaction.
const ROWS: usize = 1000;
/// Time between two looks when there is little to delete.
const PAUSE: Duration = Duration::from_secs(10);

/// Deletes rows that were published longer than `retention` ago, until it is dropped. Several
/// relays may do it at once: each passes over what another one deletes.
///
/// # Errors
/// As for any statement.
///
/// # Cancel safety
/// Dropping the future loses nothing.
pub(crate) async fn run(
    client: &Client,
    statements: &Statements,
    retention: Duration,
) -> Result<(), Error> {
    let sql = statements.clean(retention, ROWS);
    // a fraction of a short retention, so that the table stays close to what was asked for
    let pause = PAUSE.min(retention / 4).max(Duration::from_millis(100));
    loop {
        let deleted =
            client.execute(&sql, &[]).await.map_err(Error::sql("deleting published rows"))?;
        if deleted > 0 {
            metrics::cleaned(deleted);
            debug!(rows = deleted, "deleted published rows");
        }
        if deleted < ROWS as u64 {
            tokio::time::sleep(pause).await;
        }
    }
}
