//! One batch, one transaction.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outflow_event::EntryId;
use tokio_postgres::Client;

use crate::aside;
use crate::bisect::{self, First};
use crate::config::{FailurePolicy, OnGap};
use crate::delivery::{Batch, Delivery};
use crate::failure::{Failure, encode_failed};
use crate::handler::{Handler, HandlerError};
use crate::lease::Held;
use crate::parking::Aggregate;
use crate::sequence::{self, Gap};
use crate::session::Session;
use crate::statements::{Fresh, InboxRows, Judged, Reached, Statements};
use crate::transaction::Transaction;

/// How a batch is applied.
pub(crate) struct Terms<'a> {
    pub(crate) consumer_id: &'a str,
    pub(crate) streams: &'a [Arc<str>],
    /// Up to where each stream is acknowledged.
    pub(crate) resume: &'a [EntryId],
    /// The leases under which parked events are applied.
    pub(crate) held: &'a [Held],
    pub(crate) policy: FailurePolicy,
    /// Some aggregates may be held back: ask which.
    pub(crate) ask_held: bool,
    pub(crate) care: Care,
}

/// How carefully the handler is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    /// Over all events at once: one that fails fails the batch.
    None,
    /// In slices, so that those which fail are found; with `deferred` the constraints that wait for
    /// the commit are checked for each slice.
    Slices { first: First, deferred: bool },
}

impl Care {
    pub(crate) fn is_deferred(self) -> bool {
        matches!(self, Self::Slices { deferred: true, .. })
    }
}

/// What a committed batch did.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) applied: u64,
    pub(crate) duplicates: u64,
    pub(crate) conflicts: Vec<Judged>,
    pub(crate) malformed: u64,
    /// Events that failed.
    pub(crate) failed: Vec<FailedEvent>,
    /// Events that were parked without being tried.
    pub(crate) parked: u64,
    /// Numbers that are missing.
    pub(crate) gaps: Vec<Gap>,
    /// When the first of them is due.
    pub(crate) due_in: Option<Duration>,
}

/// An event that failed, and what has become of it.
pub(crate) struct FailedEvent {
    pub(crate) ordinal: usize,
    pub(crate) error: String,
    pub(crate) attempts: u32,
    /// It is a dead letter now.
    pub(crate) is_dead: bool,
}

impl Session {
    /// Applies `batch` in one transaction: inbox rows, conflicts, dead letters, the projection, what
    /// is held back, and the position. When it returns `Ok` everything is durable and may be
    /// acknowledged.
    ///
    /// On any failure the transaction is rolled back and the batch is as it was.
    pub(crate) async fn apply<H: Handler>(
        &mut self,
        batch: &mut Batch,
        handler: &mut H,
        terms: &Terms<'_>,
    ) -> Result<Outcome, Failure> {
        if std::mem::replace(&mut self.is_open, true) {
            let reason = "the transaction before was given up".to_owned();
            return Err(Failure::Transient { reason, reconnect: true });
        }
        let tx = Transaction::of(&self.client);
        let outcome = match self.work(&tx, batch, handler, terms).await {
            Ok(outcome) => outcome,
            Err(failure) => {
                // where that fails the connection is gone, and the transaction with it
                self.is_open = tx.rollback().await.is_err();
                return Err(failure);
            }
        };
        fail::fail_point!("inbox::before_commit");
        let committed = tx.commit().await;
        self.is_open = false;
        // what the database checks only now (a deferred constraint) is the projection's
        match committed.map_err(|error| Failure::from(HandlerError::from(error))) {
            Err(Failure::Handler(error)) => Err(Failure::Commit(error)),
            committed => committed.map(|()| outcome),
        }
    }

    /// Everything from the beginning of the transaction to its COMMIT.
    async fn work<H: Handler>(
        &self,
        tx: &Transaction<'_>,
        batch: &mut Batch,
        handler: &mut H,
        terms: &Terms<'_>,
    ) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        // the handler's slice and the insert want other orders than the stream's
        batch.deliveries.sort_unstable_by_key(|delivery| delivery.ordinal);
        // only the inbox rows go out with the beginning: without it they have no effect
        let begins_alone = batch.deliveries.is_empty() || aside::asks(batch, terms);
        if begins_alone {
            tx.begin().await?;
        }
        let live = aside::hold_back(tx, &self.parking, batch, terms).await?;
        let mut transaction_id = None;
        let mut failed = Vec::new();
        let mut parts = Parts { applied: 0, fresh: 0, live };
        let numbered = numbered(batch, live, terms);
        if live > 0 {
            // nothing waits for an answer of its own: the numbers come with the inbox rows'
            let begin = async { if begins_alone { Ok(()) } else { tx.begin().await } };
            let (begun, entered, last) = tokio::join!(
                begin,
                enter(tx, &self.statements, terms, batch, live, handler),
                self.sequence.last(tx, terms.consumer_id, &numbered),
            );
            begun?;
            let (entered, last) = (entered?, last?);
            fail::fail_point!("inbox::after_insert");
            parts.fresh = entered.fresh;
            let mut open = entered.fresh;
            if !numbered.is_empty() {
                let fresh = batch.deliveries.get_mut(..entered.fresh).unwrap_or_default();
                (open, outcome.gaps) =
                    sequence::check(fresh, &batch.parked, last, terms.policy.on_gap);
            }
            let events = batch.deliveries.get_mut(..open).unwrap_or_default();
            (parts.applied, failed) =
                run(tx, handler, events, terms.care, &entered.transaction_id).await?;
            transaction_id = Some(entered.transaction_id);
            fail::fail_point!("inbox::after_handler");
            parts.live =
                judge(tx, &self.statements, terms.consumer_id, batch, parts, &mut outcome).await?;
        }
        outcome.applied = count(parts.applied);
        if let Some(id) = transaction_id.as_deref().filter(|_| !numbered.is_empty()) {
            let applied = batch.deliveries.get(..parts.applied).unwrap_or_default();
            self.sequence.advance(tx, terms.consumer_id, (id, applied)).await?;
        }
        let aside =
            aside::Aside { tx, parking: &self.parking, sequence: &self.sequence, batch, terms };
        aside.set(parts, failed, &mut outcome).await?;
        for entry in &batch.malformed {
            let stream = terms.streams.get(entry.stream).map_or("", |stream| stream);
            self.statements.dead_letter(tx, terms.consumer_id, stream, entry).await?;
        }
        outcome.malformed = count(batch.malformed.len());
        let reached = reached(batch, terms);
        let given = batch.deliveries.get(..parts.fresh).unwrap_or_default();
        let ours = (transaction_id.as_deref(), given);
        tx.open(&self.statements, terms.consumer_id, &reached, ours).await?;
        Ok(outcome)
    }
}

/// Where the parts of `Batch::deliveries` end, in the course of a transaction: applied ones, then
/// those that were fresh and failed (or stand behind such a one), then known ones, then those that
/// were held back from the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) applied: usize,
    pub(crate) fresh: usize,
    pub(crate) live: usize,
}

/// The aggregates whose numbers are looked at.
fn numbered(batch: &Batch, live: usize, terms: &Terms<'_>) -> Vec<Aggregate> {
    match terms.policy.on_gap {
        OnGap::Ignore => Vec::new(),
        OnGap::Warn | OnGap::Wait => {
            sequence::aggregates(batch.deliveries.get(..live).unwrap_or_default())
        }
    }
}

struct Entered {
    fresh: usize,
    transaction_id: String,
}

/// Runs the handler over the fresh events. Returns how many stand applied at the front, and which
/// failed.
async fn run<H: Handler>(
    tx: &Transaction<'_>,
    handler: &mut H,
    events: &mut [Delivery],
    care: Care,
    transaction_id: &str,
) -> Result<(usize, Vec<(usize, HandlerError)>), Failure> {
    if events.is_empty() {
        return Ok((0, Vec::new()));
    }
    match care {
        Care::None => {
            if let Err(error) = handler.apply(tx, events).await {
                return Err(tx.failure((transaction_id, events), error).await);
            }
            Ok((events.len(), Vec::new()))
        }
        Care::Slices { first, deferred } => {
            let sliced = bisect::run(tx, handler, events, first, deferred).await?;
            Ok((sliced.applied, sliced.failed))
        }
    }
}

/// Writes the inbox rows of the first `live` deliveries and sorts those: first the fresh ones in
/// stream order, then the others.
async fn enter<H: Handler>(
    tx: &Client,
    statements: &Statements,
    terms: &Terms<'_>,
    batch: &mut Batch,
    live: usize,
    handler: &mut H,
) -> Result<Entered, Failure> {
    let all = batch.deliveries.len();
    let deliveries = batch.deliveries.get_mut(..live).unwrap_or_default();
    let fewer;
    let rows = if live == all {
        &batch.rows
    } else {
        fewer = InboxRows::of(deliveries).map_err(encode_failed)?;
        &fewer
    };
    let insert = statements.insert(tx, terms.consumer_id, rows);
    let prepare = async {
        // the statement goes out first; while the server works on it, the handler does
        tokio::task::yield_now().await;
        handler.expect(deliveries);
    };
    let (inserted, ()) = tokio::join!(insert, prepare);
    let (fresh, transaction_id) = inserted?;
    if matches!(fresh, Fresh::All) && rows.ordinals.len() == live {
        return Ok(Entered { fresh: live, transaction_id });
    }
    let first: HashSet<usize> = rows.ordinals.iter().copied().collect();
    let inserted: Option<HashSet<&str>> = match &fresh {
        Fresh::All => None,
        Fresh::Only(ids) => Some(ids.iter().map(String::as_str).collect()),
    };
    let is_fresh = |delivery: &Delivery| {
        let event_id = delivery.entry.event.event_id.as_str();
        first.contains(&delivery.ordinal)
            && inserted.as_ref().is_none_or(|inserted| inserted.contains(event_id))
    };
    let number = deliveries.iter().filter(|delivery| is_fresh(delivery)).count();
    // each is looked up once more, not with every comparison
    deliveries.sort_by_cached_key(|delivery| (!is_fresh(delivery), delivery.ordinal));
    Ok(Entered { fresh: number, transaction_id })
}

/// Tells duplicates from conflicts among the known ones of the first `live` deliveries. Returns where these end
/// then: one that repeats an event of this batch which was refused repeats nothing that has had its effect, and is
/// held back behind it.
async fn judge(
    tx: &Client,
    statements: &Statements,
    consumer_id: &str,
    batch: &mut Batch,
    Parts { applied, fresh, live }: Parts,
    outcome: &mut Outcome,
) -> Result<usize, Failure> {
    if fresh == live {
        return Ok(live);
    }
    let id = |delivery: &Delivery| delivery.entry.event.event_id.clone();
    let refused: HashSet<String> =
        batch.deliveries.get(applied..fresh).unwrap_or_default().iter().map(id).collect();
    let is_refused = |delivery: &Delivery| refused.contains(&delivery.entry.event.event_id);
    let known = batch.deliveries.get_mut(fresh..live).unwrap_or_default();
    if !refused.is_empty() {
        known.sort_by_key(|delivery| (is_refused(delivery), delivery.ordinal));
    }
    let known: Vec<&Delivery> = known.iter().filter(|delivery| !is_refused(delivery)).collect();
    let judged = statements.judge(tx, consumer_id, &known).await?;
    if judged.len() != known.len() {
        // the INSERT met a row that is gone now: a clean-up ran in between
        let reason = "inbox rows disappeared during the transaction".to_owned();
        return Err(Failure::Transient { reason, reconnect: false });
    }
    let number = known.len();
    outcome.conflicts = judged.into_iter().filter(|judgement| !judgement.same).collect();
    outcome.duplicates = count(number - outcome.conflicts.len());
    Ok(fresh + number)
}

/// The streams of `batch` with the highest entry of each, and where each may resume.
fn reached<'a>(batch: &Batch, terms: &Terms<'a>) -> Vec<Reached<'a>> {
    let of_stream = |ids: &crate::delivery::StreamIds| {
        Some(Reached {
            stream: terms.streams.get(ids.stream)?,
            entry: *ids.ids.last()?,
            resume: terms.resume.get(ids.stream).copied().unwrap_or_default(),
            token: ids.token,
        })
    };
    if batch.is_parked() {
        // nothing is reached that was not before; the row is written all the same, as a check
        let streams = terms.streams.iter().enumerate();
        let of_batch =
            streams.filter(|(_, key)| batch.deliveries.iter().any(|d| d.stream == **key));
        let (entry, resume) = (EntryId::ZERO, EntryId::ZERO);
        let token =
            |index| terms.held.iter().find(|held| held.0 == index).map_or(-1, |held| held.1);
        return of_batch
            .map(|(index, stream)| Reached { stream, entry, resume, token: token(index) })
            .collect();
    }
    batch.ids.iter().filter_map(of_stream).collect()
}

pub(crate) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
