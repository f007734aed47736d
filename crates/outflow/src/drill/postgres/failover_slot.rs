//! Failover with a failover slot, PostgreSQL 17 and later.

use std::time::Duration;

use anyhow::Context;
use outflow_sandbox::Postgres;

use super::RATE;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{CONNECTOR, PATIENCE, Relay, Scene, Setup, is_at_work};

pub(super) const DRILL: Drill = Drill {
    name: "pg-failover-slot",
    injects: "failover under load to a standby that keeps a copy of the slot (PostgreSQL 17 and later)",
    expects: "goes on by itself; nothing lost or doubled",
    why: "A failover slot is copied to standbys by their slot-sync worker, and synchronized_standby_slots keeps the \
primary from sending what the standby does not have yet. So what was published is on the standby too, history does not \
fork below it, and the slot is where it was: the connector only finds another timeline.",
    breaks: &[Server::Postgres],
    run: |course| Box::pin(run(course)),
};

/// The physical slot of the standby.
const STANDBY: &str = "drill_standby";

async fn run(course: &mut Course) -> anyhow::Result<()> {
    // a rewind point is a copy made here, and no standby gets it
    let mut setup = Setup::new(Relay::Connector).set("source.rewind_interval=0s");
    setup.books_apart = true;
    let mut scene = Scene::set(course, setup).await?;
    if scene.postgres()?.version() < 17 {
        course.skip(format!("needs PostgreSQL 17, this is {}", scene.postgres()?.version()));
        return Ok(());
    }
    let client = scene.producer_database().await?;
    // made by hand, as outflow does not ask for failover; the connector takes up a slot that is there
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)";
    client.execute(sql, &[&CONNECTOR]).await?;
    let sql = "SELECT pg_create_physical_replication_slot($1, true)";
    client.execute(sql, &[&STANDBY]).await?;
    let standby = standby_of(scene.postgres()?).await?;
    scene.postgres()?.alter_system("synchronized_standby_slots", STANDBY).await?;
    scene.begin().await?;
    let load = scene.load_rows("f", RATE, course.seed);
    load.commits(200).await?;
    has_the_slot(&standby).await?;
    load.commits(100).await?;
    // what the primary acknowledged to producers and had not sent yet may be forgotten
    load.end(&mut scene).await?;
    scene.settled().await?;
    scene.postgres()?.kill().await?;
    standby.promote().await?;
    let from = scene.relay.log_end();
    let old = scene.source_moves_to(standby);
    course.injected("primary killed, standby with the slot promoted");
    let since = tokio::time::Instant::now();
    scene.relay.says(from, PATIENCE, is_at_work).await?;
    let load = scene.load_rows("g", RATE, course.seed);
    load.commits(200).await?;
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    load.end(&mut scene).await?;
    scene.end(course).await?;
    drop(old);
    Ok(())
}

/// A standby that synchronizes slots.
async fn standby_of(primary: &Postgres) -> anyhow::Result<Postgres> {
    let standby = Postgres::builder().standby_of(primary).start().await?;
    let url = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", primary.port());
    for (name, value) in [
        ("primary_conninfo", url.as_str()),
        ("primary_slot_name", STANDBY),
        ("hot_standby_feedback", "on"),
        ("sync_replication_slots", "on"),
    ] {
        standby.alter_system(name, value).await?;
    }
    Ok(standby)
}

/// Waits until the slot would survive a failover.
async fn has_the_slot(standby: &Postgres) -> anyhow::Result<()> {
    let client = standby.connect().await?;
    let sql = "SELECT FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary";
    let wait = async {
        while client.query_opt(sql, &[&CONNECTOR]).await?.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.context("the slot does not come to the standby")?
}
