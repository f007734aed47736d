//! A Redis that answers, and refuses: OOM, READONLY, MISCONF, LOADING.

use std::time::Duration;

use outflow_sandbox::Redis;

use super::under_load;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Load, Relay, Scene, Series, Setup, says_why};

const WHY: &str = "Redis checks whether it may write when a command is queued, and refuses the whole MULTI/EXEC \
transaction if it may not: a batch is all or nothing, so no event overtakes a refused one. The connector waits, \
asks again with growing delays, keeps its slot alive, and says what Redis answered.";

pub(super) const OOM: Drill = Drill {
    name: "redis-oom",
    injects: "maxmemory below what is used, with noeviction, under load",
    expects: "waits and says OOM; goes on by itself, nothing lost or doubled",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(oom(course)),
};

pub(super) const READONLY: Drill = Drill {
    name: "redis-readonly",
    injects: "the way leads to a replica for a while, as after a failover that DNS does not know of",
    expects: "waits and says that it is a replica; goes on by itself, nothing lost or doubled",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(readonly(course)),
};

pub(super) const MISCONF: Drill = Drill {
    name: "redis-misconf",
    injects: "a snapshot that cannot be written, so that Redis stops taking writes",
    expects: "waits and says MISCONF; goes on by itself, nothing lost or doubled",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(misconf(course)),
};

pub(super) const LOADING: Drill = Drill {
    name: "redis-loading",
    injects: "an orderly restart of a Redis that takes seconds to load its data",
    expects: "waits and says LOADING; goes on by itself, nothing lost or doubled",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(loading(course)),
};

/// Looks whether the relay says why it waits. What comes in meanwhile has to wait as well.
async fn waits(
    course: &mut Course,
    scene: &mut Scene,
    load: &Load,
    from: u64,
    word: &str,
) -> anyhow::Result<()> {
    says_why(course, &mut scene.relay, from, &[word], &[Series::relay_waits_on("sink")]).await;
    load.commits(50).await
}

async fn end(course: &mut Course, mut scene: Scene, load: Load) -> anyhow::Result<()> {
    course.recovered(scene.caught_up().await?);
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}

async fn oom(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let from = scene.relay.log_end();
    scene.redis()?.config_set("maxmemory", "1mb").await?;
    course.injected("maxmemory 1mb");
    waits(course, &mut scene, &load, from, "OOM").await?;
    scene.redis()?.config_set("maxmemory", "0").await?;
    end(course, scene, load).await
}

async fn readonly(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let replica = Redis::builder().start().await?;
    replica.replica_of(scene.redis()?).await?;
    let from = scene.relay.log_end();
    scene.sink.point_at(format!("127.0.0.1:{}", replica.port()));
    scene.sink.cut();
    course.injected("the relay's way leads to a replica");
    waits(course, &mut scene, &load, from, "replica").await?;
    scene.sink.point_at(format!("127.0.0.1:{}", scene.redis()?.port()));
    scene.sink.cut();
    end(course, scene, load).await
}

async fn misconf(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let from = scene.relay.log_end();
    // a folder stands where the file should go
    std::fs::create_dir(scene.redis()?.dir().join("dump.rdb"))?;
    scene.redis()?.config_set("save", "3600 100000").await?;
    let mut broker = scene.broker().await?;
    redis::cmd("BGSAVE").exec_async(&mut broker).await?;
    course.injected("BGSAVE into a place that cannot be written");
    waits(course, &mut scene, &load, from, "MISCONF").await?;
    scene.redis()?.config_set("save", "").await?;
    end(course, scene, load).await
}

async fn loading(course: &mut Course) -> anyhow::Result<()> {
    /// Keys, each of which takes a millisecond to load.
    const KEYS: u32 = 5000;
    let mut setup = Setup::new(Relay::Connector);
    setup.redis = Redis::builder()
        .setting("save", "3600 1000000")
        .setting("key-load-delay", 1000)
        .setting("loading-process-events-interval-bytes", 1024);
    let (mut scene, load) = under_load(course, setup).await?;
    let mut broker = scene.broker().await?;
    let mut fill = redis::cmd("MSET");
    for key in 0..KEYS {
        fill.arg(format!("ballast-{key}")).arg("x".repeat(64));
    }
    fill.exec_async(&mut broker).await?;
    let from = scene.relay.log_end();
    scene.redis()?.stop(Duration::from_secs(10)).await?;
    course.injected("Redis restarted, with data that takes 5 s to load");
    let server = std::sync::Arc::clone(scene.redis()?);
    let starting = tokio::spawn(async move { server.start_again().await });
    waits(course, &mut scene, &load, from, "LOADING").await?;
    starting.await??;
    end(course, scene, load).await
}
