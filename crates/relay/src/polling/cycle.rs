//! The loop: claim, publish, mark.
//!
//! In a backlog the mark of one batch and the claim of the next share a transaction. Claims are
//! prolonged while Redis keeps a batch waiting; when a lease is lost nevertheless, the batch is
//! given up, because another relay may have published it.

use std::pin::pin;
use std::time::{Duration, Instant};

use outflow_event::Epoch;
use outflow_pgoutput::TupleValue;
use tokio_postgres::SimpleQueryRow;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::claims::{Claimed, Claims, not_utf8};
use super::config::PollingConfig;
use super::pace::Pace;
use super::statements::Key;
use super::wake_up::Bell;
use crate::batch::{Batch, Encoder};
use crate::config::{ConnectorConfig, EntryIdMode};
use crate::error::Error;
use crate::metrics;
use crate::offset::RedisOffsetStore;
use crate::outbox::RowMap;
use crate::publisher::Publisher;
use crate::sink::RedisSink;

/// Renewals within a lease.
const RENEWALS: u32 = 3;

/// One run over one connection.
pub(crate) struct Cycle {
    claims: Claims,
    publisher: Publisher<RedisSink, RedisOffsetStore>,
    encoder: Encoder,
    map: RowMap,
    batch: Batch,
    pace: Pace,
    lease: Duration,
    bell: Bell,
    batch_entries: usize,
    batch_bytes: usize,
    /// Numbers the batches.
    batches: u64,
}

impl Cycle {
    pub(crate) fn new(
        config: &ConnectorConfig,
        polling: &PollingConfig,
        claims: Claims,
        bell: Bell,
        publisher: Publisher<RedisSink, RedisOffsetStore>,
    ) -> Result<Self, Error> {
        let (source, sink) = (&config.source, &config.sink);
        let names = claims.columns().iter().map(String::as_str);
        let map = RowMap::new(&source.columns, names, source.max_payload)
            .map_err(|missing| Error::Refused(missing.to_string()))?;
        let (naming, mode) = (sink.naming.clone(), EntryIdMode::Auto);
        let interval = bell.interval(polling);
        Ok(Self {
            claims,
            publisher,
            encoder: Encoder::new(naming, mode, Epoch::default(), &config.connector),
            map,
            batch: Batch::new(&sink.redis),
            pace: Pace::new(interval, polling.max_interval),
            lease: polling.lease,
            bell,
            batch_entries: sink.batch_entries,
            batch_bytes: sink.batch_bytes,
            batches: 0,
        })
    }

    /// Publishes until `shutdown`. `unmarked` holds what is published and not yet marked: whatever
    /// ends this run, the next one begins with it.
    ///
    /// # Errors
    /// As for any statement and for publishing a batch.
    ///
    /// # Cancel safety
    /// Dropping the future is like a crash.
    pub(crate) async fn run(
        mut self,
        unmarked: &mut Vec<Key>,
        shutdown: &CancellationToken,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        self.mark(unmarked).await?;
        self.claims.give_back().await?;
        let result = self.work(unmarked, shutdown, give_up).await;
        if result.is_err() && !shutdown.is_cancelled() {
            return result;
        }
        // also when the last batch could not be published: others need not wait for the lease
        self.mark(unmarked).await?;
        let left = self.claims.give_back().await?;
        if left > 0 {
            info!(rows = left, "gave back what was claimed and not published");
        }
        result
    }

    async fn work(
        &mut self,
        unmarked: &mut Vec<Key>,
        shutdown: &CancellationToken,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        while !shutdown.is_cancelled() {
            let claimed = self.claim(unmarked).await?;
            fail::fail_point!("polling::claimed");
            let rows = claimed.keys.len();
            if rows > 0 {
                self.publish(&claimed, give_up).await?;
                *unmarked = claimed.keys;
                fail::fail_point!("polling::published");
            }
            let full = rows >= self.batch_entries || self.batch.bytes() >= self.batch_bytes / 2;
            let found = if full { self.batch_entries } else { rows };
            let pause = self.pace.after(found, self.batch_entries);
            self.batch.clear();
            if pause.is_zero() {
                continue;
            }
            self.mark(unmarked).await?;
            fail::fail_point!("polling::marked");
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.bell.rung() => self.pace.woken(),
            }
        }
        Ok(())
    }

    async fn mark(&self, unmarked: &mut Vec<Key>) -> Result<(), Error> {
        let marked = self.claims.mark(unmarked).await?;
        look_for_losses(unmarked.len(), marked);
        unmarked.clear();
        Ok(())
    }

    /// Marks what is to be marked and claims the next rows into the batch.
    async fn claim(&mut self, unmarked: &mut Vec<Key>) -> Result<Claimed, Error> {
        let Self { claims, encoder, map, batch, .. } = self;
        let on_row = |row: &SimpleQueryRow| take_in(map, encoder, batch, row);
        let claimed = claims
            .mark_and_claim(unmarked, self.batch_entries, self.batch_bytes, on_row)
            .await
            .inspect_err(|_| batch.clear())?;
        look_for_losses(unmarked.len(), claimed.marked);
        unmarked.clear();
        metrics::claimed(claimed.keys.len(), claimed.taken_over);
        if claimed.taken_over > 0 {
            info!(
                rows = claimed.taken_over,
                "taking over rows whose claim has lapsed: the relay that held them was killed or \
                 cut off, and may have published some of them"
            );
        }
        self.batches += 1;
        self.batch.claimed(self.batches);
        Ok(claimed)
    }

    async fn publish(
        &mut self,
        claimed: &Claimed,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        let mut until = claimed.since + self.lease;
        if Instant::now() >= until {
            return Err(Error::LeaseLost { rows: claimed.keys.len() });
        }
        let given_up = give_up.child_token();
        let mut publishing = pin!(self.publisher.publish(&self.batch, &given_up));
        loop {
            tokio::select! {
                result = &mut publishing => return result,
                () = tokio::time::sleep(self.lease / RENEWALS) => {}
            }
            let asked = Instant::now();
            match self.claims.renew().await {
                Ok(rows) if usize::try_from(rows).is_ok_and(|rows| rows >= claimed.keys.len()) => {
                    until = asked + self.lease;
                }
                Ok(_) => return lost(claimed, publishing.as_mut(), &given_up).await,
                Err(error) => debug!("claims were not renewed: {error}"),
            }
            if Instant::now() >= until {
                return lost(claimed, publishing.as_mut(), &given_up).await;
            }
        }
    }
}

/// Somebody else may publish these rows: they are not tried again. A try that is under way is
/// waited for, because what it brings about is unknown otherwise.
async fn lost(
    claimed: &Claimed,
    publishing: std::pin::Pin<&mut impl Future<Output = Result<(), Error>>>,
    given_up: &CancellationToken,
) -> Result<(), Error> {
    given_up.cancel();
    metrics::lease_lost();
    match publishing.await {
        Ok(()) => Ok(()),
        Err(_) => Err(Error::LeaseLost { rows: claimed.keys.len() }),
    }
}

fn look_for_losses(published: usize, marked: u64) {
    let lost = u64::try_from(published).unwrap_or(u64::MAX).saturating_sub(marked);
    if lost > 0 {
        warn!(
            rows = lost,
            "another relay took over rows while they were published: they are in the stream twice, \
             with the same event ids. Raise polling.lease if this is not a rare event"
        );
    }
}

fn take_in(
    map: &RowMap,
    encoder: &mut Encoder,
    batch: &mut Batch,
    row: &SimpleQueryRow,
) -> Result<(), Error> {
    let columns = map.width();
    for index in 0..columns {
        row.try_get(index).map_err(|_| not_utf8())?;
    }
    let values = || {
        (0..columns).map(|index| match row.try_get(index) {
            Ok(Some(text)) => TupleValue::Text(text.as_bytes()),
            _ => TupleValue::Null,
        })
    };
    let mut extra = Vec::new();
    match map.read(values(), &mut extra) {
        Ok(event) => encoder.event_of_unknown_commit(batch, &event),
        Err(fault) => {
            let event_id = map.event_id(values()).unwrap_or_default();
            let named = String::from_utf8_lossy(event_id);
            warn!(event_id = %named, "set aside as a dead letter of the connector: {fault}");
            encoder.dead_letter(batch, None, &fault, event_id, map.named(values()))?;
        }
    }
    Ok(())
}
