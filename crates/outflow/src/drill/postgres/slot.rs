//! The slot is invalidated, dropped, or another one has its name.

use std::time::Duration;

use anyhow::Context;
use outflow_sandbox::Postgres;
use tokio_postgres::Client;

use super::{begins_again_from_rows, refuses, under_load};
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{
    CONNECTOR, PATIENCE, Relay, STOP_WITHIN, Scene, Series, Setup, says, says_why,
};

pub(super) const LOST: Drill = Drill {
    name: "pg-slot-lost",
    injects: "a connector that is away while more log is written than max_slot_wal_keep_size allows",
    expects: "refuses with the size of the gap and the way out; the way out loses nothing",
    why: "A slot keeps log until it is read, or until the server values its disk more. Then the log is gone, and \
a connector that went on would skip what was in it without a word. So it compares offset, slot and server before \
it asks for the first byte, refuses, and names the gap: the outbox rows are still there to fill it.",
    breaks: &[Server::Postgres],
    run: |course| Box::pin(lost(course)),
};

pub(super) const RECREATED: Drill = Drill {
    name: "pg-slot-recreated",
    injects: "the slot is dropped and created again by hand while events commit",
    expects: "noticed at the start; put back to a rewind point, and nothing is lost",
    why: "A new slot under the old name begins where it was created, not where the old one stood. Its confirmed \
position lies above the stored offset, which can only mean that something in between will not be streamed. A copy \
of the slot from before still has that log.",
    breaks: &[],
    run: |course| Box::pin(recreated(course)),
};

pub(super) const DROPPED: Drill = Drill {
    name: "pg-slot-dropped",
    injects: "the slot is dropped under a connector that keeps no rewind points",
    expects: "says why, refuses with the gap and the way out; the way out loses nothing",
    why: "What only the slot kept is gone with it, and nothing but the rows of the outbox can bring it back. That \
is a decision for a person: the command is in the message.",
    breaks: &[],
    run: |course| Box::pin(dropped(course)),
};

async fn lost(course: &mut Course) -> anyhow::Result<()> {
    let mut setup = Setup::new(Relay::Connector);
    setup.postgres = Postgres::builder()
        .setting("max_slot_wal_keep_size", "16MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "64MB");
    let (mut scene, load) = under_load(course, setup).await?;
    scene.relay.kill().await?;
    load.commits(100).await?;
    let client = scene.producer_database().await?;
    let wait = async {
        while !is_lost(&client).await? {
            let sql = "SELECT pg_logical_emit_message(false, 'drill', repeat('x', 1000000)) \
                       FROM generate_series(1, 32)";
            client.execute(sql, &[]).await?;
            client.batch_execute("SELECT pg_switch_wal(); CHECKPOINT").await?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.context("the slot is not invalidated")??;
    course.injected("the server has removed log that the slot needed");
    load.end(&mut scene).await?;
    refuses(course, &mut scene, &["--from-rows"]).await?;
    begins_again_from_rows(course, &mut scene).await?;
    scene.end(course).await
}

async fn is_lost(client: &Client) -> anyhow::Result<bool> {
    let sql = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = $1";
    Ok(client.query_one(sql, &[&CONNECTOR]).await?.try_get(0)?)
}

async fn recreated(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    scene.relay.stop(STOP_WITHIN).await?;
    let client = scene.producer_database().await?;
    client.execute("SELECT pg_drop_replication_slot($1)", &[&CONNECTOR]).await?;
    load.commits(100).await?;
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    client.execute(sql, &[&CONNECTOR]).await?;
    course.injected("the slot dropped and created again, with 100 events in between");
    load.commits(100).await?;
    let from = scene.relay.log_end();
    scene.relay.start()?;
    says(course, &mut scene.relay, from, &["rewind point was there"]).await;
    course.recovered(scene.caught_up().await?);
    load.end(&mut scene).await?;
    scene.end(course).await
}

async fn dropped(course: &mut Course) -> anyhow::Result<()> {
    let setup = Setup::new(Relay::Connector).set("source.rewind_interval=0s");
    let (mut scene, load) = under_load(course, setup).await?;
    let from = scene.relay.log_end();
    drop_under_the_connector(&scene).await?;
    course.injected("the walsender ended and the slot dropped");
    says_why(course, &mut scene.relay, from, &["slot"], &[Series::relay_waits_on("slot")]).await;
    load.commits(100).await?;
    load.end(&mut scene).await?;
    scene.relay.stop(STOP_WITHIN).await?;
    refuses(course, &mut scene, &["--from-rows"]).await?;
    begins_again_from_rows(course, &mut scene).await?;
    scene.end(course).await
}

async fn drop_under_the_connector(scene: &Scene) -> anyhow::Result<()> {
    let client = scene.producer_database().await?;
    // the connector comes back within milliseconds: whoever is first has the slot
    let wait = async {
        loop {
            let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                       WHERE slot_name = $1 AND active";
            client.execute(sql, &[&CONNECTOR]).await?;
            let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                       WHERE slot_name = $1";
            if client.execute(sql, &[&CONNECTOR]).await.is_ok_and(|dropped| dropped == 1) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.context("the slot cannot be dropped")?
}
