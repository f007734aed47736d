//! The group of every stream: created where a consumer begins, rebuilt where it stood.

use std::collections::HashMap;

use outflow_broker::Connection;
use outflow_event::EntryId;

use crate::broker;
use crate::config::ConsumerConfig;
use crate::database::{self, Connect, statement_failed};
use crate::error::Error;
use crate::start::{self, StartNeeded};

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
/// first, so that a group lost before the first event is rebuilt there too. Where the stream holds
/// entries already and the configuration says nothing, that is for a person to decide.
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
        begin(config, &client, redis, &missing).await?;
        known = select(&client, &config.consumer_id).await?;
    }
    Ok(known)
}

/// Stores where the consumer begins in streams that it is new to.
async fn begin(
    config: &ConsumerConfig,
    client: &tokio_postgres::Client,
    redis: &mut Connection,
    missing: &[&String],
) -> Result<(), Error> {
    let group = config.consumer_id.as_str();
    let mut starts = Vec::with_capacity(missing.len());
    let mut undecided = Vec::new();
    for stream in missing {
        let held = start::held(redis, stream, group).await.map_err(broker::failed)?;
        match (held, config.from) {
            (None, _) => starts.push((*stream, EntryId::ZERO, None)),
            (Some(held), None) => undecided.push(held),
            (Some(held), Some(from)) => {
                let after = start::resolve(redis, &held, from).await?;
                starts.push((*stream, after, Some((from, held))));
            }
        }
    }
    if !undecided.is_empty() {
        let needed = StartNeeded { consumer_id: group.to_owned(), streams: undecided };
        return Err(Error::StartNeeded(Box::new(needed)));
    }
    let streams: Vec<&String> = starts.iter().map(|(stream, ..)| *stream).collect();
    let ids: Vec<String> = starts.iter().map(|(_, after, _)| after.to_string()).collect();
    let begun = client.query(BEGIN, &[&group, &streams, &ids]).await.map_err(statement_failed)?;
    let begun: Vec<String> = begun.iter().map(|row| row.get(0)).collect();
    for (stream, after, decided) in starts {
        let Some((from, held)) = decided.filter(|_| begun.contains(stream)) else { continue };
        start::announce(group, from, &held, after);
        if held.has_group {
            adjust(redis, stream, group, after).await.map_err(broker::failed)?;
        }
    }
    Ok(())
}

/// Sets a group that was there before the database knew of the consumer to where the consumer begins:
/// what it has acknowledged was not applied here.
async fn adjust(
    redis: &mut Connection,
    stream: &str,
    group: &str,
    after: EntryId,
) -> redis::RedisResult<()> {
    let Some(progress) = broker::progress(redis, stream, group).await? else { return Ok(()) };
    let (low, high) = (after.min(progress.done), after.max(progress.done));
    if start::page(redis, stream, low, high, 1).await?.is_empty() {
        return Ok(());
    }
    broker::set_group(redis, stream, group, after).await
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
