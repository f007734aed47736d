//! The group of every stream: created where a consumer begins, rebuilt where it stood.

use std::collections::HashMap;

use outflow_broker::Connection;
use outflow_event::EntryId;

use crate::broker;
use crate::config::{ConsumerConfig, Start};
use crate::database::{self, Connect, statement_failed};
use crate::error::Error;

const KNOWN: &str = include_str!("sql/known.sql");

// several workers may begin at once: all of them go by the row of the first one
const BEGIN: &str = include_str!("sql/begin.sql");

/// Where a consumer stands in one stream, by its own database.
#[derive(Debug, Clone, Copy)]
struct Known {
    resume: EntryId,
    /// Something has been applied since the consumer began.
    moved: bool,
}

/// Makes sure that the group exists in every stream, and returns where each may resume: what the
/// database knows, or what this process has `measured` since.
///
/// A group is created at the position stored with the inbox: never at the stream's end, which would
/// skip what came meanwhile, and not at its beginning, which may hold what the inbox has forgotten.
/// Only a consumer without a stored position begins where its configuration says, and stores that
/// first, so that a group lost before the first event is rebuilt there too.
pub(crate) async fn ensure(
    config: &ConsumerConfig,
    connect: &Connect,
    redis: &mut Connection,
    measured: &[EntryId],
    on_rebuilt: impl Fn(&str),
) -> Result<Vec<EntryId>, Error> {
    let known = positions(config, connect, redis).await?;
    let mut resume = Vec::with_capacity(config.streams.len());
    for (stream, measured) in config.streams.iter().zip(measured) {
        let position = known.get(stream).copied();
        let Known { resume: stored, moved } =
            position.unwrap_or(Known { resume: EntryId::ZERO, moved: false });
        let from = stored.max(*measured);
        resume.push(from);
        let created = broker::create_group(redis, stream, &config.consumer_id, from).await;
        if !created.map_err(broker::failed)? {
            continue;
        }
        let group = config.consumer_id.as_str();
        if !moved {
            tracing::info!(group, stream, from = %from, "group created");
            continue;
        }
        on_rebuilt(stream);
        let last = broker::last_generated_id(redis, stream).await.map_err(broker::failed)?;
        tracing::warn!(
            group, stream, from = %from,
            "the group was gone and is rebuilt at the stored position: entries that were pending come \
             again, entries that the stream has lost do not; compare the outbox with the inbox"
        );
        if last != EntryId::ZERO && last < from {
            tracing::warn!(
                group, stream, last = %last, from = %from,
                "the stream ends below the stored position: entries added below it are not read. If its \
                 ids began anew, stop the consumer, correct outflow.position and run XGROUP SETID"
            );
        }
    }
    Ok(resume)
}

async fn positions(
    config: &ConsumerConfig,
    connect: &Connect,
    redis: &mut Connection,
) -> Result<HashMap<String, Known>, Error> {
    let client = connect().await.map_err(database::connect_failed)?;
    database::prepare_session(&client, config.apply_timeout).await?;
    let mut known = select(&client, &config.consumer_id).await?;
    let missing: Vec<&String> =
        config.streams.iter().filter(|stream| !known.contains_key(*stream)).collect();
    if !missing.is_empty() {
        let mut starts = Vec::with_capacity(missing.len());
        for stream in &missing {
            let start = match config.from {
                Start::Beginning => EntryId::ZERO,
                Start::After(id) => id,
                Start::Now => {
                    broker::last_generated_id(redis, stream).await.map_err(broker::failed)?
                }
            };
            starts.push(start.to_string());
        }
        client
            .execute(BEGIN, &[&config.consumer_id, &missing, &starts])
            .await
            .map_err(statement_failed)?;
        known = select(&client, &config.consumer_id).await?;
    }
    Ok(known)
}

async fn select(
    client: &tokio_postgres::Client,
    consumer_id: &str,
) -> Result<HashMap<String, Known>, Error> {
    let rows = client.query(KNOWN, &[&consumer_id]).await.map_err(statement_failed)?;
    let mut known = HashMap::new();
    for row in rows {
        let resume: String = row.try_get("resume_id").map_err(statement_failed)?;
        let resume = resume.parse().map_err(|error: outflow_event::PositionError| {
            let advice = Some("correct resume_id in outflow.position");
            Error::Database { source: error.into(), advice }
        })?;
        let moved = row.try_get("moved").map_err(statement_failed)?;
        let stream = row.try_get("stream").map_err(statement_failed)?;
        known.insert(stream, Known { resume, moved });
    }
    Ok(known)
}
