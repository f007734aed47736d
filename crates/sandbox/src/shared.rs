//! One server per test process.
//!
//! A test runner with a process per test gets a server per test, one with threads shares it. Either
//! way a database per test keeps tests apart, and the guardian removes what statics cannot drop.

use tokio::sync::OnceCell;

use crate::error::Result;
use crate::postgres::Postgres;
use crate::redis::Redis;

/// The PostgreSQL server of this process, started by the first caller. Use
/// [`Postgres::fresh_database`] for a database that no other test sees.
///
/// # Errors
/// As [`PostgresBuilder::start`](crate::PostgresBuilder::start); the next caller tries again.
pub async fn shared_postgres() -> Result<&'static Postgres> {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    SERVER.get_or_try_init(|| Postgres::builder().start()).await
}

/// The Redis server of this process, started by the first caller. Streams need names of their own
/// per test.
///
/// # Errors
/// As [`RedisBuilder::start`](crate::RedisBuilder::start); the next caller tries again.
pub async fn shared_redis() -> Result<&'static Redis> {
    static SERVER: OnceCell<Redis> = OnceCell::const_new();
    SERVER.get_or_try_init(|| Redis::builder().start()).await
}
