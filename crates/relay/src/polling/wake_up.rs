//! What wakes the relay before its interval is over.

use std::sync::Arc;
use std::time::Duration;

use outflow_pgoutput::ConnectOptions;
use tokio::sync::Notify;
use tokio_postgres::Client;

use super::config::{PollingConfig, WakeUp};
use super::statements::LISTEN;
use crate::error::Error;

/// Rings when the server says that rows were inserted.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Option<Arc<Notify>>);

impl Bell {
    /// Waits for the next notification; one that came since the last wait counts. For ever where
    /// there are none.
    pub(crate) async fn rung(&self) {
        match &self.0 {
            Some(bell) => bell.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The time between two looks: with notifications, looks are for claims that have lapsed and
    /// for notifications that a lost connection has swallowed.
    pub(crate) fn interval(&self, polling: &PollingConfig) -> Duration {
        if self.0.is_some() { polling.max_interval } else { polling.interval }
    }
}

/// Opens the relay's connection and listens on it if that is what wakes it.
///
/// # Errors
/// As for any connection and statement.
pub(crate) async fn connect(
    options: &ConnectOptions,
    wake_up: WakeUp,
) -> Result<(Client, Bell), Error> {
    if wake_up == WakeUp::Interval {
        return Ok((options.connect_sql().await?.client, Bell(None)));
    }
    let bell = Arc::new(Notify::new());
    let client = options.connect_listening(Arc::clone(&bell)).await?.client;
    client.batch_execute(LISTEN).await.map_err(Error::sql("listening for new rows"))?;
    Ok((client, Bell(Some(bell))))
}
