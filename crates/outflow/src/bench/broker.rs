//! The Redis server of a case.

use std::time::Duration;

use outflow_sandbox::{Fsync, Redis};
use redis::InfoDict;
use redis::aio::MultiplexedConnection;

use super::stage::STREAM;

/// A server and a light connection to watch it.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) redis: Redis,
    pub(super) connection: MultiplexedConnection,
    aof: bool,
}

impl Broker {
    /// Starts a server; AOF with a sync every second if asked for, on the disk.
    pub(super) async fn start(aof: bool) -> anyhow::Result<Self> {
        let mut builder = Redis::builder();
        if aof {
            // a rewrite would fall into some rounds and not into others
            builder = builder
                .on_disk()
                .appendonly(Fsync::EverySec)
                .setting("auto-aof-rewrite-percentage", 0);
        }
        let redis = builder.start().await?;
        let connection = redis.connect().await?;
        Ok(Self { redis, connection, aof })
    }

    pub(super) fn url(&self) -> String {
        self.redis.url()
    }

    pub(super) fn version(&self) -> String {
        self.redis.version().to_owned()
    }

    /// The server's process id.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.redis.pid().ok_or_else(|| anyhow::anyhow!("redis-server has ended"))
    }

    /// Entries in the stream.
    pub(super) async fn length(&mut self) -> anyhow::Result<u64> {
        Ok(redis::cmd("XLEN").arg(STREAM).query_async(&mut self.connection).await?)
    }

    /// Removes everything, from the append-only file too.
    pub(super) async fn clear(&mut self) -> anyhow::Result<()> {
        redis::cmd("FLUSHALL").arg("SYNC").exec_async(&mut self.connection).await?;
        if !self.aof {
            return Ok(());
        }
        redis::cmd("BGREWRITEAOF").exec_async(&mut self.connection).await?;
        loop {
            let info: InfoDict =
                redis::cmd("INFO").arg("persistence").query_async(&mut self.connection).await?;
            let busy = |key| info.get::<u8>(key).is_some_and(|flag| flag != 0);
            if !busy("aof_rewrite_in_progress") && !busy("aof_rewrite_scheduled") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
