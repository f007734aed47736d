//! Acknowledges what is committed, and measures how far the group is.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outflow_broker::Connection;
use outflow_event::EntryId;
use redis::RedisResult;
use tokio::sync::mpsc;

use crate::backoff::Backoff;
use crate::broker::{self, Broker};
use crate::config::ConsumerConfig;
use crate::consumer::Shared;
use crate::delivery::{Batch, StreamIds};
use crate::error::{Error, Retry};
use crate::status::Component;

/// Entries of one XACK at most: Redis works on one command at a time.
const CHUNK: usize = 10_000;

pub(crate) struct Acker {
    shared: Arc<Shared>,
    broker: Broker,
    redis: Option<Connection>,
    /// Said once that measuring is not allowed.
    warned: bool,
}

impl Acker {
    pub(crate) fn new(shared: Arc<Shared>, broker: Broker) -> Self {
        Self { shared, broker, redis: None, warned: false }
    }

    /// Acknowledges until the applier has ended and its last batch is acknowledged. Returns an
    /// error only if waiting cannot help.
    pub(crate) async fn run(mut self, mut acks: mpsc::Receiver<Batch>) -> Result<(), Error> {
        let mut report = tokio::time::interval(self.shared.config.report_interval);
        report.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // its deliveries are dropped here, where nothing waits for it
            let batch = tokio::select! {
                biased;
                batch = acks.recv() => batch.map(|batch| batch.ids),
                _ = report.tick() => {
                    self.measure().await;
                    continue;
                }
            };
            let Some(batch) = batch else { break };
            let mut batches = vec![batch];
            while let Ok(batch) = acks.try_recv() {
                batches.push(batch.ids);
            }
            self.acknowledge(&batches).await?;
            for batch in &batches {
                self.shared.in_flight.remove(batch);
            }
        }
        self.measure().await;
        Ok(())
    }

    /// Acknowledges `batches`, however often it takes. They are committed: giving up would only
    /// make them come again as duplicates.
    async fn acknowledge(&mut self, batches: &[Arc<Vec<StreamIds>>]) -> Result<(), Error> {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.retry_first, config.retry_longest);
        loop {
            let error = match self.try_acknowledge(batches).await {
                Ok(acknowledged) => {
                    fail::fail_point!("inbox::after_ack");
                    self.count(batches, acknowledged);
                    self.shared.board.moving(Component::Acker);
                    return Ok(());
                }
                Err(error) => broker::failed(error).transient()?,
            };
            self.redis = None;
            self.shared.board.waiting(Component::Acker, &error.to_string());
            // the deadline of the stop ends it if Redis does not come back
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Everything in one round trip; in a cluster in one for each slot, side by side.
    async fn try_acknowledge(&mut self, batches: &[Arc<Vec<StreamIds>>]) -> RedisResult<u64> {
        let config = self.shared.config.clone();
        let connection = self.connection().await?.clone();
        let all = batches.iter().flat_map(|batch| batch.iter());
        let keys = config.streams.iter().map(String::as_str).enumerate();
        let acknowledged = self.broker.together(keys).into_iter().map(|streams| {
            let ids = all.clone().filter(move |ids| streams.contains(&ids.stream));
            acknowledge(connection.clone(), &config, ids)
        });
        let counts = join_all(acknowledged.collect::<Vec<_>>()).await;
        counts.into_iter().sum()
    }

    fn count(&self, batches: &[Arc<Vec<StreamIds>>], acknowledged: u64) {
        let all: usize = batches.iter().flat_map(|batch| batch.iter()).map(|s| s.ids.len()).sum();
        let all = u64::try_from(all).unwrap_or(u64::MAX);
        let board = &self.shared.board;
        board.metrics.acknowledged.increment(acknowledged);
        // somebody acknowledged them already, or the group is another one: the work is committed
        board.metrics.ack_unknown.increment(all.saturating_sub(acknowledged));
        board.count(|counts| counts.acknowledged += acknowledged);
    }

    /// Measures lag and the end of what is done for certain. Best effort: the next tick is near.
    async fn measure(&mut self) {
        let measured = async {
            let config = self.shared.config.clone();
            let redis = self.connection().await?;
            let mut done = vec![EntryId::ZERO; config.streams.len()];
            let mut lag = Some(0);
            for (stream, done) in config.streams.iter().zip(&mut done) {
                match broker::progress(redis, stream, &config.consumer_id).await? {
                    Some(progress) => {
                        *done = progress.done;
                        lag = lag.zip(progress.lag).map(|(sum, more)| sum + more);
                    }
                    None => lag = None,
                }
            }
            RedisResult::Ok((done, lag))
        };
        match measured.await {
            Ok((done, lag)) => {
                self.shared.raise_resume(&done);
                self.shared.board.lag(lag);
            }
            Err(error) => {
                self.redis = None;
                let error = broker::failed(error);
                if error.retry() == Retry::Fatal && !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!("lag and position are not measured: {error}");
                } else {
                    tracing::debug!("lag was not measured: {error}");
                }
            }
        }
    }

    async fn connection(&mut self) -> RedisResult<&mut Connection> {
        if self.redis.is_none() {
            self.redis = Some(self.broker.connect(Duration::ZERO).await?);
        }
        self.redis.as_mut().ok_or_else(|| {
            redis::RedisError::from((redis::ErrorKind::Io, "no connection to Redis"))
        })
    }
}

/// XACK of entries whose streams may stand in one pipeline. Returns how many were pending.
async fn acknowledge(
    mut connection: Connection,
    config: &ConsumerConfig,
    ids: impl Iterator<Item = &StreamIds>,
) -> RedisResult<u64> {
    let mut pipe = redis::pipe();
    for StreamIds { stream, ids, .. } in ids {
        let Some(key) = config.streams.get(*stream) else { continue };
        for ids in ids.chunks(CHUNK) {
            let command = pipe.cmd("XACK").arg(key).arg(&config.consumer_id);
            for id in ids {
                command.arg(id.to_string());
            }
        }
    }
    if pipe.is_empty() {
        return Ok(0);
    }
    let counts: Vec<u64> = pipe.query_async(&mut connection).await?;
    Ok(counts.iter().sum())
}
