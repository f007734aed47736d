//! Takes batches, applies each until it is committed, and hands its entries on to be acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outflow_event::EntryId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::apply::{Failure, Outcome, Session};
use crate::backoff::Backoff;
use crate::consumer::Shared;
use crate::database::{self, Connect};
use crate::delivery::Batch;
use crate::error::{Chain, Error};
use crate::handler::Handler;
use crate::statements::Reached;
use crate::status::Component;
use crate::time::micros_since_epoch;

/// A transaction that runs for longer than this is reported, and again each time it passes.
const SLOW: Duration = Duration::from_secs(8);

pub(crate) struct Applier<H> {
    shared: Arc<Shared>,
    connect: Connect,
    handler: H,
    session: Option<Session>,
    stop: CancellationToken,
    stored_resume: Vec<EntryId>,
}

impl<H: Handler> Applier<H> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        connect: Connect,
        handler: H,
        stop: CancellationToken,
    ) -> Self {
        let stored_resume = vec![EntryId::ZERO; shared.streams.len()];
        Self { shared, connect, handler, session: None, stop, stored_resume }
    }

    /// Applies until the reader has ended and its last batch is done. Returns itself for
    /// [`Applier::finish`], or an error if waiting cannot help.
    pub(crate) async fn run(
        mut self,
        mut batches: mpsc::Receiver<Batch>,
        acks: mpsc::Sender<Batch>,
    ) -> Result<Self, Error> {
        // connecting at once finds a bad projection before the first event does
        if !self.ready().await? {
            return Ok(self);
        }
        let mut idle = tokio::time::interval(self.shared.config.report_interval);
        idle.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let batch = tokio::select! {
                biased;
                batch = batches.recv() => batch,
                _ = idle.tick() => {
                    self.store_resume().await;
                    continue;
                }
            };
            let Some(mut batch) = batch else { return Ok(self) };
            if !self.apply(&mut batch).await? {
                return Ok(self);
            }
            idle.reset();
            if acks.send(batch).await.is_err() {
                return Ok(self);
            }
        }
    }

    /// Stores the final positions, once everything is acknowledged.
    pub(crate) async fn finish(mut self) {
        self.store_resume().await;
    }

    /// Applies `batch`, however often it takes. `false`: a stop came first, it stays pending.
    async fn apply(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.retry_first, config.retry_longest);
        let mut checked = false;
        loop {
            if !self.ready().await? {
                return Ok(false);
            }
            let failure = match self.attempt(batch).await {
                Ok(outcome) => {
                    fail::fail_point!("inbox::after_commit");
                    self.report(batch, &outcome);
                    return Ok(true);
                }
                Err(failure) => failure,
            };
            self.shared.board.metrics.retries.increment(1);
            self.shared.board.count(|counts| counts.retries += 1);
            let reason = match failure {
                Failure::Fatal(error) => return Err(error),
                Failure::Transient { reason, reconnect } => {
                    if reconnect {
                        self.session = None;
                    }
                    reason
                }
                Failure::Data(_) if !checked => {
                    checked = true;
                    match self.check_payloads(batch).await {
                        Ok(_) => continue,
                        Err(reason) => reason,
                    }
                }
                Failure::Data(error) => {
                    blame(batch, &format!("the database refuses a value: {}", Chain::new(&error)))
                }
                Failure::Handler(error) => blame(batch, &error.to_string()),
            };
            self.shared.board.waiting(Component::Applier, &reason);
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.stop.cancelled() => return Ok(false),
            }
        }
    }

    /// One transaction, watched: it says so when it is slow, and ends when it takes too long.
    async fn attempt(&mut self, batch: &mut Batch) -> Result<Outcome, Failure> {
        let Some(session) = self.session.as_mut() else {
            let reason = "no connection to the database".to_owned();
            return Err(Failure::Transient { reason, reconnect: true });
        };
        let shared = &self.shared;
        let began = Instant::now();
        let resume = shared.resume();
        let consumer_id = &shared.config.consumer_id;
        let work = session.apply(batch, &mut self.handler, consumer_id, &shared.streams, &resume);
        tokio::pin!(work);
        let limit = shared.config.apply_timeout;
        let outcome = loop {
            let wait = SLOW.min(limit.saturating_sub(began.elapsed()));
            if let Ok(outcome) = tokio::time::timeout(wait, &mut work).await {
                break outcome?;
            }
            if began.elapsed() >= limit {
                let reason = format!(
                    "a transaction was given up after {limit:?}: look for locks and slow statements"
                );
                return Err(Failure::Transient { reason, reconnect: true });
            }
            let reason = format!("a transaction is running for more than {} s", SLOW.as_secs());
            shared.board.waiting(Component::Applier, &reason);
        };
        shared.board.metrics.transaction.record(began.elapsed().as_secs_f64());
        Ok(outcome)
    }

    async fn check_payloads(&mut self, batch: &mut Batch) -> Result<(), String> {
        let Some(session) = self.session.as_ref() else { return Ok(()) };
        match session.check_payloads(batch).await {
            Ok(_) => Ok(()),
            Err(Failure::Transient { reason, reconnect }) => {
                if reconnect {
                    self.session = None;
                }
                Err(reason)
            }
            Err(Failure::Data(error)) => Err(Chain::new(&error).to_string()),
            Err(Failure::Handler(error)) => Err(error.to_string()),
            Err(Failure::Fatal(error)) => Err(error.to_string()),
        }
    }

    fn report(&mut self, batch: &Batch, outcome: &Outcome) {
        let board = &self.shared.board;
        for conflict in &outcome.conflicts {
            let found = batch.deliveries.iter().find(|d| d.ordinal == conflict.ordinal);
            let Some(delivery) = found else { continue };
            tracing::warn!(
                consumer = self.shared.config.consumer_id,
                event_id = delivery.entry.event.event_id,
                stream = &*delivery.stream,
                entry_id = %delivery.entry.id,
                applied_stream = conflict.applied_stream,
                applied_entry_id = conflict.applied_entry_id,
                "conflict: a known event id arrived with another payload; not applied, see outflow.conflict"
            );
        }
        for malformed in &batch.malformed {
            tracing::warn!(
                consumer = self.shared.config.consumer_id,
                stream = self.shared.streams.get(malformed.stream).map(|stream| &**stream),
                entry_id = %malformed.id,
                "not an event, set aside in outflow.dead_letter: {}", malformed.reason
            );
        }
        let conflicts = u64::try_from(outcome.conflicts.len()).unwrap_or(u64::MAX);
        board.metrics.applied.increment(outcome.applied);
        board.metrics.duplicates.increment(outcome.duplicates);
        board.metrics.conflicts.increment(conflicts);
        board.metrics.malformed.increment(outcome.malformed);
        board.count(|counts| {
            counts.batches += 1;
            counts.applied += outcome.applied;
            counts.duplicates += outcome.duplicates;
            counts.conflicts += conflicts;
            counts.malformed += outcome.malformed;
        });
        if let Some(delay) = delay(batch) {
            board.metrics.delay.record(delay);
        }
        board.moving(Component::Applier);
    }

    /// Connects until it works. `false`: a stop came first.
    async fn ready(&mut self) -> Result<bool, Error> {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.retry_first, config.retry_longest);
        let stop = self.stop.clone();
        while self.session.as_ref().is_none_or(|session| session.client.is_closed()) {
            self.session = None;
            let opened = tokio::select! {
                opened = self.open() => opened,
                () = stop.cancelled() => return Ok(false),
            };
            match opened {
                Ok(session) => {
                    self.session = Some(session);
                    self.shared.board.moving(Component::Applier);
                }
                Err(error) => {
                    let error = error.transient()?;
                    self.shared.board.waiting(Component::Applier, &error.to_string());
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next()) => {}
                        () = stop.cancelled() => return Ok(false),
                    }
                }
            }
        }
        Ok(true)
    }

    async fn open(&mut self) -> Result<Session, Error> {
        let client = (self.connect)().await.map_err(database::connect_failed)?;
        Session::open(client, &mut self.handler, self.shared.config.apply_timeout).await
    }

    /// Writes down how far every stream is acknowledged, if that changed since the last time. A
    /// failure is not worth more than a line: the next batch or the next tick writes it.
    async fn store_resume(&mut self) {
        let resume = self.shared.resume();
        let Some(session) = self.session.as_ref() else { return };
        let changed = self.shared.streams.iter().zip(&resume).zip(&self.stored_resume);
        let reached: Vec<_> = changed
            .filter(|((_, resume), stored)| resume > stored)
            .map(|((stream, resume), _)| Reached { stream, entry: *resume, resume: *resume })
            .collect();
        if reached.is_empty() {
            return;
        }
        let stored = session.store_resume(&self.shared.config.consumer_id, &reached).await;
        match stored {
            Ok(()) => self.stored_resume = resume,
            Err(error) => tracing::debug!("positions were not stored: {}", Chain::new(&error)),
        }
    }
}

/// Which events a failure is about: until it is known which one, the batch as a whole.
fn blame(batch: &Batch, reason: &str) -> String {
    let mut ids = batch.deliveries.iter().map(|delivery| delivery.entry.event.event_id.as_str());
    match (batch.deliveries.len(), ids.next(), ids.next_back()) {
        (_, Some(only), None) => format!("event {only} cannot be applied: {reason}"),
        (all, Some(first), Some(last)) => {
            format!("a batch of {all} events ({first} .. {last}) cannot be applied: {reason}")
        }
        (_, None, _) => reason.to_owned(),
    }
}

/// Seconds from the commit of the newest event in its source until now.
fn delay(batch: &Batch) -> Option<f64> {
    let committed = batch.deliveries.iter().rev().find_map(|d| d.entry.commit_time.as_deref())?;
    let committed = Duration::from_micros(u64::try_from(micros_since_epoch(committed)?).ok()?);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(committed).as_secs_f64())
}
