//! The servers of a scene: throwaway ones, which a drill may break, or given ones, which it may not.

use std::sync::Arc;

use anyhow::Context;
use outflow_pgoutput::ConnectOptions;
use outflow_sandbox::{Postgres, PostgresBuilder, Redis, RedisBuilder};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::drill::given::{GivenPostgres, GivenRedis};
use crate::given;
use crate::rig::workload::Connect;

/// A server, and where it is reached when no proxy stands before it.
#[derive(Debug)]
pub(in crate::drill) struct Server<T> {
    /// `None` if it was given.
    own: Option<Arc<T>>,
    url: String,
    /// `host:port`.
    address: String,
}

/// A PostgreSQL.
pub(in crate::drill) type Source = Server<Postgres>;
/// A Redis.
pub(in crate::drill) type Broker = Server<Redis>;

impl<T> Server<T> {
    /// The throwaway server that it is.
    pub(super) fn own(&self) -> anyhow::Result<&Arc<T>> {
        self.own.as_ref().context("this server was given, and is not to be broken")
    }

    /// `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

// not derived: that would ask for a server that can be cloned
impl<T> Clone for Server<T> {
    fn clone(&self) -> Self {
        Self { own: self.own.clone(), url: self.url.clone(), address: self.address.clone() }
    }
}

impl Source {
    /// Takes the given one, with what the last scene has left removed; starts one if there is none.
    pub(super) async fn open(
        given: Option<&Arc<GivenPostgres>>,
        builder: PostgresBuilder,
    ) -> anyhow::Result<Self> {
        let Some(given) = given else { return Ok(builder.start().await?.into()) };
        given.renew().await?;
        Ok(Self { own: None, url: given.url().to_owned(), address: given.address().to_owned() })
    }

    pub(super) async fn create_database(&self, name: &str) -> anyhow::Result<()> {
        let sql = producer(&self.url, self.own.is_some()).await?;
        let create = format!("CREATE DATABASE {name}");
        sql.batch_execute(&create).await.context("the role needs CREATEDB")
    }

    /// URL of a database.
    pub(super) fn url(&self, database: &str) -> anyhow::Result<String> {
        given::with_database(&self.url, database)
    }

    /// A connection to a database.
    pub(super) async fn connect(&self, database: &str) -> anyhow::Result<Client> {
        producer(&self.url(database)?, self.own.is_some()).await
    }

    /// Makes such connections.
    pub(super) fn connections(&self, database: &'static str) -> Connect {
        // not the server itself: who makes connections does not keep it alive
        let (url, is_own) = (self.url.clone(), self.own.is_some());
        Arc::new(move || {
            let url = given::with_database(&url, database);
            Box::pin(async move { producer(&url?, is_own).await })
        })
    }
}

async fn producer(url: &str, is_own: bool) -> anyhow::Result<Client> {
    let options = match is_own {
        // no environment speaks of a throwaway server
        true => ConnectOptions::parse_with(url, &|_| None),
        false => ConnectOptions::parse(url),
    };
    let mut options = options?;
    options.default_application_name("outflow drill producer");
    crate::database::connect(&options).await
}

impl From<Postgres> for Source {
    fn from(own: Postgres) -> Self {
        let address = format!("127.0.0.1:{}", own.port());
        Self { url: own.url(), address, own: Some(Arc::new(own)) }
    }
}

impl Broker {
    /// As [`Source::open`].
    pub(super) async fn open(
        given: Option<&Arc<GivenRedis>>,
        builder: RedisBuilder,
    ) -> anyhow::Result<Self> {
        let Some(given) = given else { return Ok(builder.start().await?.into()) };
        given.renew().await?;
        Ok(Self { own: None, url: given.url().to_owned(), address: given.address().to_owned() })
    }

    /// A connection.
    pub(super) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        given::redis(&self.url).await
    }

    /// Its URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl From<Redis> for Broker {
    fn from(own: Redis) -> Self {
        let address = format!("127.0.0.1:{}", own.port());
        Self { url: own.url(), address, own: Some(Arc::new(own)) }
    }
}
