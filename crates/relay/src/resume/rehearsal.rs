//! What a start would come to, for those who look from the outside.

use outflow_pgoutput::ReplicationClient;

use super::{Decision, Refusal, decide, inspect};
use crate::config::SourceConfig;
use crate::error::Error;
use crate::offset::Offset;
use crate::rewind;

/// Why a connector that is started now refuses to; `None` if it does not, also where it puts its slot
/// back to a rewind point by itself.
///
/// Changes nothing. Takes one of the server's walsenders for a moment.
///
/// # Errors
/// What would keep the connector from starting, too: a server that cannot be reached, a role that lacks
/// REPLICATION.
///
/// # Cancel safety
/// Reads only; dropping the future changes nothing.
pub async fn refusal(
    source: &SourceConfig,
    stored: Option<&Offset>,
) -> Result<Option<Refusal>, Error> {
    let mut link = ReplicationClient::connect(&source.connect).await?;
    let facts = inspect(&mut link, &source.slot, stored).await?;
    let Decision::Refuse(refusal) = decide(&facts, stored, source.snapshot) else {
        return Ok(None);
    };
    if let Some(needed) = refusal.needs_earlier_slot() {
        let sql = source.connect.connect_sql().await?.client;
        if rewind::reaches(&sql, &source.slot, needed).await? {
            return Ok(None);
        }
    }
    Ok(Some(refusal))
}
