//! A failover to a replica that lacks entries which the primary had acknowledged.

use std::time::Duration;

use anyhow::Context;
use outflow_sandbox::Redis;

use super::under_load;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{
    Broker, Load, PATIENCE, Relay, STOP_WITHIN, STREAM, Scene, Setup, Side, says,
};

pub(super) const DRILL: Drill = Drill {
    name: "redis-failover",
    injects: "failover to a replica that lacks the last seconds of acknowledged entries",
    expects: "the connector goes back to a rewind point; the stream ends complete, each position once",
    why: "Replication is asynchronous: a primary acknowledges what its replica may never get. The offset goes \
back with the entries, as it stands in the same Redis, but a slot cannot: PostgreSQL does not stream again what \
was confirmed. So the connector keeps copies of its slot that lag behind (rewind points). It puts the slot back to \
one, streams from there, and what is still in the stream refuses its own repetition: exactly the gap is filled in.",
    breaks: &[Server::Redis],
    run: |course| Box::pin(run(course)),
};

pub(super) const KILLED: Drill = Drill {
    name: "kill-rewind",
    injects: "the same while the connector is away; its next start is killed between slot and rewind point",
    expects: "the start after that finds the rewind point, and the stream ends complete, each position once",
    why: "Putting a slot back is two steps, as a slot cannot be moved back: drop it, and copy the rewind point to \
its name. A crash in between leaves no slot, and a stored offset that needs one: the point is looked for again.",
    breaks: &[Server::Redis],
    run: |course| Box::pin(killed(course)),
};

async fn killed(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let (replica, _) = lagging(&mut scene, &load).await?;
    scene.relay.stop(STOP_WITHIN).await?;
    let old = fails_over(&mut scene, replica).await?;
    scene.relay.start_with(&["--fault", "relay::rewinding=kill"])?;
    scene.was_killed(Side::Relay).await?;
    course.injected("failover with loss, relay killed with its slot dropped and not yet copied");
    let from = scene.relay.log_end();
    scene.relay.start()?;
    says(course, &mut scene.relay, from, &["rewind point was there"]).await;
    course.recovered(scene.caught_up().await?);
    load.end(&mut scene).await?;
    scene.end(course).await?;
    drop(old);
    Ok(())
}

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let (replica, lost) = lagging(&mut scene, &load).await?;
    let from = scene.relay.log_end();
    let old = fails_over(&mut scene, replica).await?;
    course.injected(format!("the primary killed, a replica promoted that lacks {lost} entries"));
    says(course, &mut scene.relay, from, &["rewind point was there"]).await;
    load.commits(100).await?;
    course.recovered(scene.caught_up().await?);
    load.end(&mut scene).await?;
    scene.end(course).await?;
    drop(old);
    Ok(())
}

/// A replica that lacks entries which the primary has acknowledged, and how many these are at least.
async fn lagging(scene: &mut Scene, load: &Load) -> anyhow::Result<(Redis, u64)> {
    let replica = Redis::builder().start().await?;
    replica.replica_of(scene.redis()?).await?;
    has_rewind_point(scene).await?;
    load.commits(200).await?;
    // from here on the replica gets nothing, and the primary goes on to acknowledge
    replica.promote().await?;
    load.commits(200).await?;
    scene.caught_up().await?;
    let length = redis::cmd("XLEN").arg(STREAM).clone();
    let all: u64 = length.query_async(&mut scene.broker().await?).await?;
    let kept: u64 = length.query_async(&mut replica.connect().await?).await?;
    Ok((replica, all - kept))
}

/// The primary dies, and every way leads to the replica. Returns what is left of the primary.
async fn fails_over(scene: &mut Scene, replica: Redis) -> anyhow::Result<Broker> {
    scene.redis()?.kill().await?;
    for way in [&scene.sink, &scene.inbox] {
        way.point_at(format!("127.0.0.1:{}", replica.port()));
        way.cut();
    }
    Ok(scene.broker_moves_to(replica))
}

/// Waits until there is a point to go back to.
async fn has_rewind_point(scene: &Scene) -> anyhow::Result<()> {
    let client = scene.producer_database().await?;
    let sql = "SELECT FROM pg_replication_slots WHERE slot_name ~ '_rewind_[12]$'";
    let wait = async {
        while client.query(sql, &[]).await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.context("no rewind point was made")?
}
