//! The dedicated connection to Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

use super::classify;
use crate::config::RedisTarget;
use crate::error::Error;

/// A connection to the primary that is made when it is needed and dropped when it fails.
pub struct RedisLink {
    target: RedisTarget,
    timeout: Duration,
    connection: Option<MultiplexedConnection>,
}

impl std::fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisLink")
            .field("target", &self.target)
            .field("connected", &self.connection.is_some())
            .finish_non_exhaustive()
    }
}

impl RedisLink {
    /// A link to `target`, on which a reply may take up to `timeout`.
    #[must_use]
    pub fn new(target: RedisTarget, timeout: Duration) -> Self {
        Self { target, timeout, connection: None }
    }

    /// The connection, made anew if there is none. Sentinels are asked every time.
    ///
    /// # Errors
    /// Transient when Redis cannot be reached, fatal when it refuses the credentials.
    pub async fn get(&mut self) -> Result<&mut MultiplexedConnection, Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Drops the connection: the next use makes a new one, to whichever server is primary then.
    pub fn reset(&mut self) {
        self.connection = None;
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let connection = match &self.target {
            RedisTarget::Single(url) => {
                let info = url
                    .as_str()
                    .into_connection_info()
                    .map_err(|error| classify(&error))?
                    .set_tcp_settings(tcp_settings());
                let client = Client::open(info).map_err(|error| classify(&error))?;
                client.get_multiplexed_async_connection_with_config(&config).await
            }
            RedisTarget::Sentinel { sentinels, master } => {
                let node = SentinelNodeConnectionInfo::default().set_tcp_settings(tcp_settings());
                let mut client = SentinelClient::build(
                    sentinels.iter().map(String::as_str).collect(),
                    master.clone(),
                    Some(node),
                    SentinelServerType::Master,
                )
                .map_err(|error| classify(&error))?;
                client.get_async_connection_with_config(&config).await
            }
        };
        connection.map_err(|error| classify(&error))
    }
}

/// A batch is written in one go and its reply awaited: Nagle's algorithm would only add delay.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}
