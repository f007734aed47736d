//! One batch, one transaction.

use std::collections::HashSet;

use outflow_event::EntryId;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::database::{self, Verdict, statement_failed, verdict};
use crate::delivery::Batch;
use crate::error::Error;
use crate::handler::{Handler, HandlerError};
use crate::projection::ProjectionError;
use crate::statements::{Fresh, InboxRows, Judged, Reached, Statements};

/// A connection that is ready to apply.
pub(crate) struct Session {
    pub(crate) client: Client,
    statements: Statements,
}

/// What a committed batch did.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) applied: u64,
    pub(crate) duplicates: u64,
    pub(crate) conflicts: Vec<Judged>,
    pub(crate) malformed: u64,
}

/// Why a batch was rolled back.
pub(crate) enum Failure {
    /// Nobody's fault; with `reconnect` on another connection.
    Transient { reason: String, reconnect: bool },
    /// The server refused a value: perhaps a payload that `jsonb` cannot hold after all.
    Data(tokio_postgres::Error),
    /// The handler could not apply the events.
    Handler(HandlerError),
    /// Nothing changes until a person acts.
    Fatal(Error),
}

impl From<tokio_postgres::Error> for Failure {
    /// One of the inbox's own statements failed.
    fn from(error: tokio_postgres::Error) -> Self {
        if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            let reason = "a statement of the handler failed, and the handler reported success";
            return Self::Handler(HandlerError::other(reason));
        }
        match verdict(&error) {
            Verdict::Data => Self::Data(error),
            Verdict::Fatal(_) | Verdict::Statement => Self::Fatal(statement_failed(error)),
            Verdict::Reconnect => {
                Self::Transient { reason: statement_failed(error).to_string(), reconnect: true }
            }
            Verdict::Again => {
                Self::Transient { reason: statement_failed(error).to_string(), reconnect: false }
            }
        }
    }
}

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Self {
        match error.database().map(verdict) {
            Some(Verdict::Reconnect) => {
                Self::Transient { reason: format!("database: {error}"), reconnect: true }
            }
            Some(Verdict::Again) => {
                Self::Transient { reason: format!("database: {error}"), reconnect: false }
            }
            Some(Verdict::Data | Verdict::Fatal(_) | Verdict::Statement) | None => {
                Self::Handler(error)
            }
        }
    }
}

impl Session {
    /// Prepares what a fresh connection needs.
    pub(crate) async fn open<H: Handler>(
        client: Client,
        handler: &mut H,
        apply_timeout: std::time::Duration,
    ) -> Result<Self, Error> {
        database::prepare_session(&client, apply_timeout).await?;
        let statements = Statements::prepare(&client).await.map_err(statement_failed)?;
        match handler.connected(&client).await {
            Ok(()) => Ok(Self { client, statements }),
            Err(error) => Err(not_prepared(error)),
        }
    }

    /// Applies `batch` in one transaction: inbox rows, conflicts, dead letters, the projection, and
    /// the position. When it returns `Ok` everything is durable and may be acknowledged.
    ///
    /// On any failure the transaction is rolled back and the batch is as it was.
    pub(crate) async fn apply<H: Handler>(
        &mut self,
        batch: &mut Batch,
        handler: &mut H,
        consumer_id: &str,
        streams: &[std::sync::Arc<str>],
        resume: &[EntryId],
    ) -> Result<Outcome, Failure> {
        let tx = self
            .client
            .build_transaction()
            .isolation_level(IsolationLevel::ReadCommitted)
            .read_only(false)
            .start()
            .await?;
        let mut outcome = Outcome::default();
        // the handler's slice and the insert want other orders than the stream's
        batch.deliveries.sort_unstable_by_key(|delivery| delivery.ordinal);
        let fresh = enter(&tx, &self.statements, consumer_id, batch, handler, &mut outcome).await?;
        fail::fail_point!("inbox::after_insert");
        let mut transaction_id = None;
        if let Some((events, id)) = fresh {
            let events = batch.deliveries.get(..events).unwrap_or_default();
            if !events.is_empty() {
                handler.apply(&tx, events).await?;
                fail::fail_point!("inbox::after_handler");
            }
            outcome.applied = count(events.len());
            transaction_id = Some(id);
        }
        for entry in &batch.malformed {
            let stream = streams.get(entry.stream).map_or("", |stream| stream);
            self.statements.dead_letter(&tx, consumer_id, stream, entry).await?;
        }
        outcome.malformed = count(batch.malformed.len());
        let reached = reached(batch, streams, resume);
        let written = self
            .statements
            .position(tx.client(), consumer_id, &reached, transaction_id.as_deref())
            .await?;
        if written != count(reached.len()) {
            let reason = "the handler ended the transaction by itself: leave COMMIT and ROLLBACK to the inbox";
            return Err(Failure::Handler(HandlerError::other(reason)));
        }
        fail::fail_point!("inbox::before_commit");
        // what the database checks only now (a deferred constraint) is the projection's
        tx.commit().await.map_err(HandlerError::from)?;
        Ok(outcome)
    }

    /// Finds the payloads that this server's `jsonb` refuses, one by one, outside of a transaction.
    /// Returns how many were found.
    pub(crate) async fn check_payloads(&self, batch: &mut Batch) -> Result<usize, Failure> {
        let mut found = 0;
        for delivery in &mut batch.deliveries {
            let Some(text) = delivery.payload_json() else { continue };
            let checked =
                self.client.query_one("SELECT $1::text::jsonb IS NOT NULL", &[&text]).await;
            match checked {
                Ok(_) => {}
                Err(error) if verdict(&error) == Verdict::Data => {
                    tracing::debug!(
                        event_id = delivery.entry.event.event_id,
                        "the server's jsonb refuses the payload: it is compared by its bytes"
                    );
                    delivery.not_jsonb();
                    found += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        batch.deliveries.sort_unstable_by_key(|delivery| delivery.ordinal);
        batch.rows = InboxRows::of(&batch.deliveries).map_err(|source| {
            Failure::Fatal(Error::Database { source, advice: Some("this is a bug") })
        })?;
        Ok(found)
    }

    /// Stores how far the streams are applied, outside of a batch.
    pub(crate) async fn store_resume(
        &self,
        consumer_id: &str,
        reached: &[Reached<'_>],
    ) -> Result<(), tokio_postgres::Error> {
        self.statements.position(&self.client, consumer_id, reached, None).await.map(drop)
    }
}

/// Writes the inbox rows and sorts `batch.deliveries`: first the fresh ones in stream order, then
/// the others. Returns how many are fresh and the transaction's id; `None` without deliveries.
async fn enter<H: Handler>(
    tx: &Transaction<'_>,
    statements: &Statements,
    consumer_id: &str,
    batch: &mut Batch,
    handler: &mut H,
    outcome: &mut Outcome,
) -> Result<Option<(usize, String)>, Failure> {
    if batch.deliveries.is_empty() {
        return Ok(None);
    }
    let insert = statements.insert(tx, consumer_id, &batch.rows);
    let prepare = async {
        // the statement goes out first; while the server works on it, the handler does
        tokio::task::yield_now().await;
        handler.expect(&batch.deliveries);
    };
    let (inserted, ()) = tokio::join!(insert, prepare);
    let (fresh, transaction_id) = inserted?;
    let all = batch.deliveries.len();
    let ordinals = &batch.rows.ordinals;
    let fresh: HashSet<usize> = match fresh {
        Fresh::All if ordinals.len() == all => return Ok(Some((all, transaction_id))),
        Fresh::All => ordinals.iter().copied().collect(),
        Fresh::Only(ids) => {
            let ids: HashSet<&str> = ids.iter().map(String::as_str).collect();
            let inserted = |ordinal: &usize| {
                let delivery = batch.deliveries.get(*ordinal);
                delivery.is_some_and(|d| ids.contains(d.entry.event.event_id.as_str()))
            };
            ordinals.iter().copied().filter(inserted).collect()
        }
    };
    judge(tx, statements, consumer_id, batch, &fresh, outcome).await?;
    batch.deliveries.sort_unstable_by_key(|d| (!fresh.contains(&d.ordinal), d.ordinal));
    Ok(Some((fresh.len(), transaction_id)))
}

/// Tells duplicates from conflicts among the deliveries that are not in `fresh`.
async fn judge(
    tx: &Transaction<'_>,
    statements: &Statements,
    consumer_id: &str,
    batch: &Batch,
    fresh: &HashSet<usize>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let known: Vec<_> = batch.deliveries.iter().filter(|d| !fresh.contains(&d.ordinal)).collect();
    let judged = statements.judge(tx, consumer_id, &known).await?;
    if judged.len() != known.len() {
        // the INSERT met a row that is gone now: a clean-up ran in between
        let reason = "inbox rows disappeared during the transaction".to_owned();
        return Err(Failure::Transient { reason, reconnect: false });
    }
    outcome.conflicts = judged.into_iter().filter(|judgement| !judgement.same).collect();
    outcome.duplicates = count(known.len() - outcome.conflicts.len());
    Ok(())
}

/// The streams of `batch` with the highest entry of each, and where each may resume.
fn reached<'a>(
    batch: &Batch,
    streams: &'a [std::sync::Arc<str>],
    resume: &[EntryId],
) -> Vec<Reached<'a>> {
    let of_stream = |ids: &crate::delivery::StreamIds| {
        Some(Reached {
            stream: streams.get(ids.stream)?,
            entry: *ids.ids.last()?,
            resume: resume.get(ids.stream).copied().unwrap_or_default(),
        })
    };
    batch.ids.iter().filter_map(of_stream).collect()
}

fn not_prepared(error: ProjectionError) -> Error {
    match error.database().map(verdict) {
        Some(Verdict::Reconnect | Verdict::Again) => {
            Error::Database { source: error.into(), advice: None }
        }
        Some(Verdict::Data | Verdict::Fatal(_) | Verdict::Statement) | None => error.into(),
    }
}

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
