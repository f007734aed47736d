//! Creates the slot, in steps that a crash can come between.
//!
//! 1. The plan is stored: an offset whose snapshot has no `visible` yet. A slot that is found with
//!    such an offset was created by an attempt that crashed; its snapshot is gone, nothing was
//!    published from it, and it is dropped.
//! 2. The slot is created and its snapshot looked at.
//! 3. Both are stored. From here on every step is resumed, never repeated.
//!
//! A lock in the database, held by the session that reads the snapshot, keeps two connectors of
//! one slot from doing this at the same time.

use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use outflow_event::{Epoch, Lsn};
use outflow_pgoutput::{CreateSlotOptions, CreatedSlot, ReplicationClient, Snapshot};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::sql::literal;
use crate::config::{SnapshotMode, SourceConfig};
use crate::error::Error;
use crate::offset::{Offset, OffsetStore, SnapshotProgress};
use crate::resume::{Facts, Wait, first_offset};

/// First half of the key of the advisory lock: `outf`.
const LOCK_CLASS: i32 = 0x6f75_7466;
/// How long the slot may take before it is said what it waits for, and how often after that.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a bootstrap is made from.
#[derive(Debug)]
pub struct Bootstrap<'a> {
    /// The source.
    pub source: &'a SourceConfig,
    /// What the decision was made on.
    pub facts: &'a Facts,
    /// The stored offset that it was made on.
    pub stored: Option<&'a Offset>,
    /// From [`crate::resume::Decision::Bootstrap`].
    pub drop_slot: bool,
    /// From [`crate::resume::Decision::Bootstrap`].
    pub epoch: Epoch,
    /// Ends the wait for the slot: nothing is left of it then.
    pub stop: &'a CancellationToken,
}

/// Creates the slot over `link` and stores the offset to begin with; `None` if it was told to stop
/// before there was a slot.
///
/// `sql` is an ordinary connection to the same database; with a snapshot, give it to
/// [`super::SnapshotReader::open`] afterwards, so that the lock lasts. Creating a slot waits for
/// the transactions that are open: `waiting` is told which, every few seconds.
///
/// # Errors
/// [`Error::NotYet`] when another connector is at it or has changed the offset: decide again.
/// Otherwise as for creating a slot and for saving an offset. Whatever the failure: decide again
/// from what is stored.
///
/// # Cancel safety
/// Not cancel safe: drop `link`. Dropping the future is like a crash, decide again.
pub async fn bootstrap<O: OffsetStore>(
    plan: Bootstrap<'_>,
    link: &mut ReplicationClient,
    sql: &Client,
    store: &mut O,
    waiting: &mut (dyn FnMut(String) + Send),
) -> Result<Option<Offset>, Error> {
    let slot = &plan.source.slot;
    lock(sql, slot).await?;
    if store.load().await?.as_ref() != plan.stored {
        return Err(Error::NotYet(Wait::OffsetChanged { slot: slot.clone() }));
    }
    if plan.source.snapshot == SnapshotMode::Never {
        return without_snapshot(&plan, link, sql, store, waiting).await;
    }

    // every commit that the slot will deliver is written after this
    let lsn = insert_lsn(sql).await?;
    let mut progress = SnapshotProgress {
        visible: String::new(),
        lsn: lsn.to_string(),
        start: None,
        last_key: Vec::new(),
    };
    let planned = Offset {
        epoch: plan.epoch,
        snapshot: Some(progress.clone()),
        ..first_offset(plan.facts, lsn)
    };
    store.save(&planned).await?;
    fail::fail_point!("relay::snapshot_planned");

    let created = create(&plan, link, sql, Snapshot::Export, waiting).await?;
    let Some(created) = created else { return Ok(None) };
    fail::fail_point!("relay::snapshot_slot_created");
    progress.visible = look_at(sql, &created).await?;
    progress.start = Some(created.consistent_point.to_string());
    let begun = Offset { at: Timestamp::now(), snapshot: Some(progress), ..planned };
    store.save(&begun).await?;
    fail::fail_point!("relay::snapshot_begun");
    Ok(Some(begun))
}

async fn without_snapshot<O: OffsetStore>(
    plan: &Bootstrap<'_>,
    link: &mut ReplicationClient,
    sql: &Client,
    store: &mut O,
    waiting: &mut (dyn FnMut(String) + Send),
) -> Result<Option<Offset>, Error> {
    let created = create(plan, link, sql, Snapshot::Nothing, waiting).await?;
    let Some(created) = created else { return Ok(None) };
    fail::fail_point!("relay::slot_created");
    let offset = Offset { epoch: plan.epoch, ..first_offset(plan.facts, created.consistent_point) };
    store.save(&offset).await?;
    Ok(Some(offset))
}

/// Creates the slot, after dropping the one of a crashed attempt; `None` if it was told to stop.
async fn create(
    plan: &Bootstrap<'_>,
    link: &mut ReplicationClient,
    sql: &Client,
    snapshot: Snapshot,
    waiting: &mut (dyn FnMut(String) + Send),
) -> Result<Option<CreatedSlot>, Error> {
    let slot = &plan.source.slot;
    if plan.drop_slot {
        link.drop_slot(slot, false).await?;
    }
    // the new slot goes on being what the old one was to standbys
    let failover = plan.facts.slot.as_ref().is_some_and(|slot| slot.failover);
    let options = CreateSlotOptions { snapshot, failover, ..CreateSlotOptions::default() };
    let walsender = i32::try_from(link.process_id()).unwrap_or(0);
    let mut creation = pin!(link.create_slot(slot, options));
    let mut tick = tokio::time::interval_at(Instant::now() + PATIENCE, PATIENCE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            created = &mut creation => return Ok(Some(created?)),
            () = plan.stop.cancelled() => break,
            _ = tick.tick() => {
                let blockers = open_transactions(sql, walsender).await?;
                waiting(format!(
                    "slot `{slot}` is being created and waits for transactions that were open \
                     before: {blockers}"
                ));
            }
        }
    }
    // left alone, the server would complete the slot when those transactions end, for nobody
    sql.execute("SELECT pg_catalog.pg_cancel_backend($1)", &[&walsender])
        .await
        .map_err(Error::sql("ending the creation of the slot"))?;
    // it may have been quicker
    Ok(creation.await.ok())
}

/// The transactions that a new slot waits for, oldest first.
async fn open_transactions(sql: &Client, walsender: i32) -> Result<String, Error> {
    let rows = sql
        .query(
            "SELECT pid, COALESCE(usename::text, ''), \
               COALESCE(extract(epoch FROM now() - xact_start)::bigint, 0) \
             FROM pg_catalog.pg_stat_activity \
             WHERE backend_xid IS NOT NULL AND pid <> $1 ORDER BY xact_start LIMIT 3",
            &[&walsender],
        )
        .await
        .map_err(Error::sql("looking for open transactions"))?;
    let prepared = sql
        .query("SELECT gid FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 3", &[])
        .await
        .map_err(Error::sql("looking for prepared transactions"))?;
    let sessions = rows.iter().map(|row| {
        let (pid, user, age) =
            (row.get::<_, i32>(0), row.get::<_, String>(1), row.get::<_, i64>(2));
        format!("process {pid} of {user} (open for {age} s)")
    });
    let prepared =
        prepared.iter().map(|row| format!("prepared transaction '{}'", row.get::<_, String>(0)));
    let all: Vec<String> = sessions.chain(prepared).collect();
    Ok(if all.is_empty() {
        "none is left, it should be done soon".to_owned()
    } else {
        all.join(", ")
    })
}

/// Takes the lock of the slot for the rest of the session: no other connector creates the slot or
/// publishes its snapshot until then.
///
/// # Errors
/// [`Error::NotYet`] when another session holds it; otherwise as for any statement.
pub async fn lock(sql: &Client, slot: &str) -> Result<(), Error> {
    let row = sql
        .query_one(
            "SELECT pg_catalog.pg_try_advisory_lock($1, pg_catalog.hashtext($2))",
            &[&LOCK_CLASS, &slot],
        )
        .await
        .map_err(Error::sql("locking the slot against other connectors"))?;
    if row.get(0) {
        return Ok(());
    }
    Err(Error::NotYet(Wait::OtherSnapshot { slot: slot.to_owned(), class: LOCK_CLASS }))
}

async fn insert_lsn(sql: &Client) -> Result<Lsn, Error> {
    let row = sql
        .query_one("SELECT pg_catalog.pg_current_wal_insert_lsn()", &[])
        .await
        .map_err(Error::sql("reading the end of the log"))?;
    Ok(row.get(0))
}

/// The exported snapshot as text. It lasts until the link is used again, and is not needed longer.
///
/// Where transactions that were aborted come last, the snapshot of a new slot has an `xmin` above
/// its `xmax`, which no text of a `pg_snapshot` may have. PostgreSQL looks at `xmin` first
/// (`XidInMVCCSnapshot`), so everything below it counts as finished: the same as with both equal.
async fn look_at(sql: &Client, created: &CreatedSlot) -> Result<String, Error> {
    let name = created.snapshot_name.as_deref().unwrap_or_default();
    let failed = || Error::sql("reading the snapshot of the new slot");
    let begin = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
        literal(name)
    );
    sql.batch_execute(&begin).await.map_err(failed())?;
    let row = sql
        .query_one(
            "SELECT CASE WHEN xmin > pg_catalog.pg_snapshot_xmax(snapshot) \
               THEN xmin::text || ':' || xmin::text || ':' ELSE snapshot::text END \
             FROM (SELECT snapshot, pg_catalog.pg_snapshot_xmin(snapshot) AS xmin \
               FROM pg_catalog.pg_current_snapshot() AS snapshot) AS exported",
            &[],
        )
        .await
        .map_err(failed())?;
    sql.batch_execute("COMMIT").await.map_err(failed())?;
    Ok(row.get(0))
}
