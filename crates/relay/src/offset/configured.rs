//! The store that a configuration names.

use super::{Offset, OffsetStore, PostgresOffsetStore, RedisOffsetStore};
use crate::config::{ConnectorConfig, OffsetStoreKind};
use crate::error::Error;
use crate::sink::connection::RedisLink;

/// The offset store of a connector, of either kind.
#[derive(Debug)]
pub enum ConfiguredStore {
    /// Beside the entries.
    Redis(RedisOffsetStore),
    /// In the source database.
    Postgres(Box<PostgresOffsetStore>),
}

impl ConfiguredStore {
    /// The store of `config`. Does not connect yet.
    #[must_use]
    pub fn new(config: &ConnectorConfig) -> Self {
        let (connector, options) = (&config.connector, &config.offset);
        match options.store {
            OffsetStoreKind::Redis => {
                let link = RedisLink::new(config.sink.redis.clone(), config.sink.timeout);
                Self::Redis(RedisOffsetStore::new(link, connector, options))
            }
            OffsetStoreKind::Postgres => {
                let connect = config.source.connect.clone();
                Self::Postgres(Box::new(PostgresOffsetStore::new(connect, connector, options)))
            }
        }
    }

    /// As in `offset.store`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Puts `new` in the place of the stored offset, see [`RedisOffsetStore::replace`] and
    /// [`PostgresOffsetStore::replace`].
    ///
    /// # Errors
    /// Refused when another offset than `expected` is stored: nothing was changed. Transient when
    /// the outcome is unknown: load and compare.
    pub async fn replace(&mut self, expected: Option<&Offset>, new: &Offset) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.replace(expected, new).await,
            Self::Postgres(store) => store.replace(expected, new).await,
        }
    }
}

impl OffsetStore for ConfiguredStore {
    async fn load(&mut self) -> Result<Option<Offset>, Error> {
        match self {
            Self::Redis(store) => store.load().await,
            Self::Postgres(store) => store.load().await,
        }
    }

    async fn save(&mut self, offset: &Offset) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.save(offset).await,
            Self::Postgres(store) => store.save(offset).await,
        }
    }

    async fn ledger(&mut self, limit: usize) -> Result<Vec<Offset>, Error> {
        match self {
            Self::Redis(store) => store.ledger(limit).await,
            Self::Postgres(store) => store.ledger(limit).await,
        }
    }
}
