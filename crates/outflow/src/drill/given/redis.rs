//! A Redis that was given.

use anyhow::{Context, bail};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, InfoDict, IntoConnectionInfo};

use super::{MARK, NAME, must_be_alone, not_disposable};
use crate::drill::list::Server;
use crate::failure::Refused;
use crate::given;

/// Keys in one step of a look at all of them.
const STEP: usize = 1000;

/// A Redis that was given, and a connection that is held for as long as drills run on it.
#[derive(Debug)]
pub(in crate::drill) struct GivenRedis {
    url: String,
    /// `host:port`.
    address: String,
    /// The database that the URL names, as INFO has it: `db0`.
    database: String,
    connection: MultiplexedConnection,
    version: String,
    /// It carries the mark, or did when it was reached: drills flush everything, and then it is set again.
    marked: bool,
}

impl GivenRedis {
    /// Connects, and changes nothing.
    ///
    /// # Errors
    /// A refusal when another drill is at work there, or it is a node of a cluster.
    pub(super) async fn reach(url: &str) -> anyhow::Result<Self> {
        let (address, database) = place(url)?;
        let mut connection = given::redis(url).await?;
        redis::cmd("CLIENT").arg("SETNAME").arg(NAME).exec_async(&mut connection).await?;
        let name = format!(" name={NAME} ");
        must_be_alone(Server::Redis, async || {
            let clients: String =
                redis::cmd("CLIENT").arg("LIST").query_async(&mut connection).await?;
            Ok(clients.lines().filter(|client| client.contains(&name)).count().saturating_sub(1))
        })
        .await?;
        let info: InfoDict = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        if info.get::<String>("redis_mode").is_some_and(|mode| mode == "cluster") {
            let why = "this Redis is a node of a cluster, and drills know single servers: give another one";
            return Err(Refused(why.to_owned()).into());
        }
        let version = info.get("redis_version").unwrap_or_default();
        let marked = redis::cmd("EXISTS").arg(MARK).query_async(&mut connection).await?;
        Ok(Self { url: url.to_owned(), address, database, connection, version, marked })
    }

    /// What is on it and not ours, unless it carries the mark.
    pub(super) async fn worth_keeping(&self) -> anyhow::Result<Option<String>> {
        if self.marked {
            return Ok(None);
        }
        let mut redis = self.connection.clone();
        let elsewhere = given::keys(&mut redis, |database| database != self.database).await?;
        if elsewhere.is_some() {
            return Ok(elsewhere);
        }
        let mut cursor = 0_u64;
        loop {
            let scan = redis::cmd("SCAN").arg((cursor, "COUNT", STEP)).clone();
            let (next, keys): (u64, Vec<String>) = scan.query_async(&mut redis).await?;
            if let Some(key) = keys.iter().find(|key| !key.contains(NAME)) {
                return Ok(Some(format!("key {key} in Redis")));
            }
            if next == 0 {
                return Ok(None);
            }
            cursor = next;
        }
    }

    /// Marks it if asked to, and removes what earlier drills have left.
    pub(super) async fn prepare(&mut self, mark: bool) -> anyhow::Result<()> {
        if mark && !self.marked {
            self.marked = true;
            eprintln!("marked this Redis as disposable; to take it back: DEL {MARK}");
        }
        self.clear().await
    }

    /// Makes it as it was before the last scene.
    ///
    /// # Errors
    /// A refusal when something has come that may be worth keeping.
    pub(in crate::drill) async fn renew(&self) -> anyhow::Result<()> {
        if let Some(found) = self.worth_keeping().await? {
            return Err(not_disposable(&[found]).into());
        }
        self.clear().await
    }

    /// Removes the keys of drills.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let mut redis = self.connection.clone();
        given::remove_keys(&mut redis, NAME).await?;
        if self.marked {
            let what = "outflow drill may destroy all that this server holds";
            redis::cmd("SET").arg(MARK).arg(what).exec_async(&mut redis).await?;
        }
        Ok(())
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
    pub(in crate::drill) fn version(&self) -> &str {
        &self.version
    }
}

/// Where the server is, and which of its databases is meant.
fn place(url: &str) -> anyhow::Result<(String, String)> {
    let info = url.into_connection_info().context("--redis")?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        bail!(
            "--redis takes redis://user:password@host:6379/0. Drills put a proxy of their own before the server, \
             so sockets and certificates cannot be used"
        )
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    Ok((format!("{host}:{port}"), format!("db{}", info.redis_settings().db())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_needs_a_plain_address_to_stand_before() {
        let of = |url| place(url).unwrap();
        assert_eq!(of("redis://cache"), ("cache:6379".to_owned(), "db0".to_owned()));
        assert_eq!(of("redis://:pw@[::1]:7/3"), ("[::1]:7".to_owned(), "db3".to_owned()));
        for url in ["rediss://cache", "redis+unix:///run/redis.sock"] {
            assert!(place(url).unwrap_err().to_string().contains("proxy"), "{url}");
        }
    }
}
