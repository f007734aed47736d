//! A PostgreSQL that was given.

use anyhow::{Context, bail};
use outflow_pgoutput::ConnectOptions;
use tokio_postgres::Client;
use tokio_postgres::config::Host;

use super::{MARK, NAME, must_be_alone, not_disposable};
use crate::drill::list::Server;
use crate::given;

/// Tells one drill that another one is at work.
const APPLICATION: &str = "outflow drill";

/// A PostgreSQL that was given, and a connection that is held for as long as drills run on it.
#[derive(Debug)]
pub(in crate::drill) struct GivenPostgres {
    url: String,
    /// `host:port`.
    address: String,
    sql: Client,
    /// Group roles that were there before.
    roles: Vec<String>,
}

impl GivenPostgres {
    /// Connects, and changes nothing.
    ///
    /// # Errors
    /// A refusal when another drill is at work there, or the server cannot do logical replication.
    pub(super) async fn reach(url: &str) -> anyhow::Result<Self> {
        let address = address(url)?;
        let sql = given::postgres(url, APPLICATION).await?;
        // whatever the URL says
        sql.batch_execute(&format!("SET application_name = '{APPLICATION}'")).await?;
        const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity \
                              WHERE application_name = $1 AND pid <> pg_backend_pid()";
        must_be_alone(Server::Postgres, async || {
            let others: i64 = sql.query_one(OTHERS, &[&APPLICATION]).await?.try_get(0)?;
            Ok(usize::try_from(others)?)
        })
        .await?;
        given::is_logical(&sql).await?;
        let roles = given::roles(&sql).await?;
        Ok(Self { url: url.to_owned(), address, sql, roles })
    }

    /// What is on it and not ours, unless it carries the mark.
    pub(super) async fn worth_keeping(&self) -> anyhow::Result<Vec<String>> {
        if self.is_marked().await? {
            return Ok(Vec::new());
        }
        let mut found = given::holds(&self.sql, NAME).await?;
        // tables show only in their own database
        if !self.sql.query_one("SELECT current_database() = 'postgres'", &[]).await?.try_get(0)? {
            let postgres = given::with_database(&self.url, "postgres")?;
            let sql = given::postgres(&postgres, APPLICATION).await?;
            found.extend(given::holds(&sql, NAME).await?);
            found.sort_unstable();
            found.dedup();
        }
        Ok(found)
    }

    async fn is_marked(&self) -> anyhow::Result<bool> {
        const MARKED: &str = "SELECT FROM pg_database WHERE datname = $1";
        Ok(self.sql.query_opt(MARKED, &[&MARK]).await?.is_some())
    }

    /// Marks it if asked to, and removes what earlier drills have left.
    pub(super) async fn prepare(&self, mark: bool) -> anyhow::Result<()> {
        if mark && !self.is_marked().await? {
            let create = format!("CREATE DATABASE {MARK}");
            self.sql.batch_execute(&create).await.context("the role needs CREATEDB")?;
            let comment = "marks this server: outflow drill may destroy all that it holds";
            let comment = format!("COMMENT ON DATABASE {MARK} IS '{comment}'");
            self.sql.batch_execute(&comment).await?;
            eprintln!(
                "marked this PostgreSQL as disposable; to take it back: DROP DATABASE {MARK}"
            );
        }
        self.clear().await
    }

    /// Makes it as it was before the last scene.
    ///
    /// # Errors
    /// A refusal when something has come that may be worth keeping.
    pub(in crate::drill) async fn renew(&self) -> anyhow::Result<()> {
        let found = self.worth_keeping().await?;
        if !found.is_empty() {
            return Err(not_disposable(&found).into());
        }
        self.clear().await
    }

    async fn clear(&self) -> anyhow::Result<()> {
        const OURS: &str = "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1)";
        for row in self.sql.query(OURS, &[&NAME]).await? {
            given::drop_database(&self.sql, row.try_get(0)?).await?;
        }
        Ok(())
    }

    /// Removes databases, slots and roles of drills.
    pub(super) async fn clean_up(&self) -> anyhow::Result<()> {
        self.clear().await?;
        given::drop_roles(&self.sql, &self.roles).await
    }

    /// `host:port`.
    pub(in crate::drill) fn address(&self) -> &str {
        &self.address
    }

    /// As it was given.
    pub(in crate::drill) fn url(&self) -> &str {
        &self.url
    }

    /// The full version.
    pub(in crate::drill) async fn version(&self) -> anyhow::Result<String> {
        Ok(self.sql.query_one("SHOW server_version", &[]).await?.try_get(0)?)
    }
}

/// Where the server is. It must stand in the URL as such: a proxy takes its place there.
fn address(url: &str) -> anyhow::Result<String> {
    let options = ConnectOptions::parse(url).context("--postgres")?;
    let config = options.as_tokio_postgres();
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let elsewhere = ["host=", "hostaddr=", "port="];
    let elsewhere =
        parameters.split('&').any(|part| elsewhere.iter().any(|key| part.starts_with(key)));
    match (config.get_hosts(), config.get_ports()) {
        ([Host::Tcp(host)], ports @ ([] | [_])) if url.contains("://") && !elsewhere => {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            Ok(format!("{host}:{}", ports.first().copied().unwrap_or(5432)))
        }
        _ => bail!(
            "--postgres takes a URL with one host: postgres://user:password@host:5432/postgres. Drills put \
             a proxy of their own before the server, so sockets and parameters for host and port cannot be used"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_needs_one_host_to_stand_before() {
        assert_eq!(address("postgres://u:p@db/x?sslmode=disable").unwrap(), "db:5432");
        assert_eq!(address("postgres://u@[::1]:5/x").unwrap(), "[::1]:5");
        for url in [
            "postgres://u@a:1,b:2/x",
            "postgres://u@/x?host=/run/postgresql",
            "postgres://u@db/x?hostaddr=127.0.0.1",
            "host=db user=u",
        ] {
            let error = address(url).unwrap_err().to_string();
            assert!(error.contains("one host"), "{url}: {error}");
        }
    }
}
