//! Publishes one batch after the other and keeps at it: sink first, then the offset.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rand::Rng as _;
use tokio_util::sync::CancellationToken;

use crate::batch::Batch;
use crate::error::{Error, Retry};
use crate::metrics;
use crate::offset::{LedgerPace, OffsetStore, save_command};
use crate::patience::watched;
use crate::sink::Sink;
use crate::status::{On, Reporter, State};

/// Owns sink and offset store. One batch is under way at a time, which is what keeps entries of
/// an aggregate in order.
#[derive(Debug)]
pub struct Publisher<S, O> {
    sink: S,
    offsets: Offsets<O>,
    reporter: Reporter,
}

/// Where offsets go.
#[derive(Debug)]
pub enum Offsets<O> {
    /// Into Redis, in the transaction of the entries.
    Beside {
        /// Names the keys.
        connector: String,
        /// Lines of history.
        ledger_entries: u64,
        /// When the next line is due.
        pace: LedgerPace,
    },
    /// Into a store of their own, after the entries.
    Apart(O),
    /// Nowhere: the rows themselves say what is published, and the polling relay marks them.
    InTheRows,
}

/// Bounds of the time between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause after `failures` failures in a row: doubling, with half of it left to chance so that
/// many connectors do not come back at the same instant.
pub(crate) fn pause(failures: u32) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    full.mul_f64(rand::rng().random_range(0.5..=1.0))
}

impl<S: Sink, O: OffsetStore> Publisher<S, O> {
    /// A publisher that reports what it waits for to `reporter`.
    #[must_use]
    pub fn new(sink: S, offsets: Offsets<O>, reporter: Reporter) -> Self {
        Self { sink, offsets, reporter }
    }

    /// Where it reports to.
    pub(crate) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// Adds the offset to a closed batch, if that is where offsets go.
    ///
    /// # Errors
    /// When the offset's position does not fit into an entry id.
    pub fn seal(&mut self, batch: &mut Batch) -> Result<(), Error> {
        if let (Offsets::Beside { connector, ledger_entries, pace }, Some(offset)) =
            (&mut self.offsets, batch.offset())
        {
            let mut length = 0;
            if pace.due(offset.at) {
                pace.written(offset.at);
                length = *ledger_entries;
            }
            let command = save_command(connector, offset, length, batch.streams())?;
            batch.seal(&command);
        }
        Ok(())
    }

    /// Publishes a sealed batch and stores its offset. Tries until it succeeds, the failure is
    /// one that trying cannot mend, or `give_up` is cancelled: that ends the tries, not the one that
    /// is under way.
    ///
    /// Entries that Redis has acknowledged are not sent again because their offset cannot be stored.
    ///
    /// # Errors
    /// The last failure. The batch may or may not have been published: resume from the stored
    /// offset.
    ///
    /// # Cancel safety
    /// Dropping the future is like a crash: resume from the stored offset.
    pub async fn publish(
        &mut self,
        batch: &Batch,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let (mut failures, mut acknowledged) = (0, false);
        loop {
            let Err((on, error)) = self.try_once(batch, &mut acknowledged).await else { break };
            if error.retry() == Retry::Fatal
                || matches!(error, Error::Superseded { .. } | Error::EntriesLost { .. })
            {
                return Err(error);
            }
            failures += 1;
            metrics::sink_retry();
            // a hiccup is not worth a word; an outage is
            if failures > 3 || started.elapsed() > Duration::from_secs(1) {
                self.reporter.state(State::Waiting { on, reason: error.to_string() });
            }
            tokio::select! {
                () = give_up.cancelled() => return Err(error),
                () = tokio::time::sleep(pause(failures)) => {}
            }
        }
        if failures > 0 {
            self.reporter.state(working(batch));
        }
        let bytes = u64::try_from(batch.bytes()).unwrap_or(u64::MAX);
        metrics::published(batch.events(), batch.dead_letters(), bytes, started.elapsed());
        if let Some(commit) = batch.oldest_commit() {
            metrics::commit_age(Timestamp::now().duration_since(commit).as_secs_f64());
        }
        match batch.offset() {
            Some(offset) => {
                self.reporter.published(offset, batch.events(), batch.dead_letters());
            }
            None => self.reporter.published_rows(batch.events(), batch.dead_letters()),
        }
        Ok(())
    }

    async fn try_once(
        &mut self,
        batch: &Batch,
        acknowledged: &mut bool,
    ) -> Result<(), (On, Error)> {
        let working = working(batch);
        if !*acknowledged {
            fail::fail_point!("relay::before_publish");
            let sending = self.sink.publish(batch);
            let sent =
                watched(&self.reporter, (On::Sink, "publishing a batch"), working.clone(), sending);
            sent.await.map_err(|error| (On::Sink, error))?;
            *acknowledged = true;
            fail::fail_point!("relay::after_publish");
            if batch.events() > 0 {
                fail::fail_point!("relay::entries_published");
            }
        }
        if let (Offsets::Apart(store), Some(offset)) = (&mut self.offsets, batch.offset()) {
            let saved = watched(
                &self.reporter,
                (On::Offset, "storing the offset"),
                working,
                store.save(offset),
            );
            saved.await.map_err(|error| (On::Offset, error))?;
        }
        fail::fail_point!("relay::after_offset");
        Ok(())
    }
}

/// What a relay does that publishes this batch.
fn working(batch: &Batch) -> State {
    match batch.offset() {
        None => State::Polling,
        Some(offset) if offset.snapshot.is_some() => State::Snapshot,
        Some(_) => State::Streaming,
    }
}
