//! A failover that sentinels decide.

use std::time::Duration;

use anyhow::Context;
use outflow_sandbox::Redis;
use tokio::time::Instant;

use super::RATE;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{PATIENCE, Relay, STREAM, Scene, Setup};

pub(super) const DRILL: Drill = Drill {
    name: "redis-sentinel",
    injects: "SIGKILL of the primary under load; a sentinel promotes its replica",
    expects: "relay and consumer follow by themselves; what the replica lacked is filled in",
    why: "With sentinels nobody moves an address: clients ask who the primary is, and ask again when it is gone. \
What the replica had not got is a loss like any other: see redis-failover.",
    breaks: &[Server::Redis],
    run: |course| Box::pin(run(course)),
};

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = Scene::set(course, Setup::new(Relay::Connector)).await?;
    let replica = Redis::builder().start().await?;
    replica.replica_of(scene.redis()?).await?;
    let sentinel = Redis::builder().sentinel_of("main", scene.redis()?, 1).start().await?;
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    scene.reached_by(&[format!("sink.url={url}"), format!("consumer.redis_url={url}")]);
    scene.begin().await?;
    let load = scene.load("b", RATE, course.seed);
    load.commits(200).await?;
    is_fed(&replica).await?;
    load.commits(100).await?;
    scene.redis()?.kill().await?;
    let since = Instant::now();
    course.injected("the primary killed, behind a sentinel");
    let old = scene.broker_moves_to(replica);
    load.commits(100).await?;
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await?;
    drop(old);
    Ok(())
}

/// Waits until entries come to the replica. A primary begins to send a second after a replica is in
/// sync; one that dies before leaves an empty replica, which is another drill (redis-flushall).
async fn is_fed(replica: &Redis) -> anyhow::Result<()> {
    let mut broker = replica.connect().await?;
    let wait = async {
        while redis::cmd("XLEN").arg(STREAM).query_async::<u64>(&mut broker).await? == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.context("nothing comes to the replica")?
}
