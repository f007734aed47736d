//! Plain SQL connections for the commands that look at a database or change it.

use std::error::Error as StdError;

use anyhow::Context;
use outflow_pgoutput::ConnectOptions;
use tokio_postgres::Client;
use tokio_postgres::error::DbError;

/// Connects. Errors name the server, without the password.
pub(crate) async fn connect(options: &ConnectOptions) -> anyhow::Result<Client> {
    let connection = options.connect_sql().await.with_context(|| options.redacted())?;
    // the client reports how its connection ended
    Ok(connection.client)
}

/// What an error says. For an error of PostgreSQL that is its own message, with its detail and hint:
/// tokio-postgres alone would say "db error".
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    let server = error
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(tokio_postgres::Error::as_db_error)
        .or_else(|| error.downcast_ref::<DbError>());
    let Some(server) = server else { return error.to_string() };
    let mut text = server.message().to_owned();
    if let Some(detail) = server.detail() {
        text = format!("{text} ({detail})");
    }
    if let Some(hint) = server.hint() {
        text = format!("{text}; hint: {hint}");
    }
    text
}

/// An identifier in quotes.
pub(crate) fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
