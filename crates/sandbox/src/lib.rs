//! Throwaway PostgreSQL and Redis servers, from the binaries on this machine, for the demo, tests,
//! drills and the comparison; with the faults that those need.
//!
//! - [`Postgres`] and [`Redis`]: start, stop, kill, start again on the same port; a folder each
//! - [`RedisCluster`], [`RedisBuilder::sentinel_of`], [`PostgresBuilder::standby_of`]: failover
//! - [`ResidentRedis`]: a Redis in a folder of its user's, over several processes
//! - [`Proxy`]: a TCP proxy that pauses, withholds replies, cuts and refuses
//! - [`logs::Capture`]: fails a test on a WARN or ERROR that it did not expect
//! - [`shared_postgres`], [`shared_redis`]: one server per test process
//!
//! Nothing outlives the owner, whatever ends it: see `daemon.rs`; but for [`ResidentRedis`], which is
//! meant to. Servers listen on 127.0.0.1 and trust every local user; they are no place for data that
//! matters.
//!
//! Existing crates do part of this: postgresql_embedded downloads its binaries, testcontainers needs
//! Docker, pgtemp neither restarts a server in place nor survives the SIGKILL of its owner. None
//! covers Redis, so both servers share one small process module here.
//!
//! Binaries come from `OUTFLOW_PG_BIN` and `OUTFLOW_REDIS_BIN` (folders), else from PATH, else from
//! where Debian, Red Hat and Homebrew put them. Folders of servers that are not durable lie in
//! `OUTFLOW_SANDBOX_DIR`, else in memory where there is plenty, else where TMPDIR says.

mod account;
mod binaries;
mod cache;
mod daemon;
mod error;
pub mod logs;
mod place;
mod port;
mod postgres;
mod proxy;
mod redis;
mod shared;
mod template;
mod tree;

pub use self::error::{Error, Result};
pub use self::postgres::{Database, Postgres, PostgresBuilder, Shutdown};
pub use self::proxy::{Proxy, ProxyBuilder};
pub use self::redis::{
    Found, Fsync, Redis, RedisBuilder, RedisCluster, RedisClusterBuilder, ResidentRedis,
};
pub use self::shared::{shared_postgres, shared_redis};
