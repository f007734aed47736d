//! What became of it: counts, whether all has settled, the oracle's verdict.

use std::time::Duration;

use anyhow::{Context, bail};
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::{PATIENCE, READY_WITHIN, Relay, STREAM, Scene};
use crate::drill::course::Course;
use crate::drill::given::NAME;
use crate::drill::state::State;
use crate::oracle::collect::{Sources, examine};
use crate::oracle::verdict::Fault;
use crate::rig::CONSUMER;
use crate::rig::child::why;

const PARKED: &str = "SELECT count(*) FROM outflow.parked WHERE consumer_id = $1";
const EVERY: Duration = Duration::from_millis(50);
/// So many equal samples in a row count as settled: a late double would still arrive.
const CALM: u32 = 10;

/// How far everything is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sample {
    committed: u64,
    entries: u64,
    /// Applied, or set aside for good.
    done: u64,
    pending: u64,
}

/// Sessions of a look.
struct Eyes {
    producer: Client,
    consumer: Client,
    broker: MultiplexedConnection,
}

impl Eyes {
    async fn open(scene: &Scene) -> anyhow::Result<Self> {
        Ok(Self {
            producer: scene.producer_database().await?,
            consumer: scene.consumer_database().await?,
            broker: scene.broker().await?,
        })
    }

    async fn committed(&self) -> anyhow::Result<u64> {
        count(&self.producer, "SELECT count(*) FROM ledger.journal", &[]).await
    }

    async fn inbox(&self) -> anyhow::Result<u64> {
        let sql = "SELECT count(*) FROM outflow.inbox WHERE consumer_id = $1";
        count(&self.consumer, sql, &[&CONSUMER]).await
    }

    async fn dead(&self) -> anyhow::Result<u64> {
        let sql = "SELECT count(*) FROM outflow.dead_letter WHERE consumer_id = $1 AND event_id IS NOT NULL";
        count(&self.consumer, sql, &[&CONSUMER]).await
    }

    async fn pending(&mut self) -> u64 {
        // no group yet is no error: nothing is pending
        let pending: redis::RedisResult<(u64, redis::Value, redis::Value, redis::Value)> =
            redis::cmd("XPENDING").arg(STREAM).arg(CONSUMER).query_async(&mut self.broker).await;
        pending.map_or(0, |(pending, ..)| pending)
    }

    async fn sample(&mut self) -> anyhow::Result<Sample> {
        Ok(Sample {
            committed: self.committed().await?,
            entries: redis::cmd("XLEN").arg(STREAM).query_async(&mut self.broker).await?,
            done: self.inbox().await? + self.dead().await?,
            pending: self.pending().await,
        })
    }
}

async fn count(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> anyhow::Result<u64> {
    Ok(u64::try_from(client.query_one(sql, parameters).await?.try_get::<_, i64>(0)?)?)
}

impl Scene {
    /// What stands in the servers now.
    pub(in crate::drill) async fn state(&self) -> anyhow::Result<State> {
        let mut eyes = Eyes::open(self).await?;
        let ids: Vec<String> = self.event_ids(&mut eyes.broker).await?;
        let different: std::collections::HashSet<_> = ids.iter().collect();
        let sql = "SELECT coalesce(sum(journals), 0)::bigint, coalesce(sum(amount), 0)::bigint FROM turnover";
        let row = eyes.consumer.query_one(sql, &[]).await?;
        let sql =
            "SELECT count(*) FROM outflow.conflict WHERE consumer_id = $1 AND resolved_at IS NULL";
        Ok(State {
            committed: eyes.committed().await?,
            known: self.known(&eyes).await?,
            entries: ids.len() as u64,
            ids: different.len() as u64,
            pending: eyes.pending().await,
            parked: count(&eyes.consumer, PARKED, &[&CONSUMER]).await?,
            inbox: eyes.inbox().await?,
            effects: u64::try_from(row.try_get::<_, i64>(0)?)?,
            turnover: u64::try_from(row.try_get::<_, i64>(1)?)?,
            conflicts: count(&eyes.consumer, sql, &[&CONSUMER]).await?,
        })
    }

    /// Waits until the state is as wanted.
    pub(in crate::drill) async fn until(
        &self,
        otherwise: &'static str,
        wanted: impl Fn(&State) -> bool,
    ) -> anyhow::Result<()> {
        let wait = async {
            while !wanted(&self.state().await?) {
                tokio::time::sleep(EVERY).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, wait).await.context(otherwise)?
    }

    /// The event ids of all entries.
    async fn event_ids(&self, broker: &mut MultiplexedConnection) -> anyhow::Result<Vec<String>> {
        let entries: redis::streams::StreamRangeReply =
            redis::cmd("XRANGE").arg((STREAM, "-", "+")).query_async(broker).await?;
        let ids = entries.ids.iter().map(|entry| entry.get("event_id"));
        ids.collect::<Option<_>>().context("an entry has no event id")
    }

    /// How many events the relay knows to be published.
    async fn known(&self, eyes: &Eyes) -> anyhow::Result<u64> {
        if self.kind == Relay::Polling {
            let sql = "SELECT count(*) FROM outflow.outbox WHERE published_at IS NOT NULL";
            return count(&eyes.producer, sql, &[]).await;
        }
        let (_, said) = self.command(&["status", "--json"]).await?;
        let report: serde_json::Value = serde_json::from_str(&said)
            .with_context(|| format!("outflow status --json says `{said}`"))?;
        let count = report.pointer("/offset/found/published_count");
        Ok(count.and_then(serde_json::Value::as_u64).unwrap_or(0))
    }

    /// Waits until all that is committed by now is applied; returns how long it took.
    ///
    /// # Errors
    /// When nothing moves for [`PATIENCE`], with what status and the logs say.
    pub(in crate::drill) async fn caught_up(&mut self) -> anyhow::Result<Duration> {
        let since = Instant::now();
        let eyes = Eyes::open(self).await?;
        let wanted = eyes.committed().await?;
        let (mut last, mut moved) = (0, Instant::now());
        loop {
            let done = eyes.inbox().await? + eyes.dead().await?;
            if done >= wanted {
                return Ok(since.elapsed());
            }
            if done != last {
                (last, moved) = (done, Instant::now());
            }
            self.must_move(moved).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until everything that is committed has arrived, is acknowledged, and nothing moves any
    /// more.
    ///
    /// # Errors
    /// When it stands still for [`PATIENCE`] before, with what status and the logs say.
    pub(in crate::drill) async fn settled(&mut self) -> anyhow::Result<()> {
        let mut eyes = Eyes::open(self).await?;
        let (mut last, mut moved, mut calm) = (Sample::default(), Instant::now(), 0);
        loop {
            let sample = eyes.sample().await?;
            if sample == last {
                calm += 1;
            } else {
                (last, moved, calm) = (sample, Instant::now(), 0);
            }
            let arrived = sample.entries >= sample.committed && sample.done >= sample.committed;
            if arrived && sample.pending == 0 && calm >= CALM {
                return Ok(());
            }
            self.must_move(moved).await.with_context(|| format!("{sample:?}"))?;
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn must_move(&mut self, moved: Instant) -> anyhow::Result<()> {
        self.relay.check()?;
        self.consumer.check()?;
        if moved.elapsed() > PATIENCE {
            let why = why(&self.program, &[&self.relay, &self.consumer]).await;
            bail!("nothing has moved for {PATIENCE:?}:{why}");
        }
        Ok(())
    }

    /// Lets the oracle compare everything. Exactly the `expected` faults are none.
    pub(in crate::drill) async fn judge(
        &mut self,
        course: &mut Course,
        expected: &[(Fault, u64)],
    ) -> anyhow::Result<()> {
        let (producer, consumer) =
            (self.producer_database().await?, self.consumer_database().await?);
        let sources = Sources {
            producer: &producer,
            consumer: &consumer,
            redis: self.broker().await?,
            // given servers may hold streams of others
            keys: &format!("*{NAME}*"),
            consumer_id: CONSUMER,
            rules: self.rules,
        };
        let verdict = examine(sources, std::mem::take(&mut self.record)).await?;
        course.say(&format!(
            "committed {}, entries {}, inbox {}, projected {}",
            verdict.committed, verdict.entries, verdict.inbox, verdict.projected
        ));
        course.judge(verdict, expected);
        Ok(())
    }

    /// Settles, and lets the oracle compare everything: the end of most drills.
    pub(in crate::drill) async fn end(&mut self, course: &mut Course) -> anyhow::Result<()> {
        self.settled().await?;
        self.judge(course, &[]).await
    }

    /// Waits until an event that is committed now is applied.
    pub(in crate::drill) async fn delivers(&mut self, journal_id: &str) -> anyhow::Result<()> {
        self.post(journal_id, 1).await?;
        tokio::time::timeout(READY_WITHIN + PATIENCE, self.caught_up()).await??;
        Ok(())
    }
}
