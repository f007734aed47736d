//! Rounds over the events that are parked and due: another attempt for those that failed, and what
//! waited behind them, as soon as nothing is in front of it.
//!
//! A round runs between two batches of the streams, in the same task: what it applies and what the
//! streams bring of the same aggregate can never overtake each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::applier::{Applier, Done};
use crate::config::OnFailure;
use crate::database::{Verdict, statement_failed, verdict};
use crate::delivery::{Batch, Delivery, ParkedRow, StreamIds};
use crate::error::Error;
use crate::handler::Handler;
use crate::lease::Held;
use crate::parking::Page;
use crate::status::Component;

/// How often to look for what others made due: a retry that a person asked for, a discarded letter.
const LOOK: Duration = Duration::from_secs(1);
/// How often to look whether something waits for nothing, and to count what waits.
const SWEEP: Duration = Duration::from_secs(10);
/// Transactions of one round; then the streams have their turn.
const MOST: usize = 8;

/// When to look again.
pub(crate) struct Rounds {
    due: Instant,
    sweep: Instant,
    /// Some aggregates may be held back: batches must be asked about. Only this worker holds back
    /// events of its streams, so it knows; others only let go.
    pub(crate) held: bool,
    /// The streams of the round that is under way.
    pub(crate) streams: Vec<Held>,
    /// The leases at the last look.
    looked_at: Vec<Held>,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { due: now, sweep: now, held: true, streams: Vec::new(), looked_at: Vec::new() }
    }

    /// Whether something of the aggregates in these streams may be held back, unknown to this worker:
    /// it knows what it parked itself, not what the worker did that had the stream before.
    pub(crate) fn ask(&self, ids: &[StreamIds]) -> bool {
        self.held || ids.iter().any(|ids| !self.looked_at.contains(&(ids.stream, ids.token)))
    }

    /// When the next round is due.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Something will be due after `delay`.
    pub(crate) fn due_within(&mut self, delay: Duration) {
        self.due = self.due.min(Instant::now() + delay);
    }

    /// Nothing is known: look at everything.
    pub(crate) fn unknown(&mut self) {
        *self = Self::new();
    }
}

impl<H: Handler> Applier<H> {
    /// Applies what is parked and due in the streams that this worker has, for a while.
    pub(crate) async fn round(&mut self) -> Result<(), Error> {
        self.rounds.streams = self.shared.leases.begin_round();
        let done = self.round_over_streams().await;
        self.shared.leases.end_round();
        done
    }

    async fn round_over_streams(&mut self) -> Result<(), Error> {
        for _ in 0..MOST {
            if !self.ready().await? {
                return Ok(());
            }
            let page = match self.look().await {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(()),
                Err(error) => {
                    if verdict(&error) == Verdict::Reconnect {
                        self.session = None;
                    }
                    let error = statement_failed(error).transient()?;
                    self.shared.board.waiting(Component::Applier, &error.to_string());
                    self.rounds.due = Instant::now() + LOOK;
                    return Ok(());
                }
            };
            if !self.take_on(page).await? {
                return Ok(());
            }
        }
        self.rounds.due = Instant::now();
        Ok(())
    }

    /// What is due; `None` if nothing is, and then it is known when to look again.
    async fn look(&mut self) -> Result<Option<Page>, tokio_postgres::Error> {
        let Some(session) = self.session.as_ref() else { return Ok(None) };
        let shared = &self.shared;
        let (client, parking) = (&session.client, &session.parking);
        let consumer_id = shared.config.consumer_id.as_str();
        if Instant::now() >= self.rounds.sweep {
            parking.sweep(client, consumer_id).await?;
            shared.board.held(parking.overview(client, consumer_id).await?);
            self.rounds.sweep = Instant::now() + SWEEP;
        }
        let held = &self.rounds.streams;
        let streams: Vec<Arc<str>> =
            held.iter().filter_map(|(stream, _)| shared.streams.get(*stream).cloned()).collect();
        let keys: Vec<&str> = streams.iter().map(|stream| &**stream).collect();
        let seen = parking.look(client, consumer_id, &keys).await?;
        self.rounds.held = seen.held;
        self.rounds.looked_at.clone_from(&self.rounds.streams);
        if seen.due_in.is_none_or(|due_in| due_in > Duration::ZERO) {
            let wait = seen.due_in.map_or(LOOK, |due_in| due_in.min(LOOK));
            self.rounds.due = Instant::now() + wait;
            return Ok(None);
        }
        let bounds = (shared.config.batch, shared.config.batch_bytes);
        let gap_wait = shared.config.gap_wait;
        let page = parking.due(client, consumer_id, &streams, bounds, gap_wait).await?;
        self.rounds.due = Instant::now();
        Ok(Some(page))
    }

    /// Applies a page of due events. `false`: a stop came first.
    async fn take_on(&mut self, page: Page) -> Result<bool, Error> {
        let (suspects, others) = split(page);
        let stopped = !others.is_empty() && !self.try_together(others).await?;
        if stopped {
            return Ok(false);
        }
        for (delivery, known) in suspects {
            if self.stop.is_cancelled() || !self.try_alone(delivery, known).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Events of which none is under suspicion. From here on they are: if the worker does not
    /// survive this, each will be tried alone.
    async fn try_together(&mut self, page: Page) -> Result<bool, Error> {
        let Some(session) = self.session.as_ref() else { return Ok(true) };
        let consumer_id = self.shared.config.consumer_id.as_str();
        let events = page.iter().map(|(delivery, _)| delivery);
        let marked = session.parking.suspect(&session.client, consumer_id, events, true).await;
        if !self.went_well(marked)? {
            return Ok(true);
        }
        fail::fail_point!("inbox::round_marked");
        let mut batch = of_parked(page)?;
        Ok(self.apply(&mut batch).await? != Done::Stopped)
    }

    /// An event that may end the worker: the attempt is counted before it begins.
    async fn try_alone(&mut self, delivery: Delivery, known: ParkedRow) -> Result<bool, Error> {
        let Some(session) = self.session.as_mut() else { return Ok(true) };
        let shared = self.shared.clone();
        let consumer_id = shared.config.consumer_id.as_str();
        let most = if known.dead_letter_id.is_some() { 1 } else { shared.config.max_attempts };
        if known.started >= most && known.started > known.finished {
            let reason = killed(known);
            let holds = shared.config.on_failure == OnFailure::ParkAggregate;
            let buried = session.bury(consumer_id, &delivery, &reason, holds).await;
            if self.went_well(buried)? {
                let event_id = &delivery.entry.event.event_id;
                shared.board.count(|counts| counts.dead += 1);
                shared.board.metrics.dead_letters.increment(1);
                tracing::warn!(
                    consumer = consumer_id,
                    event_id,
                    "event {event_id} is a dead letter now, see `outflow dead-letters show {event_id}`: {reason}"
                );
            }
            return Ok(true);
        }
        let marked = session.parking.mark(&session.client, consumer_id, &delivery, 1).await;
        if !self.went_well(marked)? {
            return Ok(true);
        }
        fail::fail_point!("inbox::attempt_started");
        let mut batch = of_parked(vec![(delivery, known)])?;
        let done = self.apply_until_late(&mut batch).await;
        if !matches!(done, Ok(Done::Committed))
            && let Some(delivery) = batch.deliveries.first()
        {
            // a stop, another worker, what only a person can mend: not the event's fault
            self.unmark(delivery).await?;
        }
        Ok(done? != Done::Stopped)
    }

    /// Applies `batch`, and gives it up while a stop still leaves the time to take the mark back.
    async fn apply_until_late(&mut self, batch: &mut Batch) -> Result<Done, Error> {
        let (stop, half) = (self.stop.clone(), self.shared.config.stop_timeout / 2);
        let late = async move {
            stop.cancelled().await;
            tokio::time::sleep(half).await;
        };
        tokio::select! {
            done = self.apply(batch) => return done,
            () = late => {}
        }
        self.session = None;
        Ok(Done::Stopped)
    }

    /// Takes the mark of an attempt back that came to nothing. Best effort where the connection went with
    /// it: its transaction is ended then, which has the row.
    async fn unmark(&mut self, delivery: &Delivery) -> Result<(), Error> {
        if self.session.is_none() {
            let limit = self.shared.config.stop_timeout / 4;
            let opened = tokio::time::timeout(limit, self.open_again()).await;
            let Ok(Ok(session)) = opened else { return Ok(()) };
            self.session = Some(session);
        }
        let consumer_id = self.shared.config.consumer_id.as_str();
        let Some(session) = self.session.as_ref() else { return Ok(()) };
        let unmarked = session.parking.mark(&session.client, consumer_id, delivery, -1).await;
        self.went_well(unmarked).map(drop)
    }

    /// Whether a statement between two transactions worked; if not, the next round does it again.
    fn went_well(&mut self, result: Result<(), tokio_postgres::Error>) -> Result<bool, Error> {
        let Err(error) = result else { return Ok(true) };
        if verdict(&error) == Verdict::Reconnect {
            self.session = None;
        }
        let error = statement_failed(error).transient()?;
        self.shared.board.waiting(Component::Applier, &error.to_string());
        Ok(false)
    }
}

fn killed(known: ParkedRow) -> String {
    format!(
        "its worker ended without an answer in {} of {} attempts in which the event was alone",
        known.started - known.finished,
        known.started
    )
}

fn of_parked(page: Page) -> Result<Batch, Error> {
    Batch::of_parked(page)
        .map_err(|source| Error::Database { source, advice: Some("this is a bug") })
}

/// Suspects, each the first of its aggregate; and the others, as far as no suspect is in front.
fn split(page: Page) -> (Page, Page) {
    let (mut suspects, mut others): (Page, Page) = (Vec::new(), Vec::new());
    // whether more of the aggregate may be taken on in this round
    let mut open: HashMap<(String, String), bool> = HashMap::new();
    for (delivery, known) in page {
        let event = &delivery.entry.event;
        let of = (event.aggregate_type.clone(), event.aggregate_id.clone());
        match (open.get(&of), known.suspect) {
            (Some(false), _) => {}
            (None, true) => {
                open.insert(of, false);
                suspects.push((delivery, known));
            }
            (Some(true), true) => {
                open.insert(of, false);
            }
            (None | Some(true), false) => {
                open.insert(of, true);
                others.push((delivery, known));
            }
        }
    }
    (suspects, others)
}
