//! The consumer's database: inbox, conflicts, dead letters.

use std::time::SystemTime;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;

use crate::config::Config;

/// What the consumer's database says.
#[derive(Debug, Serialize)]
pub(super) struct Consumer {
    /// The consumer.
    pub(super) id: String,
    /// Events in its inbox.
    pub(super) applied: i64,
    /// Conflicts that nobody has resolved.
    pub(super) open_conflicts: i64,
    /// Dead letters that nobody has resolved.
    pub(super) open_dead_letters: i64,
    /// Events that are held back, because they or one before them failed.
    pub(super) parked: i64,
    /// The one that has been waiting for the longest time, and why.
    pub(super) oldest_parked: Option<Parked>,
    /// Entries that its streams lost before it had applied them, and that nobody has seen to.
    pub(super) lost_entries: i64,
    /// Where they were, by stream.
    pub(super) lost: Vec<Lost>,
    /// How far it has come in each stream.
    pub(super) positions: Vec<Position>,
}

/// Entries that a stream lost.
#[derive(Debug, Serialize)]
pub(super) struct Lost {
    /// Key of the stream.
    pub(super) stream: String,
    /// How many.
    pub(super) entries: i64,
    /// They stood above this id.
    pub(super) above_id: String,
    /// None of them stood above this one.
    pub(super) up_to_id: String,
    /// When the last of them was noticed.
    pub(super) detected_at: String,
}

/// A stored position.
#[derive(Debug, Serialize)]
pub(super) struct Position {
    /// Key of the stream.
    pub(super) stream: String,
    /// Every entry up to this one was applied or set aside.
    pub(super) resume_id: String,
}

/// An event that is held back.
#[derive(Debug, Serialize)]
pub(super) struct Parked {
    pub(super) event_id: String,
    pub(super) aggregate_type: String,
    pub(super) aggregate_id: String,
    /// `failed`, `suspect`, `gap` or `retry`.
    pub(super) cause: String,
    pub(super) attempts: i32,
    pub(super) error: Option<String>,
}

/// Looks; `None`: no consumer is configured.
pub(super) async fn look(config: &Config) -> Option<Result<Consumer, String>> {
    if config.consumer.url.is_empty() || config.consumer.options.consumer_id.is_empty() {
        return None;
    }
    Some(super::in_time(ask(config)).await)
}

async fn ask(config: &Config) -> anyhow::Result<Consumer> {
    let client = crate::database::connect(&config.consumer_connect()?).await?;
    let id = config.consumer.options.consumer_id.clone();
    let counts = client
        .query_one(
            "SELECT (SELECT count(*) FROM outflow.inbox WHERE consumer_id = $1),
                    (SELECT count(*) FROM outflow.conflict
                     WHERE consumer_id = $1 AND resolved_at IS NULL),
                    (SELECT count(*) FROM outflow.dead_letter
                     WHERE consumer_id = $1 AND resolved_at IS NULL),
                    (SELECT count(*) FROM outflow.parked WHERE consumer_id = $1)",
            &[&id],
        )
        .await?;
    let lost = lost(&client, &id).await?;
    let positions = client
        .query(
            "SELECT stream, resume_id FROM outflow.position WHERE consumer_id = $1 ORDER BY stream",
            &[&id],
        )
        .await?;
    let positions = positions
        .iter()
        .map(|row| Ok(Position { stream: row.try_get(0)?, resume_id: row.try_get(1)? }))
        .collect::<Result<_, tokio_postgres::Error>>()?;
    Ok(Consumer {
        applied: counts.try_get(0)?,
        open_conflicts: counts.try_get(1)?,
        open_dead_letters: counts.try_get(2)?,
        parked: counts.try_get(3)?,
        oldest_parked: oldest_parked(&client, &id).await?,
        lost_entries: lost.iter().map(|lost| lost.entries).sum(),
        lost,
        id,
        positions,
    })
}

async fn oldest_parked(
    client: &tokio_postgres::Client,
    consumer_id: &str,
) -> Result<Option<Parked>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT event_id, aggregate_type, aggregate_id, cause, started, error FROM outflow.parked
             WHERE consumer_id = $1 AND due_at IS NOT NULL ORDER BY parked_at LIMIT 1",
            &[&consumer_id],
        )
        .await?;
    row.map(|row| {
        Ok(Parked {
            event_id: row.try_get(0)?,
            aggregate_type: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            cause: row.try_get(3)?,
            attempts: row.try_get(4)?,
            error: row.try_get(5)?,
        })
    })
    .transpose()
}

async fn lost(client: &Client, id: &str) -> anyhow::Result<Vec<Lost>> {
    let rows = client
        .query(
            "SELECT stream, sum(entries)::bigint,
                    (array_agg(above_id ORDER BY string_to_array(above_id, '-')::numeric[]))[1],
                    (array_agg(up_to_id ORDER BY string_to_array(up_to_id, '-')::numeric[] DESC))[1],
                    max(detected_at)
             FROM outflow.lost_entries WHERE consumer_id = $1 AND settled_at IS NULL
             GROUP BY stream ORDER BY stream",
            &[&id],
        )
        .await
        .context("looking for lost entries (a table is missing? `outflow init` creates it)")?;
    let lost = rows.iter().map(|row| {
        let at: SystemTime = row.try_get(4)?;
        Ok(Lost {
            stream: row.try_get(0)?,
            entries: row.try_get(1)?,
            above_id: row.try_get(2)?,
            up_to_id: row.try_get(3)?,
            detected_at: Timestamp::try_from(at)?.to_string(),
        })
    });
    lost.collect()
}
