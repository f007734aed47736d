//! The consumer's database: inbox, conflicts, dead letters.

use serde::Serialize;

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
    /// How far it has come in each stream.
    pub(super) positions: Vec<Position>,
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
