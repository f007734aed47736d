//! Rewind points: copies of the slot that stay behind it.
//!
//! A slot never goes back: what it has confirmed, the server will not stream again (PostgreSQL
//! documentation, "Logical Decoding Concepts", "Replication Slots"). A broker may: after a
//! failover to a replica that lagged, or a restart without persistence, entries that were
//! acknowledged are gone, and the offset with them. So two copies of the slot are kept, each
//! replaced in its turn. The older one is between one and two intervals behind, and the slot is
//! put back to it when the stored offset lies below what the slot has confirmed, or is gone.
//!
//! The price is the log of that time, and two of `max_replication_slots`.

use std::time::Duration;

use outflow_event::Lsn;
use outflow_pgoutput::ReplicationClient;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::SourceConfig;
use crate::error::{Error, Retry};
use crate::resume::{Decision, Facts};

/// PostgreSQL documentation, "Catalog": names have at most 63 bytes.
const LONGEST_NAME: usize = 63;

const POINTS: &str = "\
SELECT slot_name::text, confirmed_flush_lsn, wal_status IS NOT DISTINCT FROM 'lost'
FROM pg_catalog.pg_replication_slots
WHERE slot_name::text = ANY($1) AND database = pg_catalog.current_database()
    AND plugin = 'pgoutput' AND NOT active
ORDER BY confirmed_flush_lsn NULLS FIRST, slot_name";

const DROP: &str = "\
SELECT pg_catalog.pg_drop_replication_slot(slot_name)
FROM pg_catalog.pg_replication_slots WHERE slot_name::text = $1";

const COPY: &str = "\
SELECT pg_catalog.pg_copy_logical_replication_slot($1::text::name, $2::text::name, false)";

/// A turn that takes longer than this has failed.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two turns, whatever the interval.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// A copy of the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Point {
    name: String,
    confirmed: Option<Lsn>,
    /// The server has removed the log that it needs.
    lost: bool,
}

impl Point {
    /// Whether a slot that is put back to it streams from `needed` on.
    fn reaches(&self, needed: Lsn) -> bool {
        !self.lost && self.confirmed.is_some_and(|lsn| lsn <= needed)
    }
}

/// Names of the points of `slot`; none where they would be too long.
fn names(slot: &str) -> Vec<String> {
    let names = ["1", "2"].map(|number| format!("{slot}_rewind_{number}"));
    names.into_iter().filter(|name| name.len() <= LONGEST_NAME).collect()
}

/// Keeps the points of the slot until `stop`; with an interval of zero removes those that are
/// there.
///
/// Has a connection of its own. What fails is tried again at the next turn: the connector's own
/// work never waits for it.
///
/// # Cancel safety
/// Dropping the future may leave one point less than before; the next turn makes it again.
pub(crate) async fn keep(source: &SourceConfig, stop: &CancellationToken) {
    let mut keeper = Keeper { source, sql: None, warned: false };
    let mut at_start = true;
    loop {
        let turn = tokio::time::timeout(TURN_TIMEOUT, keeper.turn(at_start));
        let turned = tokio::select! {
            () = stop.cancelled() => return,
            turned = turn => turned,
        };
        match turned {
            Ok(Ok(())) if source.rewind_interval.is_zero() => return stop.cancelled().await,
            Ok(Ok(())) => at_start = false,
            Ok(Err(error)) => keeper.failed(&error),
            Err(_) => keeper.sql = None,
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(source.rewind_interval.max(SHORTEST_PAUSE)) => {}
        }
    }
}

struct Keeper<'a> {
    source: &'a SourceConfig,
    sql: Option<Client>,
    /// Said once that points cannot be kept.
    warned: bool,
}

impl Keeper<'_> {
    /// Makes the point that is missing, or replaces the older one. At the start of a connector
    /// nothing is replaced: one that is started again and again would have none that is old.
    async fn turn(&mut self, at_start: bool) -> Result<(), Error> {
        let slot = &self.source.slot;
        let sql = match self.sql.take() {
            Some(sql) if !sql.is_closed() => sql,
            _ => self.source.connect.connect_sql().await?.client,
        };
        let points = points(&sql, slot).await?;
        if self.source.rewind_interval.is_zero() {
            for point in &points {
                drop_slot(&sql, &point.name).await?;
            }
            return Ok(());
        }
        let usable = |name: &String| points.iter().any(|point| point.name == *name && !point.lost);
        let missing = names(slot).into_iter().find(|name| !usable(name));
        let oldest = points.first().map(|point| point.name.clone()).filter(|_| !at_start);
        if let Some(name) = missing.or(oldest) {
            drop_slot(&sql, &name).await?;
            copy_slot(&sql, slot, &name).await?;
        }
        self.sql = Some(sql);
        Ok(())
    }

    fn failed(&mut self, error: &Error) {
        if error.retry() == Retry::Fatal && !std::mem::replace(&mut self.warned, true) {
            warn!(
                "rewind points cannot be kept: {error}. Without them, entries that redis loses after \
                 they were acknowledged must be published again by hand; grant what is missing, \
                 raise max_replication_slots, or set source.rewind_interval = \"0s\""
            );
        } else {
            debug!("rewind points were left as they are: {error}");
        }
    }
}

/// Puts the slot back where Redis has lost what was confirmed, as far as there are points for it.
/// Whether it did: then the decision has to be made again.
///
/// # Errors
/// As of [`restore`].
pub(crate) async fn go_back(
    sql: &Client,
    link: &mut ReplicationClient,
    facts: &Facts,
    decision: &Decision,
) -> Result<bool, Error> {
    match decision {
        Decision::Refuse(refusal) => {
            let Some(needed) = refusal.needs_earlier_slot() else { return Ok(false) };
            let restored = restore(sql, link, facts, Back::To(needed)).await?;
            if let Some(back) = restored {
                warn!("{refusal}: a rewind point was there, streaming goes on from {back}");
            }
            Ok(restored.is_some())
        }
        // only a connector that had an offset leaves points behind
        Decision::Adopt { .. } => {
            let restored = restore(sql, link, facts, Back::Farthest).await?;
            if let Some(back) = restored {
                warn!(
                    "the stored offset is gone, and most likely entries with it: a rewind point was \
                     there, streaming goes on from {back}. What was committed before that must be \
                     published again where it was not applied, by `outflow offsets reset \
                     --from-rows` (docs/runbook.md, \"Redis lost data\")"
                );
            }
            Ok(restored.is_some())
        }
        _ => Ok(false),
    }
}

/// How far to go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Back {
    /// To the nearest point at or below this.
    To(Lsn),
    /// As far as possible: how much is missing is not known.
    Farthest,
}

/// Puts the slot back to a point, if there is one. Says where the slot stands then.
///
/// A crash in between leaves no slot, and the point: the next start ends here again.
///
/// # Errors
/// Transient: nothing was changed, or the slot is gone and the point still there; try again.
async fn restore(
    sql: &Client,
    link: &mut ReplicationClient,
    facts: &Facts,
    back: Back,
) -> Result<Option<Lsn>, Error> {
    let slot = &facts.slot_name;
    let mut points = points(sql, slot).await?.into_iter().filter(|point| !point.lost);
    let point = match back {
        Back::To(needed) => points.rfind(|point| point.reaches(needed)),
        Back::Farthest => points.find(|point| point.confirmed.is_some()),
    };
    let Some(point) = point else { return Ok(None) };
    drop_slot(sql, slot).await?;
    fail::fail_point!("relay::rewinding");
    copy_slot(sql, &point.name, slot).await?;
    info!(slot, point = point.name, "the slot was put back to a rewind point");
    // a copy is not synchronised to standbys, whatever its original was
    if facts.slot.as_ref().is_some_and(|slot| slot.failover)
        && let Err(error) = link.set_failover(slot, true).await
    {
        warn!(
            "slot `{slot}` was put back to a rewind point, and is not synchronised to standbys any \
             more: {error}. Stop the connector and run psql \"dbname=.. replication=database\" -c \
             'ALTER_REPLICATION_SLOT {slot} (FAILOVER true)'"
        );
    }
    Ok(point.confirmed)
}

/// Whether the slot can be put back to stream from `needed` on.
///
/// # Errors
/// As for any statement.
pub(crate) async fn reaches(sql: &Client, slot: &str, needed: Lsn) -> Result<bool, Error> {
    Ok(points(sql, slot).await?.iter().any(|point| point.reaches(needed)))
}

/// The points that nobody uses, lowest first.
async fn points(sql: &Client, slot: &str) -> Result<Vec<Point>, Error> {
    let rows = sql.query(POINTS, &[&names(slot)]).await;
    let rows = rows.map_err(Error::sql("looking at the rewind points"))?;
    Ok(rows
        .iter()
        .map(|row| Point { name: row.get(0), confirmed: row.get(1), lost: row.get(2) })
        .collect())
}

async fn drop_slot(sql: &Client, slot: &str) -> Result<(), Error> {
    let dropped = sql.execute(DROP, &[&slot]).await;
    dropped.map(|_| ()).map_err(Error::sql("dropping a replication slot"))
}

async fn copy_slot(sql: &Client, from: &str, to: &str) -> Result<(), Error> {
    let copied = sql.execute(COPY, &[&from, &to]).await;
    copied.map(|_| ()).map_err(Error::sql("copying a replication slot"))
}
