//! Carries out replacements that a person asked for: between two batches, by the task that applies.
//!
//! The handler lives in the worker, so the worker does it: in one transaction the event id of the
//! conflict is bound to the payload that was refused, the row that was there is kept with the conflict,
//! and the handler applies the event. Whoever asked follows the row.
//!
//! Only the worker that reads the refused event's stream does it, under its lease, as it does with every
//! other event of the aggregate: no two of them are ever applied at once. Events of the aggregate that are
//! held back do not hold a replacement back. It takes the place of an event that was applied before
//! them, and it may be what they wait for: a payment fails for as long as its order has the wrong total.

use std::time::{Duration, Instant};

use outflow_event::{Entry, EntryId, Event};
use tokio_postgres::Row;

use crate::applier::Applier;
use crate::database::statement_failed;
use crate::delivery::{Delivery, for_people};
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{Handler, HandlerError};
use crate::lease::Held;
use crate::session::Session;
use crate::statements::Reached;
use crate::transaction::Transaction;

const REQUESTED: &str = include_str!("sql/requested.sql");
const FAILED: &str = include_str!("sql/failed.sql");
const BIND: &str = "SELECT outflow.replace_applied($1, $2, $3)";
/// Of two replacements of one event, in two streams, the second waits for the first one's end before it looks.
const ALONE: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended($1::text || ' ' || $2::text, 0))";
/// What holds under an id: an earlier replacement may have taken the place of what was first applied.
const HOLDS: &str =
    "SELECT payload::text, payload_raw FROM outflow.inbox WHERE consumer_id = $1 AND event_id = $2";

/// How often to look for requests.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// Replacements of one round; then the streams have their turn.
const MOST: usize = 20;

/// What became of one request.
enum Replaced {
    /// There was none, or nothing can be done now: it is looked for again.
    Nothing,
    Done(i64),
    /// The handler or the database refuses it; nothing was changed.
    Refused(i64, String),
}

/// What is asked for.
struct Request {
    conflict_id: i64,
    by: String,
    reason: String,
    stream: String,
    /// The refused event; `Err`: somebody changed the row by hand.
    entry: Result<Entry, String>,
    event_id: String,
    transaction_id: String,
}

impl<H: Handler> Applier<H> {
    /// Looks for requests, if it is time, and carries them out.
    pub(crate) async fn replacements(&mut self) -> Result<(), Error> {
        if self.replacements_due > Instant::now() {
            return Ok(());
        }
        self.replacements_due = Instant::now() + LOOK;
        let held = self.shared.leases.begin_round();
        let done = self.replace_in(&held).await;
        self.shared.leases.end_round();
        done
    }

    async fn replace_in(&mut self, held: &[Held]) -> Result<(), Error> {
        if held.is_empty() {
            return Ok(());
        }
        for _ in 0..MOST {
            let (consumer, limit) =
                (&self.shared.config.consumer_id, self.shared.config.apply_timeout);
            let keys: Vec<(&str, i64)> = held
                .iter()
                .filter_map(|(stream, token)| Some((self.shared.key(*stream)?, *token)))
                .collect();
            let Some(session) = self.session.as_mut() else { return Ok(()) };
            let one = replace_one(session, &mut self.handler, consumer, &keys);
            match tokio::time::timeout(limit, one).await {
                Ok(Ok(Replaced::Nothing)) => return Ok(()),
                Ok(Ok(Replaced::Done(conflict_id))) => {
                    tracing::info!(consumer, conflict_id, "conflict settled: replaced");
                    self.shared.board.metrics.replaced.increment(1);
                }
                Ok(Ok(Replaced::Refused(conflict_id, reason))) => tracing::warn!(
                    consumer,
                    conflict_id,
                    "a replacement that was asked for failed, nothing was changed: {reason}"
                ),
                Ok(Err(error)) => {
                    // asked for again at the next look, on whatever connection there is then
                    let error = error.transient()?;
                    tracing::debug!("replacements were not carried out: {error}");
                    self.session = None;
                    return Ok(());
                }
                Err(_) => {
                    tracing::warn!(
                        consumer,
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

/// Carries out the oldest request in the streams `held`, each with the token of its lease.
async fn replace_one<H: Handler>(
    session: &mut Session,
    handler: &mut H,
    consumer_id: &str,
    held: &[(&str, i64)],
) -> Result<Replaced, Error> {
    let streams: Vec<&str> = held.iter().map(|(stream, _)| *stream).collect();
    let Session { client, statements, .. } = session;
    let tx = Transaction::of(client);
    tx.begin().await.map_err(statement_failed)?;
    let found = tx.query_opt(REQUESTED, &[&consumer_id, &streams]).await;
    let Some(row) = found.map_err(statement_failed)? else {
        tx.rollback().await.map_err(statement_failed)?;
        return Ok(Replaced::Nothing);
    };
    let request = Request::read(&row).map_err(statement_failed)?;
    let conflict_id = request.conflict_id;
    let replaced = async {
        let event = carry_out(&tx, handler, consumer_id, &request).await?;
        let stream = request.stream.as_str();
        let token = held.iter().find(|(key, _)| *key == stream).map_or(-1, |(_, token)| *token);
        // nothing is reached that was not before; the row is written all the same, as a check
        let (entry, resume) = (EntryId::ZERO, EntryId::ZERO);
        let at = Reached { stream, entry, resume, token };
        let ours = (Some(request.transaction_id.as_str()), &event[..]);
        tx.open(statements, consumer_id, &[at], ours).await
    };
    let failure = match replaced.await {
        Ok(()) => {
            fail::fail_point!("inbox::replace_before_commit");
            tx.commit().await.err().map(|error| Failure::from(HandlerError::from(error)))
        }
        Err(failure) => {
            tx.rollback().await.map_err(statement_failed)?;
            Some(failure)
        }
    };
    let reason = match failure {
        None => return Ok(Replaced::Done(conflict_id)),
        // nobody's fault: it stays asked for
        Some(Failure::Transient { .. } | Failure::Taken) => return Ok(Replaced::Nothing),
        // asked for once: whoever did is told, and the events of the streams go on
        Some(Failure::Fatal(error @ Error::TransactionEnded { .. })) => error.to_string(),
        Some(Failure::Fatal(error)) => return Err(error),
        Some(Failure::Data(error)) => HandlerError::from(error).to_string(),
        Some(Failure::Handler(error) | Failure::Commit(error) | Failure::Projection(error)) => {
            error.to_string()
        }
    };
    let reason = for_people(&reason);
    client.execute(FAILED, &[&conflict_id, &reason]).await.map_err(statement_failed)?;
    Ok(Replaced::Refused(conflict_id, reason))
}

/// Binds the id to the refused event, and applies that. Returns it.
async fn carry_out<H: Handler>(
    tx: &Transaction<'_>,
    handler: &mut H,
    consumer_id: &str,
    request: &Request,
) -> Result<[Delivery; 1], Failure> {
    let entry = request.entry.clone().map_err(HandlerError::other)?;
    tx.query_one(ALONE, &[&consumer_id, &request.event_id]).await?;
    let holds = tx.query_opt(HOLDS, &[&consumer_id, &request.event_id]).await?;
    let bound = tx.query_one(BIND, &[&request.conflict_id, &request.by, &request.reason]).await?;
    let is_bound: bool = bound.try_get(0)?;
    let Some(holds) = holds.filter(|_| is_bound) else {
        let gone = "the inbox has no row of its event id (any more): nothing can be replaced";
        return Err(HandlerError::other(gone).into());
    };
    let (json, raw): (Option<String>, Option<Vec<u8>>) = (holds.try_get(0)?, holds.try_get(1)?);
    let replaced = json.map(String::into_bytes).or(raw);
    let event = [Delivery::replacement(request.stream.as_str().into(), entry, replaced)];
    match handler.apply(tx, &event).await {
        Ok(()) => Ok(event),
        Err(error) => Err(tx.failure((&request.transaction_id, &event), error).await),
    }
}

impl Request {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (stream, event_id): (String, String) =
            (row.try_get("stream")?, row.try_get("event_id")?);
        Ok(Self {
            conflict_id: row.try_get("conflict_id")?,
            by: row.try_get("requested_by")?,
            reason: row.try_get("reason")?,
            stream,
            entry: entry(row)?,
            event_id,
            transaction_id: row.try_get("transaction_id")?,
        })
    }
}

/// The event that was refused.
fn entry(row: &Row) -> Result<Result<Entry, String>, tokio_postgres::Error> {
    let payload: Option<String> = row.try_get("payload")?;
    let raw: Option<Vec<u8>> = row.try_get("payload_raw")?;
    let position: Option<String> = row.try_get("position")?;
    let id: String = row.try_get("entry_id")?;
    let event = Event {
        event_id: row.try_get("event_id")?,
        aggregate_type: row.try_get("aggregate_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        seq: row.try_get("seq")?,
        payload: payload.map(String::into_bytes).or(raw),
        headers: row.try_get("headers")?,
        created_at: None,
        extra: Vec::new(),
    };
    let position = position.and_then(|position| position.parse().ok());
    let entry = |id| Entry { id, event, position, commit_time: None };
    Ok(id.parse().map(entry).map_err(|error| format!("entry_id `{id}`: {error}")))
}
