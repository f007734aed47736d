//! What a transaction does with the events that it does not apply: they are parked in order, tried
//! again, or become dead letters.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use crate::apply::{FailedEvent, Outcome, Parts, Terms, count};
use crate::config::{OnFailure, OnGap};
use crate::delivery::{Batch, Delivery};
use crate::failure::Failure;
use crate::handler::HandlerError;
use crate::parking::{Aggregate, Cause, Counted, Failed, Parking, aggregates};
use crate::sequence::Sequence;

/// Whether [`hold_back`] has anything to ask the database.
pub(crate) fn asks(batch: &Batch, terms: &Terms<'_>) -> bool {
    batch.is_parked() || batch.suspects || terms.ask_held
}

/// Moves the events of aggregates that are held back behind the others. Returns how many others.
///
/// Of parked events none is held back: their queue is what holds the others. But they must still be
/// there, and nobody else may have them in hand.
pub(crate) async fn hold_back(
    tx: &Client,
    parking: &Parking,
    batch: &mut Batch,
    terms: &Terms<'_>,
) -> Result<usize, Failure> {
    let all = batch.deliveries.len();
    if batch.is_parked() {
        let locked = parking.lock(tx, terms.consumer_id, &batch.deliveries).await?;
        return if locked { Ok(all) } else { Err(Failure::Taken) };
    }
    if all == 0 || !asks(batch, terms) {
        return Ok(all);
    }
    let held = parking.held(tx, terms.consumer_id, &batch.deliveries).await?;
    if batch.suspects {
        let due = suspects(&batch.deliveries, &held);
        parking.park(tx, terms.consumer_id, Cause::Suspect, &due).await?;
        return Ok(0);
    }
    if held.is_empty() {
        return Ok(all);
    }
    let held: HashSet<(&str, &str)> = held.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let is_held = |delivery: &Delivery| held.contains(&aggregate(delivery));
    batch.deliveries.sort_by_key(|delivery| (is_held(delivery), delivery.ordinal));
    Ok(batch.deliveries.iter().filter(|delivery| !is_held(delivery)).count())
}

/// The first of each aggregate is due at once, unless something is in front of it already.
fn suspects<'a>(
    deliveries: &'a [Delivery],
    held: &'a [Aggregate],
) -> Vec<(&'a Delivery, Option<f64>)> {
    let mut seen: HashSet<(&str, &str)> =
        held.iter().map(|(kind, id)| (kind.as_str(), id.as_str())).collect();
    let mut due = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        due.push((delivery, seen.insert(aggregate(delivery)).then_some(0.0)));
    }
    due
}

/// What is needed to set events aside.
pub(crate) struct Aside<'a> {
    pub(crate) tx: &'a Client,
    pub(crate) parking: &'a Parking,
    pub(crate) sequence: &'a Sequence,
    pub(crate) batch: &'a Batch,
    pub(crate) terms: &'a Terms<'a>,
}

impl Aside<'_> {
    /// Parks what was not applied, counts the attempts that failed, and takes away what is done.
    pub(crate) async fn set(
        &self,
        parts: Parts,
        failed: Vec<(usize, HandlerError)>,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let refused = self.part(parts.applied, parts.fresh);
        let held_back = self.part(parts.live, self.batch.deliveries.len());
        if !refused.is_empty() {
            let consumer_id = self.terms.consumer_id;
            let withdrawn = self.parking.withdraw(self.tx, consumer_id, refused).await?;
            if withdrawn != refused.len() {
                return Err(Failure::ended_by_handler(self.part(0, parts.fresh)));
            }
        }
        if self.batch.suspects {
            outcome.parked = count(held_back.len());
            outcome.due_in = Some(Duration::ZERO);
            return Ok(());
        }
        let attempts = self.attempts(failed);
        // their rows are parked first, and counted without waiting for that
        let (parked, counted) =
            tokio::join!(self.park(refused, held_back, &attempts, outcome), self.count(&attempts),);
        parked?;
        outcome.failed = self.bury(attempts, counted?, outcome).await?;
        if self.batch.is_parked() {
            self.take_away(parts, outcome).await?;
        }
        Ok(())
    }

    fn part(&self, from: usize, to: usize) -> &[Delivery] {
        self.batch.deliveries.get(from..to).unwrap_or_default()
    }

    /// Parks what was refused and what is held back, each for its cause.
    async fn park(
        &self,
        refused: &[Delivery],
        held_back: &[Delivery],
        failed: &[Failed<'_>],
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        if refused.is_empty() && held_back.is_empty() {
            return Ok(());
        }
        let (tx, consumer_id) = (self.tx, self.terms.consumer_id);
        let is_failed =
            |d: &&Delivery| failed.iter().any(|failed| failed.delivery.ordinal == d.ordinal);
        let is_gap = |d: &&Delivery| outcome.gaps.iter().any(|g| g.waits && g.ordinal == d.ordinal);
        let first: Vec<&Delivery> = refused.iter().filter(is_failed).collect();
        let gaps: Vec<&Delivery> = refused.iter().filter(is_gap).collect();
        let behind: Vec<&Delivery> =
            refused.iter().filter(|d| !is_failed(d) && !is_gap(d)).chain(held_back).collect();
        let wait = self.terms.policy.gap_wait;
        if self.batch.is_parked() {
            // they stand in their queue as before; only that they did not end the worker is new
            let behind = behind.into_iter();
            self.parking.suspect(tx, consumer_id, behind, false).await?;
        } else {
            let due = |due: Option<f64>| move |delivery| (delivery, due);
            let first: Vec<_> = first.into_iter().map(due(Some(0.0))).collect();
            self.parking.park(tx, consumer_id, Cause::Failed, &first).await?;
            let waits: Vec<_> = gaps.iter().copied().map(due(Some(wait.as_secs_f64()))).collect();
            self.parking.park(tx, consumer_id, Cause::Gap, &waits).await?;
            let behind: Vec<_> = behind.into_iter().map(due(None)).collect();
            outcome.parked = count(behind.len() + waits.len());
            self.parking.park(tx, consumer_id, Cause::Behind, &behind).await?;
        }
        if !gaps.is_empty() {
            self.sequence.wait(tx, consumer_id, &gaps, wait).await?;
            outcome.due_in = Some(wait);
        }
        if self.terms.policy.on_gap == OnGap::Wait && !held_back.is_empty() {
            // it may be what was waited for
            self.sequence.fill(tx, consumer_id, aggregates(held_back.iter())).await?;
            outcome.due_in = Some(Duration::ZERO);
        }
        Ok(())
    }

    /// Takes parked events away that are done, and lets go what stood behind them.
    async fn take_away(&self, parts: Parts, outcome: &mut Outcome) -> Result<(), Failure> {
        let (tx, consumer_id) = (self.tx, self.terms.consumer_id);
        let conflict = |d: &Delivery| outcome.conflicts.iter().any(|c| c.ordinal == d.ordinal);
        let applied = self.part(0, parts.applied).iter().map(|delivery| (delivery, "applied"));
        let known = self.part(parts.fresh, parts.live).iter();
        let known = known.map(|d| (d, if conflict(d) { "conflict" } else { "duplicate" }));
        let done: Vec<_> = applied.chain(known).collect();
        self.parking.unpark(tx, consumer_id, &done).await?;
        let all = || self.batch.deliveries.iter();
        self.parking.advance(tx, consumer_id, all()).await?;
        if self.terms.policy.on_gap == OnGap::Wait {
            self.sequence.fill(tx, consumer_id, aggregates(all())).await?;
        }
        outcome.due_in = Some(Duration::ZERO);
        Ok(())
    }

    fn attempts(&self, failed: Vec<(usize, HandlerError)>) -> Vec<Failed<'_>> {
        failed
            .into_iter()
            .filter_map(|(ordinal, error)| {
                let parked = self.batch.parked.get(ordinal);
                Some(Failed {
                    delivery: self.batch.deliveries.iter().find(|d| d.ordinal == ordinal)?,
                    error: error.to_string(),
                    sqlstate: error.sqlstate().map(|state| state.code().to_owned()),
                    marked: parked.is_some_and(|known| known.suspect),
                })
            })
            .collect()
    }

    /// Counts attempts that failed.
    async fn count(&self, failed: &[Failed<'_>]) -> Result<Vec<Option<Counted>>, Error> {
        if failed.is_empty() {
            return Ok(Vec::new());
        }
        self.parking.fail(self.tx, self.terms.consumer_id, &self.terms.policy, failed).await
    }

    /// Makes dead letters of those that had their last attempt.
    async fn bury(
        &self,
        attempts: Vec<Failed<'_>>,
        counted: Vec<Option<Counted>>,
        outcome: &mut Outcome,
    ) -> Result<Vec<FailedEvent>, Failure> {
        let (tx, terms) = (self.tx, self.terms);
        let mut events = Vec::with_capacity(attempts.len());
        let mut skipped = Vec::new();
        for (attempt, counted) in attempts.into_iter().zip(counted) {
            let Some(Counted { started, is_retry, due_in }) = counted else { continue };
            let is_dead = is_retry || started >= terms.policy.max_attempts;
            if is_dead {
                let holds = terms.policy.on_failure == OnFailure::ParkAggregate;
                let bury = self.parking.bury(tx, terms.consumer_id, attempt.delivery, None, holds);
                bury.await?;
                if !holds {
                    skipped.push(attempt.delivery);
                }
            } else {
                outcome.due_in = Some(outcome.due_in.map_or(due_in, |known| known.min(due_in)));
            }
            events.push(FailedEvent {
                ordinal: attempt.delivery.ordinal,
                error: attempt.error,
                attempts: started,
                is_dead,
            });
        }
        // while nothing is held back, nothing stands behind them
        if !skipped.is_empty() && (terms.ask_held || outcome.parked > 0) {
            self.parking.advance(tx, terms.consumer_id, skipped.into_iter()).await?;
            outcome.due_in = Some(Duration::ZERO);
        }
        Ok(events)
    }
}

fn aggregate(delivery: &Delivery) -> (&str, &str) {
    (&delivery.entry.event.aggregate_type, &delivery.entry.event.aggregate_id)
}
