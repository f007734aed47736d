//! Servers that were given: `--postgres URL --redis URL`.
//!
//! Everything happens in a database that is created for the run and dropped after it, and under
//! keys that carry its name. The load is real, so servers that hold anything are refused unless the
//! user says that they may be shared.

use anyhow::{Context, bail};
use outflow_pgoutput::ConnectOptions;
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::failure::Refused;

/// Begins the name of every database, slot, connector and key of a run.
const NAME: &str = "outflow_compare";
/// Group roles that `outflow init` creates; roles belong to the whole cluster.
const ROLES: &str = "SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'outflow\\_%'";

/// A database and a name of this run on servers that were given.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    admin_url: String,
    pub(crate) database_url: String,
    pub(crate) redis_url: String,
    /// Of this run: its database has it, and every slot, connector and key begins with it.
    pub(crate) name: String,
    /// Roles that were there before.
    roles: Vec<String>,
}

impl Given {
    /// Looks at the servers and creates the database.
    ///
    /// # Errors
    /// A refusal when they hold anything and `shared` is not set, or cannot do logical replication.
    pub(super) async fn prepare(postgres: &str, redis: &str, shared: bool) -> anyhow::Result<Self> {
        let name = format!("{NAME}_{:08x}", rand::random::<u32>());
        let given = Self {
            admin_url: postgres.to_owned(),
            database_url: with_database(postgres, &name)?,
            redis_url: redis.to_owned(),
            name,
            roles: Vec::new(),
        };
        let sql = given.admin().await?;
        let mut found = holds(&sql).await?;
        found.extend(keys(&mut given.redis().await?).await?);
        if !found.is_empty() && !shared {
            return Err(Refused(format!(
                "these servers are not obviously disposable: {}. A comparison loads them to their limits; it \
                 touches nothing but a database and keys of its own. Name others, or add --allow-shared",
                found.join("; ")
            ))
            .into());
        }
        let wal_level: String = sql.query_one("SHOW wal_level", &[]).await?.try_get(0)?;
        if wal_level != "logical" {
            return Err(Refused(format!(
                "the connector needs wal_level = logical, and this PostgreSQL has {wal_level}: run ALTER \
                 SYSTEM SET wal_level = logical, and restart it"
            ))
            .into());
        }
        let roles = sql.query(ROLES, &[]).await?;
        let roles = roles.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        sql.batch_execute(&format!("CREATE DATABASE {}", given.name))
            .await
            .context("the role needs CREATEDB")?;
        Ok(Self { roles, ..given })
    }

    /// Begins every stream's key.
    pub(crate) fn prefix(&self) -> String {
        format!("{}:", self.name)
    }

    /// A connection to the database of this run.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.database_url).await
    }

    async fn admin(&self) -> anyhow::Result<Client> {
        connect(&self.admin_url).await
    }

    async fn redis(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = redis::Client::open(self.redis_url.as_str()).context("--redis")?;
        client.get_multiplexed_async_connection().await.context("--redis")
    }

    /// Removes everything that the run has made.
    ///
    /// # Errors
    /// Says what is left.
    pub(super) async fn clean_up(&self) -> anyhow::Result<()> {
        let left = || format!("database {0}, its slots and the keys *{0}* are left", self.name);
        let sql = self.admin().await.with_context(left)?;
        let drop_slots = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                          WHERE database = $1 AND active_pid IS NOT NULL";
        sql.query(drop_slots, &[&self.name]).await.with_context(left)?;
        const DROP: &str = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                            WHERE database = $1 AND active_pid IS NULL";
        const LEFT: &str = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
        for _ in 0..100 {
            sql.query(DROP, &[&self.name]).await.with_context(left)?;
            if sql.query_one(LEFT, &[&self.name]).await?.try_get::<_, i64>(0)? == 0 {
                break;
            }
            tokio::time::sleep(super::POLL).await;
        }
        let database = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        sql.batch_execute(&database).await.with_context(left)?;
        for row in sql.query(ROLES, &[]).await? {
            let role: String = row.try_get(0)?;
            if !self.roles.contains(&role) {
                let role = crate::database::quote(&role);
                sql.batch_execute(&format!("DROP ROLE {role}")).await.with_context(|| role)?;
            }
        }
        remove_keys(&mut self.redis().await?, &self.name).await
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let mut options = ConnectOptions::parse(url).context("--postgres")?;
    options.default_application_name("outflow compare");
    crate::database::connect(&options).await
}

/// What makes a PostgreSQL worth keeping.
async fn holds(sql: &Client) -> anyhow::Result<Vec<String>> {
    const FOUND: [&str; 3] = [
        "SELECT 'database ' || datname FROM pg_database WHERE NOT datistemplate \
         AND datname <> 'postgres' AND datname <> current_database() \
         AND datname NOT LIKE 'outflow\\_compare\\_%' ORDER BY 1 LIMIT 3",
        "SELECT 'table ' || n.nspname || '.' || c.relname FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') \
         AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' ORDER BY 1 LIMIT 3",
        "SELECT 'replication slot ' || slot_name FROM pg_replication_slots ORDER BY 1 LIMIT 3",
    ];
    let mut found = Vec::new();
    for query in FOUND {
        for row in sql.query(query, &[]).await? {
            found.push(row.try_get(0)?);
        }
    }
    Ok(found)
}

/// What makes a Redis worth keeping: keys in any of its databases.
async fn keys(redis: &mut MultiplexedConnection) -> anyhow::Result<Option<String>> {
    let info: String = redis::cmd("INFO").arg("keyspace").query_async(redis).await?;
    Ok(first_keyspace(&info).map(|line| format!("keys in Redis ({line})")))
}

fn first_keyspace(info: &str) -> Option<&str> {
    info.lines().map(str::trim).find(|line| line.starts_with("db"))
}

async fn remove_keys(redis: &mut MultiplexedConnection, name: &str) -> anyhow::Result<()> {
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
fn with_database(url: &str, database: &str) -> anyhow::Result<String> {
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
    fn an_empty_redis_has_no_keyspace() {
        assert_eq!(first_keyspace("# Keyspace\r\n"), None);
        assert_eq!(first_keyspace("# Keyspace\r\ndb3:keys=1\r\n"), Some("db3:keys=1"));
    }
}
