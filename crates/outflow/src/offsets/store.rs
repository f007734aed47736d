//! The configured store of the offset.

use outflow_relay::Error;
use outflow_relay::config::{ConnectorConfig, OffsetStoreKind};
use outflow_relay::offset::{Offset, OffsetStore as _, PostgresOffsetStore, RedisOffsetStore};
use outflow_relay::sink::connection::RedisLink;

/// The offset and the ledger of one connector.
pub(super) enum Store {
    Redis(Box<RedisOffsetStore>),
    Postgres(Box<PostgresOffsetStore>),
}

impl Store {
    /// Opens the store that the configuration names.
    pub(super) async fn open(config: &ConnectorConfig) -> anyhow::Result<Self> {
        Ok(match config.offset.store {
            OffsetStoreKind::Redis => {
                let link = RedisLink::new(config.sink.redis.clone(), config.sink.timeout);
                let store = RedisOffsetStore::new(link, &config.connector, &config.offset);
                Self::Redis(Box::new(store))
            }
            OffsetStoreKind::Postgres => {
                let client = crate::database::connect(&config.source.connect).await?;
                let store = PostgresOffsetStore::new(client, &config.connector, &config.offset);
                Self::Postgres(Box::new(store.await?))
            }
        })
    }

    /// As in `offset.store`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Postgres(_) => "postgres",
        }
    }

    pub(super) async fn load(&mut self) -> Result<Option<Offset>, Error> {
        match self {
            Self::Redis(store) => store.load().await,
            Self::Postgres(store) => store.load().await,
        }
    }

    pub(super) async fn ledger(&mut self, limit: usize) -> Result<Vec<Offset>, Error> {
        match self {
            Self::Redis(store) => store.ledger(limit).await,
            Self::Postgres(store) => store.ledger(limit).await,
        }
    }

    pub(super) async fn replace(
        &mut self,
        expected: Option<&Offset>,
        new: &Offset,
    ) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.replace(expected, new).await,
            Self::Postgres(store) => store.replace(expected, new).await,
        }
    }
}
