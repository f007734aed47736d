//! Applies files to a database: each in a transaction of its own, recorded in that transaction.

use std::collections::BTreeMap;

use anyhow::Context;
use outflow_relay::config::TableName;
use serde::Serialize;
use tokio_postgres::{Client, GenericClient};

use super::migrations::{Migration, Side};
use crate::database::quote;

/// Concurrent inits wait for each other at this advisory lock ("outflow" in ASCII).
const LOCK: i64 = 0x006f_7574_666c_6f77;

/// Waiting longer than this for a lock would make the application's statements queue behind us.
const LIMITS: &str = "SET LOCAL lock_timeout = '10s'";

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Done now.
    Applied,
    /// Was there before.
    Present,
    /// Was applied with another text, and is left as it is.
    Differs,
    /// Would be done, were this not a dry run.
    Pending,
}

/// One file, or the publication of an outbox that has another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// `0002 outbox`.
    pub(super) name: String,
    /// What became of it.
    pub(super) outcome: Outcome,
}

/// Files that were applied before, with their checksums.
pub(super) type Recorded = BTreeMap<(String, i32), String>;

/// Reads what is recorded; nothing, where there is no record.
pub(super) async fn recorded(client: &impl GenericClient) -> anyhow::Result<Recorded> {
    // by catalog: to_regclass fails where the schema may not be used
    let table = client
        .query_opt(
            "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'outflow' AND c.relname = 'migration'",
            &[],
        )
        .await?;
    let Some(table) = table else { return Ok(Recorded::new()) };
    if !table.try_get::<_, bool>(0)? {
        return Err(crate::failure::Refused(
            "the record of applied files may not be read; as its owner run: \
             GRANT USAGE ON SCHEMA outflow TO CURRENT_USER; GRANT SELECT, INSERT ON outflow.migration TO \
             <the role of this connection>;"
                .to_owned(),
        )
        .into());
    }
    let rows = client.query("SELECT side, version, checksum FROM outflow.migration", &[]).await?;
    rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?))).collect()
}

/// What `migration` needs in a database with this record.
pub(super) fn outcome(migration: &Migration, recorded: &Recorded) -> Outcome {
    match recorded.get(&(migration.side.to_string(), migration.version)) {
        None => Outcome::Pending,
        Some(checksum) if *checksum == migration.checksum() => Outcome::Present,
        Some(_) => Outcome::Differs,
    }
}

/// Applies one file, unless another init has done so since.
pub(super) async fn apply(client: &mut Client, migration: &Migration) -> anyhow::Result<Step> {
    let what = || format!("{} {}", migration.side, migration.title());
    let transaction = client.transaction().await?;
    transaction.batch_execute(LIMITS).await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    if let (true, Some(schema)) = (migration.side != Side::Producer, Migration::schema()) {
        // every database records what was applied to it
        transaction.batch_execute(schema.sql).await.with_context(what)?;
    }
    let outcome = outcome(migration, &recorded(&transaction).await?);
    if outcome != Outcome::Pending {
        return Ok(Step { name: migration.title(), outcome });
    }
    transaction.batch_execute(migration.sql).await.with_context(what)?;
    transaction
        .execute(
            "INSERT INTO outflow.migration (side, version, name, checksum) VALUES ($1, $2, $3, $4)",
            &[
                &migration.side.to_string(),
                &migration.version,
                &migration.name,
                &migration.checksum(),
            ],
        )
        .await
        .with_context(what)?;
    transaction.commit().await.with_context(what)?;
    Ok(Step { name: migration.title(), outcome: Outcome::Applied })
}

/// The publication of an outbox that is not ours, as sql/producer has it for ours.
pub(super) struct Publication<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// The outbox.
    pub(super) table: &'a TableName,
}

impl Publication<'_> {
    /// Name of the step.
    pub(super) fn title(&self) -> String {
        format!("publication {} for {}", self.name, self.table)
    }

    /// The statements.
    pub(super) fn sql(&self) -> String {
        let schema = quote(&self.table.schema);
        let table = format!("{schema}.{}", quote(&self.table.name));
        format!(
            "CREATE PUBLICATION {} FOR TABLE {table} WITH (publish = 'insert');\n\
             DO $$\nBEGIN\n    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outflow_connector') THEN\n        \
             GRANT USAGE ON SCHEMA {schema} TO outflow_connector;\n        \
             GRANT SELECT ON {table} TO outflow_connector;\n    END IF;\nEND\n$$;\n",
            quote(self.name)
        )
    }

    /// Whether it is there.
    pub(super) async fn exists(&self, client: &impl GenericClient) -> anyhow::Result<bool> {
        let found = client
            .query_opt("SELECT FROM pg_publication WHERE pubname = $1", &[&self.name])
            .await?;
        Ok(found.is_some())
    }

    /// Creates it.
    pub(super) async fn create(&self, client: &mut Client) -> anyhow::Result<Step> {
        let transaction = client.transaction().await?;
        transaction.batch_execute(LIMITS).await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
        let mut outcome = Outcome::Present;
        if !self.exists(&transaction).await? {
            transaction.batch_execute(&self.sql()).await.with_context(|| self.title())?;
            outcome = Outcome::Applied;
        }
        transaction.commit().await.with_context(|| self.title())?;
        Ok(Step { name: self.title(), outcome })
    }
}
