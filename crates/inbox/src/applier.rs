//! Takes batches, applies each until it is committed, and hands its entries on to be acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outflow_event::EntryId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::apply::{Care, Outcome, Terms};
use crate::backoff::Backoff;
use crate::bisect::First;
use crate::config::OnFailure;
use crate::consumer::Shared;
use crate::database::{self, Connect};
use crate::delivery::{Batch, named};
use crate::error::{Chain, Error};
use crate::failure::Failure;
use crate::handler::Handler;
use crate::report;
use crate::round::Rounds;
use crate::session::Session;
use crate::statements::Reached;
use crate::status::Component;

/// A transaction that runs for longer than this is reported, and again each time it passes.
const SLOW: Duration = Duration::from_secs(8);
/// After an event has failed, so many batches are applied with care from the beginning: where one
/// fails others often do, and a batch that fails at once has been worked on for nothing.
const CAREFUL: u32 = 100;
/// And for so many the next failure is expected in every one.
const EXPECTED: u32 = 5;

pub(crate) struct Applier<H> {
    pub(crate) shared: Arc<Shared>,
    connect: Connect,
    pub(crate) handler: H,
    pub(crate) session: Option<Session>,
    pub(crate) stop: CancellationToken,
    stored_resume: Vec<EntryId>,
    /// So many more batches are applied with care.
    careful: u32,
    /// So many events failed in the last batch in which any did.
    failing: usize,
    pub(crate) rounds: Rounds,
    /// When to look for replacements that somebody asked for.
    pub(crate) replacements_due: Instant,
}

/// What has become of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Committed,
    /// Somebody else has its events in hand: leave them alone.
    Taken,
    /// A stop came first: it stays as it was.
    Stopped,
}

impl<H: Handler> Applier<H> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        connect: Connect,
        handler: H,
        stop: CancellationToken,
    ) -> Self {
        let stored_resume = vec![EntryId::ZERO; shared.streams.len()];
        let (rounds, replacements_due) = (Rounds::new(), Instant::now());
        Self {
            shared,
            connect,
            handler,
            session: None,
            stop,
            stored_resume,
            careful: 0,
            failing: 0,
            rounds,
            replacements_due,
        }
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
            if self.rounds.is_due() && !self.stop.is_cancelled() {
                self.round().await?;
            }
            self.replacements().await?;
            let batch = tokio::select! {
                biased;
                batch = batches.recv() => batch,
                _ = idle.tick() => {
                    self.store_resume().await;
                    continue;
                }
                () = tokio::time::sleep_until(self.rounds.due().into()) => continue,
            };
            let Some(mut batch) = batch else { return Ok(self) };
            match self.apply_read(&mut batch).await? {
                Done::Committed => {}
                Done::Taken => {
                    self.let_go(&batch);
                    continue;
                }
                Done::Stopped => return Ok(self),
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

    /// Applies a batch that was read from streams, if they are still held as they were then.
    async fn apply_read(&mut self, batch: &mut Batch) -> Result<Done, Error> {
        fail::fail_point!("inbox::before_apply");
        let leases = &self.shared.leases;
        if batch.ids.iter().any(|ids| leases.token(ids.stream) != Some(ids.token)) {
            return Ok(Done::Taken);
        }
        self.apply(batch).await
    }

    /// A batch of which a stream is in other hands, or was meanwhile. What it holds of others stays pending
    /// too: they are all taken anew, beginning with that, so that nothing overtakes it; not even what was
    /// read since under a newer token.
    fn let_go(&self, batch: &Batch) {
        for ids in batch.ids.iter() {
            self.shared.leases.lose_stream(ids.stream);
        }
        self.shared.in_flight.remove(&batch.ids);
        self.shared.leases.want();
        tracing::info!(
            consumer = self.shared.config.consumer_id,
            worker = self.shared.config.worker,
            events = batch.deliveries.len(),
            "another worker has a stream of this batch: nothing of it was applied here"
        );
        fail::fail_point!("inbox::let_go");
    }

    /// Applies `batch`, however often it takes.
    pub(crate) async fn apply(&mut self, batch: &mut Batch) -> Result<Done, Error> {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.retry_first, config.retry_longest);
        let mut checked = false;
        let mut care = self.care(batch);
        loop {
            if !self.ready().await? {
                return Ok(Done::Stopped);
            }
            let failure = match self.attempt(batch, care).await {
                Ok(outcome) => {
                    fail::fail_point!("inbox::after_commit");
                    self.committed(batch, &outcome);
                    return Ok(Done::Committed);
                }
                Err(failure) => failure,
            };
            fail::fail_point!("inbox::rolled_back");
            self.shared.board.retried();
            let reason = match failure {
                Failure::Fatal(error) => return Err(error),
                Failure::Taken => return Ok(Done::Taken),
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
                // the second time with more care: which event it is becomes its own affair
                Failure::Handler(_) if care == Care::None => {
                    care = Care::Slices { first: First::Half, deferred: false };
                    continue;
                }
                Failure::Commit(_) if !care.is_deferred() => {
                    care = Care::Slices { first: First::Half, deferred: true };
                    continue;
                }
                Failure::Handler(error) | Failure::Commit(error) => {
                    blame(batch, &error.to_string())
                }
                Failure::Projection(error) => format!(
                    "{}: no event can be applied until that is mended",
                    blame(batch, &error.to_string())
                ),
            };
            self.shared.board.waiting(Component::Applier, &reason);
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.stop.cancelled() => return Ok(Done::Stopped),
            }
        }
    }

    /// How carefully to begin with `batch`.
    fn care(&self, batch: &Batch) -> Care {
        let failed = batch.parked.iter().any(|known| known.finished > 0);
        match (batch.is_parked(), failed || batch.parked.iter().any(|k| k.dead_letter_id.is_some()))
        {
            (true, true) => Care::Slices { first: First::One, deferred: false },
            (true, false) => Care::Slices { first: First::All, deferred: false },
            (false, _) if self.careful > CAREFUL - EXPECTED => {
                Care::Slices { first: First::Parts { failing: self.failing }, deferred: false }
            }
            (false, _) if self.careful > 0 => Care::Slices { first: First::All, deferred: false },
            (false, _) => Care::None,
        }
    }

    /// One transaction, watched: it says so when it is slow, and ends when it takes too long.
    async fn attempt(&mut self, batch: &mut Batch, care: Care) -> Result<Outcome, Failure> {
        let Some(session) = self.session.as_mut() else {
            let reason = "no connection to the database".to_owned();
            return Err(Failure::Transient { reason, reconnect: true });
        };
        let shared = &self.shared;
        let began = Instant::now();
        let resume = shared.resume();
        let terms = Terms {
            consumer_id: &shared.config.consumer_id,
            streams: &shared.streams,
            resume: &resume,
            held: &self.rounds.streams,
            policy: shared.config.failure_policy(),
            ask_held: self.rounds.ask(&batch.ids),
            care,
        };
        let work = session.apply(batch, &mut self.handler, &terms);
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
            Err(Failure::Handler(error) | Failure::Commit(error) | Failure::Projection(error)) => {
                Err(error.to_string())
            }
            Err(Failure::Fatal(error)) => Err(error.to_string()),
            Err(Failure::Taken) => Ok(()),
        }
    }

    fn committed(&mut self, batch: &Batch, outcome: &Outcome) {
        report::report(&self.shared, batch, outcome);
        if !outcome.failed.is_empty() {
            self.careful = CAREFUL;
            self.failing = outcome.failed.len();
        } else if !batch.is_parked() {
            self.careful = self.careful.saturating_sub(1);
        }
        // a dead letter that holds nobody up has left nothing behind
        let holds = self.shared.config.on_failure == OnFailure::ParkAggregate;
        if outcome.parked > 0 || outcome.failed.iter().any(|event| holds || !event.is_dead) {
            self.rounds.held = true;
        }
        if let Some(due_in) = outcome.due_in {
            self.rounds.due_within(due_in);
        }
    }

    /// Connects until it works. `false`: a stop came first.
    pub(crate) async fn ready(&mut self) -> Result<bool, Error> {
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
                    // whatever happened meanwhile is looked for at once
                    self.rounds.unknown();
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
        database::name_session(&client, &self.shared.instance).await?;
        Session::open(client, &mut self.handler, self.shared.config.apply_timeout).await
    }

    /// Another connection, where the last one was given up in mid-transaction: that one is ended first.
    pub(crate) async fn open_again(&mut self) -> Result<Session, Error> {
        let client = (self.connect)().await.map_err(database::connect_failed)?;
        database::end_transaction(&client, &self.shared.instance).await?;
        drop(client);
        self.open().await
    }

    /// Writes down how far every stream is acknowledged, if that changed since the last time. A
    /// failure is not worth more than a line: the next batch or the next tick writes it.
    async fn store_resume(&mut self) {
        let resume = self.shared.resume();
        let Some(session) = self.session.as_ref() else { return };
        let leases = &self.shared.leases;
        let changed = self.shared.streams.iter().zip(&resume).zip(&self.stored_resume).enumerate();
        let reached: Vec<_> = changed
            .filter(|(_, ((_, resume), stored))| resume > stored)
            .filter_map(|(index, ((stream, resume), _))| {
                let token = leases.token(index)?;
                Some(Reached { stream, entry: *resume, resume: *resume, token })
            })
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
    let events = named(&batch.deliveries);
    match batch.deliveries.len() {
        0 => reason.to_owned(),
        1 => format!("{events} cannot be applied: {reason}"),
        _ => format!("a batch of {events} cannot be applied: {reason}"),
    }
}
