//! The dedicated connection to Redis.

use std::time::Duration;

use outflow_broker::{Connection, Target};

use super::classify;
use crate::error::Error;

/// A connection that is made when it is needed and dropped when it fails.
#[derive(Debug)]
pub struct RedisLink {
    target: Target,
    timeout: Duration,
    connection: Option<Connection>,
}

impl RedisLink {
    /// A link to `target`, on which a reply may take up to `timeout`.
    #[must_use]
    pub fn new(target: Target, timeout: Duration) -> Self {
        Self { target, timeout, connection: None }
    }

    /// The connection, made anew if there is none. Sentinels are asked every time.
    ///
    /// # Errors
    /// Transient when Redis cannot be reached, fatal when it refuses the credentials.
    pub async fn get(&mut self) -> Result<&mut Connection, Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.target.connect(self.timeout, self.timeout).await;
                connection.map_err(|error| classify(&error))?
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Whether there is a connection: without one, the next use may meet another server.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Drops the connection: the next use makes a new one, to whichever server is primary then.
    pub fn reset(&mut self) {
        self.connection = None;
    }
}
