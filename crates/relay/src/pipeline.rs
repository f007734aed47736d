//! The one loop that holds control flow: log in, entries out, offsets forward, confirmations back.
//!
//! While one batch is on its way to Redis the next ones fill. How much fills in that time decides
//! the size of a batch, so nothing waits for company when the connector keeps up. In a backlog it is
//! throughput that counts, and a batch waits a moment to become full (`linger`).
//!
//! Bounds: at most one chunk of the log is taken in ahead of the sink; when the sink stalls, the
//! link's own bounded channel fills, the socket is no longer read, and the server keeps the rest.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use outflow_event::Lsn;
use outflow_pgoutput::message::Message;
use outflow_pgoutput::{Appetite, Chunk, Frame, ReplicationStream};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::batch::Batch;
use crate::error::Error;
use crate::intake::Intake;
use crate::linger::Linger;
use crate::offset::{OffsetStore, ResumePoint};
use crate::publisher::Publisher;
use crate::sink::Sink;
use crate::status::Reporter;

/// What a pipeline needs besides the link.
#[derive(Debug)]
pub struct Pipeline<S, O> {
    /// Turns messages into batches.
    pub intake: Intake,
    /// Publishes batches.
    pub publisher: Publisher<S, O>,
    /// An empty batch for the publisher's sink.
    pub batch: Batch,
    /// Most entries in a batch.
    pub batch_entries: usize,
    /// Most bytes in a batch.
    pub batch_bytes: usize,
    /// Told of every published batch.
    pub reporter: Reporter,
    /// Set when publication or slot are found to be at fault.
    pub fault: watch::Receiver<Option<String>>,
    /// Asks for an orderly end: what was taken in is published, then the pipeline returns.
    pub shutdown: CancellationToken,
    /// Cancelled when the orderly end has taken too long.
    pub give_up: CancellationToken,
}

/// An idle connector stores the server's WAL end this often, so that its slot holds back little.
const IDLE_SAVE: Duration = Duration::from_secs(1);

type InFlight<S, O> =
    Pin<Box<dyn Future<Output = (Publisher<S, O>, Batch, Result<(), Error>)> + Send>>;

/// The state of a running pipeline.
struct Run<'a, S, O> {
    stream: &'a mut ReplicationStream,
    intake: Intake,
    /// At home while nothing is in flight.
    publisher: Option<Publisher<S, O>>,
    in_flight: Option<InFlight<S, O>>,
    /// Full batches that wait for their turn.
    queue: VecDeque<Batch>,
    filling: Batch,
    /// Whether `filling` waits to become full.
    linger: Linger,
    spare: Vec<Batch>,
    limits: (usize, usize),
    /// A batch was not published, or not covered by an offset.
    failed: bool,
    stored: ResumePoint,
    confirmed: Lsn,
    saved_at: Instant,
    /// The server waits for an answer that only a stored offset can give.
    urgent: bool,
    source_lsn: Lsn,
    reporter: Reporter,
    give_up: CancellationToken,
}

impl<S: Sink + 'static, O: OffsetStore + 'static> Pipeline<S, O> {
    /// Runs until `shutdown`, until the link ends, or until something fails.
    ///
    /// Whatever the end, everything that was acknowledged is covered by the stored offset and has
    /// been confirmed to the server or will be on resumption.
    ///
    /// # Errors
    /// Transient: make a new link and resume from the stored offset. Fatal: stop.
    ///
    /// # Cancel safety
    /// Dropping the future is like a crash: resume from the stored offset.
    pub async fn run(self, stream: &mut ReplicationStream) -> Result<(), Error> {
        let stored = self.intake.progress().resume_point();
        let confirmed = self.intake.progress().end_lsn;
        let mut fault = self.fault;
        let mut run = Run {
            stream,
            intake: self.intake,
            publisher: Some(self.publisher),
            in_flight: None,
            queue: VecDeque::new(),
            filling: self.batch,
            linger: Linger::default(),
            spare: Vec::new(),
            limits: (self.batch_entries, self.batch_bytes),
            failed: false,
            stored,
            confirmed,
            saved_at: Instant::now(),
            urgent: false,
            source_lsn: stored.lsn,
            reporter: self.reporter,
            give_up: self.give_up,
        };
        let mut result = run.stream(&mut fault, &self.shutdown).await;
        // nothing may pass a batch that failed, or is still under way on a link that was given up
        if result.is_ok() || (run.publisher.is_some() && !run.failed) {
            let drained = run.drain().await;
            result = result.and(drained);
        }
        result
    }
}

impl<S: Sink + 'static, O: OffsetStore + 'static> Run<'_, S, O> {
    async fn stream(
        &mut self,
        fault: &mut watch::Receiver<Option<String>>,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let mut tick = tokio::time::interval(IDLE_SAVE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.dispatch()?;
            let room = self.queue.is_empty();
            let linger = self.linger.until().filter(|_| self.in_flight.is_none());
            // With a batch under way, or one that waits to become full, nothing is in a hurry: rows
            // gather in the socket, and the server, which sends each in a packet of its own, need
            // not wake us for each. Otherwise the next byte counts.
            self.stream.set_appetite(match self.in_flight.is_some() || linger.is_some() {
                true => Appetite::Bulk,
                false => Appetite::Prompt,
            });
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                done = arrival(&mut self.in_flight) => self.published(done)?,
                chunk = self.stream.next(), if room => match chunk? {
                    Some(chunk) => self.take_in(&chunk)?,
                    None => return Err(Error::LinkClosed),
                },
                () = moment(linger) => self.linger.end(),
                _ = tick.tick() => {
                    let stored = self.stored.lsn;
                    self.reporter.lag(self.source_lsn, stored);
                }
                changed = fault.changed() => {
                    let reason = fault.borrow_and_update().clone();
                    if let (Ok(()), Some(reason)) = (changed, reason) {
                        return Err(Error::Unsound(reason));
                    }
                }
            }
        }
    }

    /// Takes in everything that a chunk holds.
    fn take_in(&mut self, chunk: &Chunk) -> Result<(), Error> {
        for frame in chunk.frames() {
            match frame {
                Frame::XLogData { wal_start, wal_end, server_clock, body } => {
                    let message = Message::decode(body)
                        .map_err(|error| Error::Protocol(format!("at {wal_start}: {error}")))?;
                    let was_empty = self.filling.entries() == 0;
                    self.intake.accept(&message, &mut self.filling)?;
                    if was_empty && self.filling.entries() > 0 {
                        self.linger.begin(self.intake.age_at(server_clock));
                    }
                    self.source_lsn = self.source_lsn.max(wal_end);
                    let (entries, bytes) = self.limits;
                    if self.filling.entries() >= entries || self.filling.bytes() >= bytes {
                        self.close_batch()?;
                    }
                }
                Frame::Keepalive { wal_end, reply_requested, .. } => {
                    self.intake.idle_at(wal_end);
                    self.source_lsn = self.source_lsn.max(wal_end);
                    self.urgent |= reply_requested;
                }
            }
        }
        Ok(())
    }

    /// Puts the batch that is filling into the queue, with the offset that covers it.
    fn close_batch(&mut self) -> Result<(), Error> {
        let mut offset = self.intake.progress().clone();
        offset.at = jiff::Timestamp::now();
        let next = self.spare.pop().unwrap_or_else(|| self.filling.another());
        let mut batch = std::mem::replace(&mut self.filling, next);
        batch.cover(offset);
        self.queue.push_back(batch);
        self.linger.end();
        Ok(())
    }

    /// Sends the next batch if none is under way.
    fn dispatch(&mut self) -> Result<(), Error> {
        if self.in_flight.is_some() {
            return Ok(());
        }
        let ready = self.filling.entries() > 0 && self.linger.until().is_none();
        if self.queue.is_empty() && (ready || self.offset_is_due()) {
            self.close_batch()?;
        }
        let Some(mut batch) = self.queue.pop_front() else { return Ok(()) };
        let Some(mut publisher) = self.publisher.take() else { return Ok(()) };
        publisher.seal(&mut batch)?;
        let give_up = self.give_up.clone();
        self.in_flight = Some(Box::pin(async move {
            let result = tokio::select! {
                biased;
                result = publisher.publish(&batch, &give_up) => result,
                // also in the middle of a try: a reply may take longer than a stop
                () = give_up.cancelled() => Err(Error::GivenUp),
            };
            (publisher, batch, result)
        }));
        Ok(())
    }

    /// Whether an offset without entries should be stored: the server asks, or it is time.
    fn offset_is_due(&self) -> bool {
        let progress = self.intake.progress().resume_point();
        progress > self.stored && (self.urgent || self.saved_at.elapsed() >= IDLE_SAVE)
    }

    fn published(
        &mut self,
        (publisher, mut batch, result): (Publisher<S, O>, Batch, Result<(), Error>),
    ) -> Result<(), Error> {
        self.publisher = Some(publisher);
        self.failed = result.is_err();
        result?;
        if let Some(offset) = batch.offset() {
            self.stored = offset.resume_point();
            self.saved_at = Instant::now();
            // what an earlier link has confirmed was never received on this one
            if offset.end_lsn > self.confirmed {
                self.stream.confirm(offset.end_lsn)?;
                self.confirmed = offset.end_lsn;
            }
            fail::fail_point!("relay::after_confirm");
        }
        if self.intake.progress().resume_point() == self.stored {
            self.urgent = false;
        }
        batch.clear();
        self.spare.push(batch);
        Ok(())
    }

    /// Publishes what has been taken in and stores the offset.
    async fn drain(&mut self) -> Result<(), Error> {
        self.linger.end();
        loop {
            self.urgent = true;
            self.dispatch()?;
            if self.in_flight.is_none() {
                return Ok(());
            }
            let done = arrival(&mut self.in_flight).await;
            self.published(done)?;
        }
    }
}

/// The moment, if there is one.
async fn moment(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The end of what is in flight; never, if nothing is.
async fn arrival<S, O>(
    in_flight: &mut Option<InFlight<S, O>>,
) -> (Publisher<S, O>, Batch, Result<(), Error>) {
    match in_flight {
        Some(future) => {
            let done = future.await;
            *in_flight = None;
            done
        }
        None => std::future::pending().await,
    }
}
