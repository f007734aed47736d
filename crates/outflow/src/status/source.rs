//! The source: slot, publication, lag; what waits to be polled.

use outflow_event::Lsn;
use outflow_relay::offset::{ConfiguredStore, OffsetStore as _};
use outflow_relay::polling::Backlog;
use outflow_relay::preflight::Finding;
use outflow_relay::watch::SlotHealth;
use serde::Serialize;

use crate::config::Config;

/// What the source says.
#[derive(Debug, Serialize)]
pub(super) struct Source {
    /// End of its log.
    pub(super) wal_lsn: String,
    /// The slot; `None`: there is none.
    pub(super) slot: Option<SlotHealth>,
    /// Whether a connector is connected to the slot.
    pub(super) slot_active: bool,
    /// Bytes of log that are not confirmed yet.
    pub(super) lag_bytes: Option<u64>,
    /// Why no connector can start; `None`: one can, or is connected.
    pub(super) refusal: Option<String>,
    /// What is wrong with slot, publication or table.
    pub(super) findings: Vec<Finding>,
    /// What waits to be polled; `None`: the outbox has no columns for it.
    pub(super) polling: Option<Backlog>,
}

impl Source {
    /// The outbox is one for polling, and there is no slot: no connector is expected.
    pub(super) fn polled_alone(&self) -> bool {
        self.slot.is_none() && self.polling.is_some()
    }
}

/// Looks; `None`: no source is configured.
pub(super) async fn look(config: &Config) -> Option<Result<Source, String>> {
    if config.source.url.is_empty() && config.source_connect().is_err() {
        return None;
    }
    Some(super::in_time(ask(config)).await)
}

/// Why no connector can start, where none is connected: what the last one said is gone with it.
pub(super) async fn refusal(config: &Config) -> Option<String> {
    let look = async {
        let connector = config.connector_config()?;
        let stored = ConfiguredStore::new(&connector).load().await?;
        anyhow::Ok(outflow_relay::resume::refusal(&connector.source, stored.as_ref()).await?)
    };
    super::in_time(look).await.map_or_else(Some, |refusal| Some(refusal?.to_string()))
}

async fn ask(config: &Config) -> anyhow::Result<Source> {
    let connector = config.connector_config()?;
    let client = crate::database::connect(&connector.source.connect).await?;
    let watch = outflow_relay::watch::look(&connector.source, &client).await?;
    let polling =
        outflow_relay::polling::backlog(&client, &connector.source, &config.polling).await?;
    let row = client
        .query_one(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                         ELSE pg_current_wal_lsn() END",
            &[],
        )
        .await?;
    let wal: Lsn = row.try_get(0)?;
    let confirmed = watch.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn.as_deref());
    let confirmed: Option<Lsn> = confirmed.and_then(|lsn| lsn.parse().ok());
    Ok(Source {
        wal_lsn: wal.to_string(),
        slot_active: watch.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some()),
        lag_bytes: confirmed.map(|lsn| u64::from(wal).saturating_sub(u64::from(lsn))),
        refusal: None,
        slot: watch.slot,
        findings: watch.findings,
        polling,
    })
}
