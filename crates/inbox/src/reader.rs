//! Reads batches: own pending entries first, then new ones, and from time to time what other
//! workers left behind.

mod fence;
mod gaps;
mod pending;
mod spread;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outflow_broker::{Connection, Replies, Reply};
use outflow_event::EntryId;
use redis::RedisResult;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::fence::Answer;
use self::gaps::Known;
use crate::backoff::Backoff;
use crate::broker::{self, Broker, Verdict};
use crate::config::ConsumerConfig;
use crate::consumer::Shared;
use crate::database::Connect;
use crate::delivery::{Batch, Delivery, MalformedEntry, StreamIds};
use crate::error::Error;
use crate::groups;
use crate::lease::Held;
use crate::lost::{self, Place};
use crate::pace::Pace;
use crate::reply::{self, Content, Record};
use crate::statements::InboxRows;
use crate::status::Component;

/// How long to wait for a stream before looking again.
const STANDBY: Duration = Duration::from_secs(1);
/// Entries read from each stream, by its index.
type Read = Vec<(usize, Vec<Record>)>;

pub(crate) struct Reader {
    shared: Arc<Shared>,
    broker: Broker,
    connect: Connect,
    batches: mpsc::Sender<Batch>,
    stop: CancellationToken,
    pace: Pace,
    claim: Claim,
    /// The streams of the read that is under way.
    held: Vec<Held>,
    /// What is known of gaps, by stream.
    gaps: Vec<Known>,
}

/// Where the round over the pending lists of all streams stands.
struct Claim {
    due: Instant,
    /// `None` between two rounds.
    at: Option<(usize, EntryId)>,
}

/// Why a connection's reading ended.
enum End {
    /// Stop was asked for, or nobody takes batches any more.
    Stopped,
    Failed(Error),
    /// Redis knows the stream or the group no longer.
    GroupGone(Error),
}

impl From<redis::RedisError> for End {
    fn from(error: redis::RedisError) -> Self {
        match broker::verdict(&error) {
            Verdict::GroupGone => Self::GroupGone(broker::failed(error)),
            Verdict::Reconnect | Verdict::Fatal(_) => Self::Failed(broker::failed(error)),
        }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Reader {
    pub(crate) fn new(
        shared: Arc<Shared>,
        broker: Broker,
        connect: Connect,
        batches: mpsc::Sender<Batch>,
        stop: CancellationToken,
    ) -> Self {
        let config = &shared.config;
        let pace = Pace::new(config.batch, config.batch_bytes, config.streams.len());
        let claim = Claim { due: Instant::now() + config.claim_interval, at: None };
        let gaps = vec![Known::default(); config.streams.len()];
        Self { shared, broker, connect, batches, stop, pace, claim, held: Vec::new(), gaps }
    }

    fn config(&self) -> &ConsumerConfig {
        &self.shared.config
    }

    /// Reads until it is stopped. Returns an error only if waiting cannot help.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.config().retry_first, self.config().retry_longest);
        while !self.stop.is_cancelled() {
            let began = Instant::now();
            let end = match self.read_on_one_connection().await {
                Ok(never) => match never {},
                Err(end) => end,
            };
            if began.elapsed() > self.config().retry_longest {
                backoff.reset();
            }
            let error = match end {
                End::Stopped => break,
                End::Failed(error) => error.transient()?,
                End::GroupGone(error) => error,
            };
            self.shared.board.waiting(Component::Reader, &error.to_string());
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.stop.cancelled() => break,
            }
        }
        Ok(())
    }

    async fn read_on_one_connection(&mut self) -> Result<Infallible, End> {
        let mut redis = self.until_stopped(self.broker.connect(self.config().block)).await??;
        let resume = {
            let rebuilt = |_: &str| self.shared.board.metrics.groups_rebuilt.increment(1);
            let measured = self.shared.resume();
            let ensured =
                groups::ensure(self.config(), &self.connect, &mut redis, &measured, rebuilt);
            self.until_stopped(ensured).await??
        };
        self.shared.raise_resume(&resume);
        self.shared.board.moving(Component::Reader);
        self.gaps.iter_mut().for_each(Known::forget);
        // before anything is read: what is read moves the group on, over what is missing
        self.look_for_gaps(&mut redis).await;
        // a connection that was lost may have taken replies with it: what they held is pending
        self.shared.leases.take_over_again();
        self.shared.leases.want();
        let client_id = redis::cmd("CLIENT").arg("ID").query_async(&mut redis).await.ok();
        if self.shared.leases.is_shared() {
            self.held = self.shared.leases.held();
            self.read_history(&mut redis).await?;
        }
        loop {
            let permit = self.room().await?;
            self.held = self.shared.leases.begin_read(self.config().block);
            let read = self.read_once(&mut redis, client_id, permit).await;
            self.shared.leases.read();
            read?;
            if self.stop.is_cancelled() {
                return Err(End::Stopped);
            }
        }
    }

    /// One read: what is pending in a stream that has just been taken, what others left behind, or
    /// what is new.
    async fn read_once(
        &mut self,
        redis: &mut Connection,
        client_id: Option<i64>,
        permit: mpsc::OwnedPermit<Batch>,
    ) -> Result<(), End> {
        let leases = &self.shared.leases;
        if self.held.is_empty() {
            return self.until_stopped(leases.changed(STANDBY)).await;
        }
        let untouched = |held: &&Held| !leases.is_shared() && !leases.is_taken_over(held.0);
        if let Some(held) = self.held.iter().find(untouched).copied() {
            return self.take_over(redis, permit, held).await;
        }
        if let Some((stream, cursor)) = self.next_claim() {
            let idle = self.config().claim_min_idle;
            let (next, records) = self.claim(redis, stream, cursor, idle).await?;
            if next == EntryId::ZERO {
                self.reap(redis, stream).await;
            }
            self.claim_went_on(stream, next);
            if self.claim.at.is_none() {
                self.look_for_gaps(redis).await;
            }
            return self.send_again(redis, permit, stream, records).await;
        }
        let answer = self.read_new(redis, client_id).await?;
        let read = self.in_order(answer);
        for (stream, records) in &read {
            if let Some(known) = self.gaps.get_mut(*stream) {
                known.read(records.len());
            }
        }
        let batch = self.batch(redis, read).await?;
        self.send(permit, batch);
        Ok(())
    }

    /// Everything that this worker was given and has not acknowledged, page by page.
    async fn read_history(&mut self, redis: &mut Connection) -> Result<(), End> {
        for stream in 0..self.config().streams.len() {
            let mut cursor = EntryId::ZERO;
            loop {
                let permit = self.room().await?;
                let Some(key) = self.config().streams.get(stream) else { break };
                let mut command = self.xreadgroup();
                command.arg("STREAMS").arg(key).arg(cursor.to_string());
                let in_work = self.shared.in_flight.now();
                let reply: redis::Value = command.query_async(redis).await?;
                let read = self.by_index(&Reply::from(&reply)).await?;
                let mut records: Vec<_> =
                    read.into_iter().flat_map(|(_, records)| records).collect();
                let Some(last) = records.last() else { break };
                cursor = last.id;
                records.retain(|record| !in_work.contains(stream, record.id));
                self.send_again(redis, permit, stream, records).await?;
            }
        }
        Ok(())
    }

    async fn read_new(
        &self,
        redis: &mut Connection,
        client_id: Option<i64>,
    ) -> Result<Answer, End> {
        fail::fail_point!("inbox::before_read");
        let until_claim = self.claim.due.saturating_duration_since(Instant::now());
        // BLOCK 0 would wait for ever
        let block = self.config().block.min(until_claim).max(Duration::from_millis(1));
        let keys = self.held.iter().filter_map(|(stream, _)| {
            Some((*stream, self.config().streams.get(*stream)?.as_str()))
        });
        let mut together = self.broker.together(keys);
        if together.len() > 1 {
            return self.poll(redis, &together, block).await;
        }
        let streams = together.pop().unwrap_or_default();
        let asked = self.ask_for(&streams, Some(block));
        let reply = redis.replies(&asked);
        tokio::pin!(reply);
        let replies: RedisResult<Replies> = tokio::select! {
            biased;
            reply = &mut reply => reply,
            () = self.stop.cancelled() => {
                // the reply is waited for: entries in it are applied, not left pending
                tokio::select! {
                    reply = reply => reply,
                    never = self.unblock(client_id) => match never {},
                }
            }
        };
        fail::fail_point!("inbox::after_read");
        self.answer(&streams, &replies?).await
    }

    /// Ends the blocking read from another connection, for as long as it takes: the first try may
    /// overtake the read. Where it is not possible, the read ends by itself after `block`.
    async fn unblock(&self, client_id: Option<i64>) -> Infallible {
        let mut redis = self.broker.connect(Duration::ZERO).await.ok().zip(client_id);
        while let Some((connection, client_id)) = redis.as_mut() {
            let mut command = redis::cmd("CLIENT");
            command.arg("UNBLOCK").arg(*client_id);
            if let Err(error) = command.exec_async(connection).await {
                tracing::debug!("the blocking read ends by itself: {error}");
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        std::future::pending().await
    }

    /// Which pending list to look at now, if it is time.
    fn next_claim(&mut self) -> Option<(usize, EntryId)> {
        if self.claim.at.is_none() && Instant::now() >= self.claim.due {
            self.claim.at = Some((0, EntryId::ZERO));
        }
        self.claim.at
    }

    fn xreadgroup(&self) -> redis::Cmd {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.config().consumer_id).arg(&self.shared.me);
        command.arg("COUNT").arg(self.pace.count());
        command
    }

    async fn by_index(&self, reply: &Reply<'_>) -> Result<Read, End> {
        let index = |key: &[u8]| {
            let found = self.config().streams.iter().position(|stream| stream.as_bytes() == key);
            found.ok_or_else(|| reply::unexpected("XREADGROUP"))
        };
        let read = reply::read(reply).await?;
        Ok(read
            .into_iter()
            .map(|(key, records)| Ok((index(key)?, records)))
            .collect::<RedisResult<_>>()?)
    }

    /// Makes a batch of what was read, leaving out what is in work already.
    async fn batch(&mut self, redis: &mut Connection, read: Read) -> Result<Batch, End> {
        let mut batch = Batch::default();
        let mut all_ids = Vec::with_capacity(read.len());
        let mut bytes = 0;
        let mut lost = Vec::new();
        for (stream, records) in read {
            let Some(key) = self.shared.streams.get(stream) else { continue };
            let mut ids = Vec::with_capacity(records.len());
            for Record { id, content } in records {
                if self.shared.in_flight.contains(stream, id) {
                    continue;
                }
                ids.push(id);
                match content {
                    Content::Event(entry, size) => {
                        bytes += size;
                        let mut delivery = Delivery::new(key.clone(), *entry);
                        delivery.ordinal = batch.deliveries.len();
                        batch.deliveries.push(delivery);
                    }
                    Content::Malformed(reason) => {
                        let raw = Vec::new();
                        batch.malformed.push(MalformedEntry { stream, id, raw, reason });
                    }
                    Content::Gone => lost.push(id),
                }
            }
            if !lost.is_empty() {
                self.report_lost(key, &lost).await;
                lost.clear();
            }
            if !ids.is_empty() {
                let token = self.held.iter().find(|held| held.0 == stream);
                all_ids.push(StreamIds { stream, token: token.map_or(-1, |held| held.1), ids });
            }
        }
        self.pace.seen(batch.deliveries.len(), bytes);
        batch.ids = Arc::new(all_ids);
        batch.rows = InboxRows::of(&batch.deliveries)
            .map_err(|source| Error::Database { source, advice: Some("this is a bug") })?;
        if !batch.malformed.is_empty() {
            broker::read_raw(redis, &self.config().streams, &mut batch.malformed).await?;
        }
        Ok(batch)
    }

    async fn report_lost(&self, stream: &str, lost: &[EntryId]) {
        let place = Place { consumer_id: &self.config().consumer_id, stream };
        let number = lost::pending(&self.connect, place, lost).await;
        self.shared.board.lost(number);
    }

    /// Waits until the applier can take another batch: only then is it read.
    async fn room(&self) -> Result<mpsc::OwnedPermit<Batch>, End> {
        let permit = self.until_stopped(self.batches.clone().reserve_owned()).await?;
        permit.map_err(|_| End::Stopped)
    }

    fn send(&self, permit: mpsc::OwnedPermit<Batch>, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        self.shared.in_flight.add(batch.ids.clone());
        permit.send(batch);
    }

    async fn until_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(End::Stopped),
            done = work => Ok(done),
        }
    }
}
