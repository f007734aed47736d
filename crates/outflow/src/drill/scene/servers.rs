//! The servers of a scene: throwaway ones, which a drill may break, or given ones, which it may not.

use std::sync::Arc;

use anyhow::bail;
use outflow_sandbox::{Postgres, PostgresBuilder, Redis, RedisBuilder};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::drill::given::{GivenPostgres, GivenRedis};
use crate::rig::workload::{self, Connect};

/// A PostgreSQL.
#[derive(Debug, Clone)]
pub(in crate::drill) enum Source {
    Own(Arc<Postgres>),
    Given(Arc<GivenPostgres>),
}

impl Source {
    /// Takes the given one, with what the last scene has left removed; starts one if there is none.
    pub(super) async fn open(
        given: Option<&Arc<GivenPostgres>>,
        builder: PostgresBuilder,
    ) -> anyhow::Result<Self> {
        match given {
            Some(given) => {
                given.renew().await?;
                Ok(Self::Given(Arc::clone(given)))
            }
            None => Ok(Self::Own(Arc::new(builder.start().await?))),
        }
    }

    /// The throwaway server that it is.
    pub(super) fn own(&self) -> anyhow::Result<&Arc<Postgres>> {
        match self {
            Self::Own(postgres) => Ok(postgres),
            Self::Given(_) => bail!("this PostgreSQL was given, and is not to be broken"),
        }
    }

    pub(super) async fn create_database(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Own(postgres) => Ok(postgres.create_database(name).await.map(drop)?),
            Self::Given(given) => given.create_database(name).await,
        }
    }

    /// A connection to a database that no proxy can break.
    pub(super) async fn connect(&self, database: &str) -> anyhow::Result<Client> {
        match self {
            Self::Own(postgres) => Ok(postgres.connect_to(database).await?),
            Self::Given(given) => given.connect(database).await,
        }
    }

    /// Makes such connections.
    pub(super) fn connections(&self, database: &'static str) -> Connect {
        match self {
            Self::Own(postgres) => workload::connect_to(postgres.unix_url_for(database)),
            Self::Given(given) => {
                let given = Arc::clone(given);
                Arc::new(move || {
                    let given = Arc::clone(&given);
                    Box::pin(async move { given.connect(database).await })
                })
            }
        }
    }

    /// `host:port`.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Own(postgres) => format!("127.0.0.1:{}", postgres.port()),
            Self::Given(given) => given.address().to_owned(),
        }
    }

    /// URL of a database.
    pub(super) fn url(&self, database: &str) -> anyhow::Result<String> {
        match self {
            Self::Own(postgres) => Ok(postgres.url_for(database)),
            Self::Given(given) => given.url(database),
        }
    }
}

/// A Redis.
#[derive(Debug, Clone)]
pub(in crate::drill) enum Broker {
    Own(Arc<Redis>),
    Given(Arc<GivenRedis>),
}

impl Broker {
    /// As [`Source::open`].
    pub(super) async fn open(
        given: Option<&Arc<GivenRedis>>,
        builder: RedisBuilder,
    ) -> anyhow::Result<Self> {
        match given {
            Some(given) => {
                given.renew().await?;
                Ok(Self::Given(Arc::clone(given)))
            }
            None => Ok(Self::Own(Arc::new(builder.start().await?))),
        }
    }

    /// The throwaway server that it is.
    pub(super) fn own(&self) -> anyhow::Result<&Arc<Redis>> {
        match self {
            Self::Own(redis) => Ok(redis),
            Self::Given(_) => bail!("this Redis was given, and is not to be broken"),
        }
    }

    /// A connection that no proxy can break.
    pub(super) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        match self {
            Self::Own(redis) => Ok(redis.connect().await?),
            Self::Given(given) => given.connect().await,
        }
    }

    /// `host:port`.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Own(redis) => format!("127.0.0.1:{}", redis.port()),
            Self::Given(given) => given.address().to_owned(),
        }
    }

    /// Its URL.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Own(redis) => redis.url(),
            Self::Given(given) => given.url().to_owned(),
        }
    }
}
