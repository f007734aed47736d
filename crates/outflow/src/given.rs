//! Servers that were given by URL: what makes them worth keeping, and how everything that a run has
//! made there is removed. For `outflow compare` and `outflow drill`, whose own servers are throwaway
//! ones.
//!
//! A run begins the name of every database, slot and key with a name of its own; group roles belong
//! to the whole cluster and are told by what was there before.

use std::time::Duration;

use anyhow::{Context, bail};
use outflow_pgoutput::ConnectOptions;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client as RedisClient};
use tokio_postgres::Client;

use crate::failure::Refused;

/// Group roles that `outflow init` creates.
const ROLES: &str = "SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'outflow\\_%'";
/// A reply that takes longer is none. The client's own default, half a second, is short for a server
/// under load.
const REPLY_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether a slot is free.
const POLL: Duration = Duration::from_millis(50);
/// How often to look: a walsender ends within a moment of its client.
const LOOKS: u32 = 100;

/// A connection to this PostgreSQL.
pub(crate) async fn postgres(url: &str, application: &str) -> anyhow::Result<Client> {
    let mut options = ConnectOptions::parse(url).context("--postgres")?;
    options.default_application_name(application);
    crate::database::connect(&options).await
}

/// A connection to this Redis.
pub(crate) async fn redis(url: &str) -> anyhow::Result<MultiplexedConnection> {
    let client = RedisClient::open(url).context("--redis")?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(REPLY_WITHIN));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    connecting.await.with_context(|| format!("redis at {}", client.get_connection_info().addr()))
}

/// Refuses a server that no connector can read from.
pub(crate) async fn is_logical(sql: &Client) -> anyhow::Result<()> {
    let wal_level: String = sql.query_one("SHOW wal_level", &[]).await?.try_get(0)?;
    if wal_level == "logical" {
        return Ok(());
    }
    Err(Refused(format!(
        "the connector needs wal_level = logical, and this PostgreSQL has {wal_level}: run ALTER SYSTEM SET \
         wal_level = logical, and restart it"
    ))
    .into())
}

/// What makes a PostgreSQL worth keeping: databases, tables and slots whose names do not begin with
/// `ours`. Some of each.
pub(crate) async fn holds(sql: &Client, ours: &str) -> anyhow::Result<Vec<String>> {
    const FOUND: [&str; 3] = [
        "SELECT 'database ' || datname FROM pg_database WHERE NOT datistemplate \
         AND datname <> 'postgres' AND datname <> current_database() \
         AND NOT starts_with(datname, $1) ORDER BY 1 LIMIT 3",
        "SELECT 'table ' || n.nspname || '.' || c.relname FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') \
         AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' \
         AND NOT starts_with(c.relname, $1) ORDER BY 1 LIMIT 3",
        "SELECT 'replication slot ' || slot_name FROM pg_replication_slots \
         WHERE NOT starts_with(slot_name, $1) ORDER BY 1 LIMIT 3",
    ];
    let mut found = Vec::new();
    for query in FOUND {
        for row in sql.query(query, &[&ours]).await? {
            found.push(row.try_get(0)?);
        }
    }
    Ok(found)
}

/// What makes a Redis worth keeping: keys in any of the databases (`db0`) that count. Names the first one
/// that has some.
pub(crate) async fn keys(
    redis: &mut MultiplexedConnection,
    counts: impl Fn(&str) -> bool,
) -> anyhow::Result<Option<String>> {
    let info: String = redis::cmd("INFO").arg("keyspace").query_async(redis).await?;
    Ok(first_keyspace(&info, counts).map(|line| format!("keys in Redis ({line})")))
}

/// The first line of a database that counts.
fn first_keyspace(info: &str, counts: impl Fn(&str) -> bool) -> Option<&str> {
    let database = |line: &&str| line.split_once(':').is_some_and(|(name, _)| counts(name));
    info.lines().map(str::trim).filter(|line| line.starts_with("db")).find(database)
}

/// The group roles that are there.
pub(crate) async fn roles(sql: &Client) -> anyhow::Result<Vec<String>> {
    let rows = sql.query(ROLES, &[]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// Removes the group roles that were not there before.
pub(crate) async fn drop_roles(sql: &Client, before: &[String]) -> anyhow::Result<()> {
    for role in roles(sql).await?.iter().filter(|role| !before.contains(role)) {
        let role = crate::database::quote(role);
        sql.batch_execute(&format!("DROP ROLE {role}")).await.with_context(|| role)?;
    }
    Ok(())
}

/// Removes a database, with its slots and whoever is connected to it.
pub(crate) async fn drop_database(sql: &Client, name: &str) -> anyhow::Result<()> {
    const END: &str = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                       WHERE database = $1 AND active_pid IS NOT NULL";
    const DROP: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                        WHERE database = $1 AND active_pid IS NULL";
    const LEFT: &str = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
    for _ in 0..LOOKS {
        sql.query(END, &[&name]).await?;
        sql.query(DROP, &[&name]).await?;
        if sql.query_one(LEFT, &[&name]).await?.try_get::<_, i64>(0)? == 0 {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    let name = crate::database::quote(name);
    Ok(sql.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?)
}

/// Removes the keys that have `name` in theirs.
pub(crate) async fn remove_keys(
    redis: &mut MultiplexedConnection,
    name: &str,
) -> anyhow::Result<()> {
    let pattern = format!("*{name}*");
    let mut cursor = 0_u64;
    loop {
        let scan = ["MATCH", &pattern, "COUNT", "1000"];
        let (next, keys): (u64, Vec<String>) =
            redis::cmd("SCAN").arg(cursor).arg(&scan).query_async(redis).await?;
        if !keys.is_empty() {
            redis::cmd("UNLINK").arg(&keys).exec_async(redis).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// `url` with another database.
pub(crate) fn with_database(url: &str, database: &str) -> anyhow::Result<String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        bail!("--postgres takes a URL: postgres://user@host:5432/postgres");
    };
    let (rest, parameters) = match rest.find('?') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    Ok(format!("{scheme}://{authority}/{database}{parameters}"))
}

/// `url` with another host and port, and the same login, database and parameters.
pub(crate) fn with_address(url: &str, address: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let (authority, path) = match rest.find(['/', '?']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let login = authority.rfind('@').map_or("", |at| authority.split_at(at + 1).0);
    format!("{scheme}://{login}{address}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        let to = |url| with_database(url, "x").unwrap();
        assert_eq!(
            to("postgres://u:p@h:1/postgres?sslmode=require"),
            "postgres://u:p@h:1/x?sslmode=require"
        );
        assert_eq!(to("postgresql://h"), "postgresql://h/x");
        assert!(with_database("host=h dbname=d", "x").is_err());
    }

    #[test]
    fn a_proxy_keeps_login_and_database() {
        let through = |url| with_address(url, "127.0.0.1:7");
        assert_eq!(through("redis://127.0.0.1:6379"), "redis://127.0.0.1:7");
        assert_eq!(through("redis://me:p%40w@db/3?x=1"), "redis://me:p%40w@127.0.0.1:7/3?x=1");
    }

    #[test]
    fn an_empty_redis_has_no_keyspace() {
        const INFO: &str = "# Keyspace\r\ndb0:keys=2\r\ndb3:keys=1\r\n";
        assert_eq!(first_keyspace("# Keyspace\r\n", |_| true), None);
        assert_eq!(first_keyspace(INFO, |_| true), Some("db0:keys=2"));
        assert_eq!(first_keyspace(INFO, |name| name != "db0"), Some("db3:keys=1"));
    }
}
