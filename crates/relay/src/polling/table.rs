//! Looks whether the outbox has what polling needs, and says what to run where it has not.

use tokio_postgres::Client;

use super::config::{PollingConfig, WakeUp};
use super::statements::{SESSION, Statements};
use crate::config::{ConnectorConfig, SourceConfig};
use crate::error::Error;
use crate::outbox::RowMap;
use crate::snapshot::order;
use crate::snapshot::{identifier, pin_session, qualified};

const COLUMNS: &str = "\
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, NULL), a.attgenerated <> '' \
FROM pg_catalog.pg_attribute a \
WHERE a.attrelid = pg_catalog.to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped \
ORDER BY a.attnum";

const TRIGGER: &str = "\
SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid \
WHERE t.tgrelid = pg_catalog.to_regclass($1::text) AND t.tgenabled <> 'D' \
AND p.prosrc LIKE '%outflow_outbox%')";

/// Prepares the session and makes the statements for the table.
///
/// # Errors
/// [`Error::Refused`] with the statements to run, when table, columns, order, privileges or the
/// trigger are missing. Otherwise as for any statement.
pub(crate) async fn inspect(
    client: &Client,
    config: &ConnectorConfig,
    polling: &PollingConfig,
) -> Result<Statements, Error> {
    let source = &config.source;
    pin_session(client).await?;
    client.batch_execute(SESSION).await.map_err(Error::sql("preparing the connection"))?;
    let columns = event_columns(client, source, polling).await?;
    RowMap::new(&source.columns, columns.iter().map(String::as_str), source.max_payload)
        .map_err(|missing| Error::Refused(missing.to_string()))?;
    let order = order::choose(client, source).await?;
    if !order.by_insertion {
        return Err(Error::Refused(format!(
            "nothing in {} tells the order in which rows were inserted, so polling could not keep \
             the order within an aggregate: name a column such as an identity or a creation time \
             in source.order_by",
            source.table
        )));
    }
    privileges(client, source, polling).await?;
    if polling.wake_up == WakeUp::Notify {
        trigger(client, source).await?;
    }
    Ok(Statements::new(source, polling, columns, &order))
}

/// The columns that become an event: all but the relay's own and generated ones, as in the log.
async fn event_columns(
    client: &Client,
    source: &SourceConfig,
    polling: &PollingConfig,
) -> Result<Vec<String>, Error> {
    let rows = client
        .query(COLUMNS, &[&qualified(&source.table)])
        .await
        .map_err(Error::sql("reading the columns of the outbox"))?;
    if rows.is_empty() {
        return Err(Error::Refused(format!(
            "there is no table {}: run `outflow init --polling`, or name your outbox in source.table",
            source.table
        )));
    }
    let present: Vec<(String, String, bool)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let own = polling.columns.with_types();
    for (name, wanted) in own {
        let Some((_, found, _)) = present.iter().find(|(column, ..)| column == name) else {
            return Err(Error::Refused(columns_missing(source, polling)));
        };
        let fits = match wanted {
            "text" => matches!(found.as_str(), "text" | "character varying"),
            _ => found == "timestamp with time zone",
        };
        if !fits {
            return Err(Error::Refused(format!(
                "column `{name}` of {} is of type {found}, and polling needs {wanted}: change it, \
                 or name another column under [polling.columns]",
                source.table
            )));
        }
    }
    let is_event = |(name, _, generated): &(String, String, bool)| {
        !generated && !own.iter().any(|(own, _)| own == name)
    };
    Ok(present.into_iter().filter(is_event).map(|(name, ..)| name).collect())
}

/// What to run on an outbox that has never been polled.
fn columns_missing(source: &SourceConfig, polling: &PollingConfig) -> String {
    if source.table.to_string() == "outflow.outbox" {
        return "outflow.outbox has no columns for claims: run `outflow init --polling`".to_owned();
    }
    let (table, columns) = (qualified(&source.table), &polling.columns);
    let add: Vec<String> = columns
        .with_types()
        .iter()
        .map(|(name, kind)| format!("ADD COLUMN IF NOT EXISTS {} {kind}", identifier(name)))
        .collect();
    let (published_at, claimed_until) =
        (identifier(&columns.published_at), identifier(&columns.claimed_until));
    let order = if source.order_by.is_empty() {
        "<the ordering columns>".to_owned()
    } else {
        source.order_by.iter().map(|name| identifier(name)).collect::<Vec<_>>().join(", ")
    };
    format!(
        "{} has no columns for claims: run ALTER TABLE {table} {}; CREATE INDEX CONCURRENTLY ON \
         {table} ({order}) WHERE {published_at} IS NULL; CREATE INDEX CONCURRENTLY ON {table} \
         ({claimed_until}) WHERE {published_at} IS NULL AND {claimed_until} IS NOT NULL; CREATE \
         INDEX CONCURRENTLY ON {table} ({published_at}) WHERE {published_at} IS NOT NULL. Rows \
         that were published by something else need a {published_at} before the relay starts",
        source.table,
        add.join(", "),
    )
}

async fn privileges(
    client: &Client,
    source: &SourceConfig,
    polling: &PollingConfig,
) -> Result<(), Error> {
    let table = qualified(&source.table);
    let row = client
        .query_one(
            "SELECT pg_catalog.has_table_privilege($1::text, 'SELECT'), \
               (SELECT bool_and(pg_catalog.has_column_privilege($1::text, name, 'UPDATE')) \
                FROM pg_catalog.unnest($2::text[]) AS name), \
               pg_catalog.has_table_privilege($1::text, 'DELETE'), current_user::text",
            &[&table, &polling.columns.with_types().map(|(name, _)| name.to_owned()).to_vec()],
        )
        .await
        .map_err(Error::sql("looking up privileges on the outbox"))?;
    let delete_is_needed = polling.retention.is_some();
    let (select, update, delete, user) = (
        row.get::<_, bool>(0),
        row.get::<_, Option<bool>>(1).unwrap_or(false),
        row.get::<_, bool>(2) || !delete_is_needed,
        row.get::<_, String>(3),
    );
    if select && update && delete {
        return Ok(());
    }
    let columns =
        polling.columns.with_types().map(|(name, _)| identifier(name)).to_vec().join(", ");
    let delete = if delete_is_needed { ", DELETE" } else { "" };
    Err(Error::Refused(format!(
        "role {user} may not claim and mark rows of {}: run GRANT SELECT, UPDATE \
         ({columns}){delete} ON {table} TO {}",
        source.table,
        identifier(&user)
    )))
}

async fn trigger(client: &Client, source: &SourceConfig) -> Result<(), Error> {
    let table = qualified(&source.table);
    let row = client
        .query_one(TRIGGER, &[&table])
        .await
        .map_err(Error::sql("looking for the trigger that notifies"))?;
    if row.get(0) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "polling.wake_up is \"notify\", and no trigger on {} notifies: run CREATE TRIGGER \
         wake_relay AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION \
         outflow.wake_relay() (the function comes with `outflow init --polling`), or set \
         polling.wake_up = \"interval\"",
        source.table
    )))
}
