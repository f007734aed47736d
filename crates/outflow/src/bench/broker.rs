//! The Redis server of a case.

use std::time::Duration;

use anyhow::{Context, ensure};
use outflow_sandbox::{Fsync, Proxy, Redis};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, InfoDict, IntoConnectionInfo};

use super::stage::AGGREGATE_TYPE;
use crate::given::with_address;

/// Begins every stream's key, as `sink.stream_prefix` does by default.
const PREFIX: &str = "outflow:";

/// A server and a light connection to watch it.
#[derive(Debug)]
pub(super) struct Broker {
    /// None: somebody else's server.
    redis: Option<Redis>,
    url: String,
    pub(super) connection: MultiplexedConnection,
    aof: bool,
    /// `sink.stream_prefix` of the relays.
    pub(super) prefix: String,
    version: String,
    /// Stands between the relays and the server, where their way to it is to fail.
    proxy: Option<Proxy>,
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
        let (connection, version) = (redis.connect().await?, redis.version().to_owned());
        let (url, prefix) = (redis.url(), PREFIX.to_owned());
        Ok(Self { redis: Some(redis), url, connection, aof, prefix, version, proxy: None })
    }

    /// Somebody else's server; keys under `prefix` are this run's, and removed here.
    pub(super) async fn given(url: &str, prefix: &str) -> anyhow::Result<Self> {
        let client = redis::Client::open(url).context("the URL of Redis is not valid")?;
        let mut connection = client.get_multiplexed_async_connection().await.context("redis")?;
        let info: InfoDict =
            redis::cmd("INFO").arg("server").query_async(&mut connection).await.context("redis")?;
        let version = info.get("redis_version").unwrap_or_default();
        let (url, prefix) = (url.to_owned(), prefix.to_owned());
        let mut broker =
            Self { redis: None, url, connection, aof: false, prefix, version, proxy: None };
        redis::cmd("UNLINK").arg(broker.stream()).exec_async(&mut broker.connection).await?;
        Ok(broker)
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// Where the relays find it.
    pub(super) fn relay_url(&self) -> String {
        match &self.proxy {
            Some(proxy) => with_address(&self.url, &proxy.address().to_string()),
            None => self.url.clone(),
        }
    }

    /// Relays that are started from now on go through a proxy that may fail them.
    pub(super) async fn interrupt_by_proxy(&mut self) -> anyhow::Result<()> {
        let info = self.url.as_str().into_connection_info()?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            anyhow::bail!("an outage needs a Redis that is reached by TCP without TLS")
        };
        self.proxy = Some(Proxy::to(format!("{host}:{port}")).start().await?);
        Ok(())
    }

    /// Cuts the relays off until [`Self::restore`].
    pub(super) async fn cut_off(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.refuse().await;
        }
    }

    /// The relays' commands arrive, and the replies do not, until [`Self::restore`].
    pub(super) fn withhold_replies(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.swallow_replies();
        }
    }

    /// Relays that connect from now on are served; those that were connected are cut off.
    pub(super) fn restore(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.cut();
            proxy.resume();
        }
    }

    pub(super) fn version(&self) -> String {
        self.version.clone()
    }

    /// The stream of every event.
    pub(super) fn stream(&self) -> String {
        format!("{}{AGGREGATE_TYPE}", self.prefix)
    }

    /// The server itself, which must be this run's own.
    pub(super) fn own(&self) -> anyhow::Result<&Redis> {
        self.redis.as_ref().context("this Redis was given and is not to be stopped")
    }

    /// The server's process id.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.own()?.pid().ok_or_else(|| anyhow::anyhow!("redis-server has ended"))
    }

    /// CPU time of the server so far by its own account, which is exact to the microsecond
    /// (Redis documentation, INFO, section CPU).
    pub(super) async fn cpu(&mut self) -> anyhow::Result<Duration> {
        let info: InfoDict =
            redis::cmd("INFO").arg("cpu").query_async(&mut self.connection).await?;
        let seconds = |key| info.get::<f64>(key).unwrap_or(0.0).max(0.0);
        Ok(Duration::from_secs_f64(seconds("used_cpu_sys") + seconds("used_cpu_user")))
    }

    /// Entries in the stream.
    pub(super) async fn length(&mut self) -> anyhow::Result<u64> {
        Ok(redis::cmd("XLEN").arg(self.stream()).query_async(&mut self.connection).await?)
    }

    /// The newest entry's id.
    pub(super) async fn newest(&mut self) -> anyhow::Result<String> {
        let stream = self.stream();
        let info: redis::streams::StreamInfoStreamReply =
            redis::cmd("XINFO").arg("STREAM").arg(stream).query_async(&mut self.connection).await?;
        Ok(info.last_generated_id)
    }

    /// Removes everything, from the append-only file too.
    pub(super) async fn clear(&mut self) -> anyhow::Result<()> {
        ensure!(self.redis.is_some(), "a Redis that was given is not emptied");
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
