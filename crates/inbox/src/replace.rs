//! Carries out replacements that a person asked for: between two batches, by the task that applies.
//!
//! The handler lives in the worker, so the worker does it: in one transaction the event id of the
//! conflict is bound to the payload that was refused, the row that was there is kept with the conflict,
//! and the handler applies the event. Whoever asked follows the row.

use std::time::{Duration, Instant};

use outflow_event::{Entry, Event};
use tokio_postgres::Row;

use crate::applier::Applier;
use crate::apply::Session;
use crate::delivery::Delivery;
use crate::error::{Chain, Error};
use crate::failure::Failure;
use crate::handler::{Handler, HandlerError};

const REQUESTED: &str = include_str!("sql/requested.sql");
const FAILED: &str = include_str!("sql/failed.sql");

/// How often to look for requests.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// Replacements of one round; then the streams have their turn.
const MOST: usize = 20;

/// What became of one request.
enum Replaced {
    /// There was none.
    Nothing,
    Done(i64),
    /// The handler or the database refuses it; nothing was changed.
    Refused(i64, String),
}

impl<H: Handler> Applier<H> {
    /// Looks for requests, if it is time, and carries them out.
    pub(crate) async fn replacements(&mut self) -> Result<(), Error> {
        if self.replacements_due > Instant::now() {
            return Ok(());
        }
        self.replacements_due = Instant::now() + LOOK;
        for _ in 0..MOST {
            let consumer_id = self.shared.config.consumer_id.clone();
            let limit = self.shared.config.apply_timeout;
            let (handler, session) = (&mut self.handler, self.session.as_mut());
            let Some(session) = session else { return Ok(()) };
            let one = tokio::time::timeout(limit, replace_one(session, handler, &consumer_id));
            match one.await {
                Ok(Ok(Replaced::Nothing)) => return Ok(()),
                Ok(Ok(Replaced::Done(conflict_id))) => {
                    tracing::info!(
                        consumer = consumer_id,
                        conflict_id,
                        "conflict settled: replaced"
                    );
                    self.shared.board.metrics.replaced.increment(1);
                }
                Ok(Ok(Replaced::Refused(conflict_id, reason))) => tracing::warn!(
                    consumer = consumer_id,
                    conflict_id,
                    "a replacement that was asked for failed, nothing was changed: {reason}"
                ),
                Ok(Err(error)) => {
                    // asked for again at the next look, on whatever connection there is then
                    tracing::debug!("replacements were not carried out: {}", Chain::new(&error));
                    self.session = None;
                    return Ok(());
                }
                Err(_) => {
                    tracing::warn!(
                        consumer = consumer_id,
                        "a replacement was given up after {limit:?}, it is tried again"
                    );
                    self.session = None;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

async fn replace_one<H: Handler>(
    session: &mut Session,
    handler: &mut H,
    consumer_id: &str,
) -> Result<Replaced, tokio_postgres::Error> {
    let tx = session.client.transaction().await?;
    let Some(row) = tx.query_opt(REQUESTED, &[&consumer_id]).await? else {
        return Ok(Replaced::Nothing);
    };
    let conflict_id: i64 = row.try_get("conflict_id")?;
    let refused = match delivery(&row) {
        Ok(delivery) => {
            let (by, reason): (&str, &str) = (row.try_get("requested_by")?, row.try_get("reason")?);
            let bound = tx
                .query_one(
                    "SELECT outflow.replace_applied($1, $2, $3)",
                    &[&conflict_id, &by, &reason],
                )
                .await?;
            if bound.try_get(0)? {
                handler.apply(&tx, &[delivery]).await.err()
            } else {
                let gone =
                    "the inbox has no row of its event id (any more): nothing can be replaced";
                Some(HandlerError::other(gone))
            }
        }
        Err(reason) => Some(HandlerError::other(reason)),
    };
    let refused = match refused {
        None => {
            fail::fail_point!("inbox::replace_before_commit");
            tx.commit().await.map_err(HandlerError::from).err()
        }
        Some(error) => {
            tx.rollback().await?;
            Some(error)
        }
    };
    let Some(error) = refused else { return Ok(Replaced::Done(conflict_id)) };
    match Failure::from(error) {
        Failure::Handler(error) | Failure::Commit(error) | Failure::Projection(error) => {
            let reason = error.to_string();
            session.client.execute(FAILED, &[&conflict_id, &reason]).await?;
            Ok(Replaced::Refused(conflict_id, reason))
        }
        // nobody's fault: it stays asked for
        Failure::Transient { .. } | Failure::Data(_) | Failure::Taken | Failure::Fatal(_) => {
            Ok(Replaced::Nothing)
        }
    }
}

/// The event that was refused, as the handler is given it.
fn delivery(row: &Row) -> Result<Delivery, String> {
    let text = |error: tokio_postgres::Error| error.to_string();
    let payload: Option<String> = row.try_get("payload").map_err(text)?;
    let raw: Option<Vec<u8>> = row.try_get("payload_raw").map_err(text)?;
    let applied: Option<String> = row.try_get("applied_payload").map_err(text)?;
    let applied_raw: Option<Vec<u8>> = row.try_get("applied_payload_raw").map_err(text)?;
    let id: String = row.try_get("entry_id").map_err(text)?;
    let position: Option<String> = row.try_get("position").map_err(text)?;
    let stream: String = row.try_get("stream").map_err(text)?;
    let event = Event {
        event_id: row.try_get("event_id").map_err(text)?,
        aggregate_type: row.try_get("aggregate_type").map_err(text)?,
        aggregate_id: row.try_get("aggregate_id").map_err(text)?,
        event_type: row.try_get("event_type").map_err(text)?,
        seq: row.try_get("seq").map_err(text)?,
        payload: payload.map(String::into_bytes).or(raw),
        headers: row.try_get("headers").map_err(text)?,
        created_at: None,
        extra: Vec::new(),
    };
    let entry = Entry {
        id: id.parse().map_err(|error: outflow_event::PositionError| error.to_string())?,
        event,
        position: position.and_then(|position| position.parse().ok()),
        commit_time: None,
    };
    let replaced = applied.map(String::into_bytes).or(applied_raw);
    Ok(Delivery::replacement(stream.into(), entry, replaced))
}
