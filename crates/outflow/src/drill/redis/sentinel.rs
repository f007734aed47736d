//! A failover that sentinels decide.

use std::sync::Arc;

use outflow_sandbox::Redis;
use tokio::time::Instant;

use super::RATE;
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Scene, Setup};

pub(super) const DRILL: Drill = Drill {
    name: "redis-sentinel",
    injects: "SIGKILL of the primary under load; a sentinel promotes its replica",
    expects: "relay and consumer follow by themselves; what the replica lacked is filled in",
    why: "With sentinels nobody moves an address: clients ask who the primary is, and ask again when it is gone. \
What the replica had not got is a loss like any other: see redis-failover.",
    run: |course| Box::pin(run(course)),
};

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = Scene::set(Setup::new(Relay::Connector)).await?;
    let replica = Redis::builder().start().await?;
    replica.replica_of(&scene.redis).await?;
    let sentinel = Redis::builder().sentinel_of("main", &scene.redis, 1).start().await?;
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    scene.reached_by(&[format!("sink.url={url}"), format!("consumer.redis_url={url}")]);
    scene.begin().await?;
    let load = scene.load("b", RATE, course.seed);
    load.commits(200).await?;
    scene.redis.kill().await?;
    let since = Instant::now();
    course.injected("the primary killed, behind a sentinel");
    let old = std::mem::replace(&mut scene.redis, Arc::new(replica));
    load.commits(100).await?;
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await?;
    drop(old);
    Ok(())
}
