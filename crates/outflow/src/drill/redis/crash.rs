//! SIGKILL of a Redis that keeps what it acknowledges.

use outflow_sandbox::{Fsync, Redis};

use super::under_load;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Relay, Setup};

const WHY: &str = "Redis writes its append-only file before it answers, so what was acknowledged survives the \
death of the process with any appendfsync; of the machine only with `always` (or with sink.durability = \"fsync\"). \
A batch whose answer never came is sent again: the entries that are there refuse the repetition.";

pub(super) const ALWAYS: Drill = Drill {
    name: "redis-kill-aof-always",
    injects: "SIGKILL of Redis under load, three times; appendfsync always",
    expects: "nothing lost, each position once; caught up in seconds",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(run(course, Fsync::Always)),
};

pub(super) const EVERYSEC: Drill = Drill {
    name: "redis-kill-aof-everysec",
    injects: "SIGKILL of Redis under load, three times; appendfsync everysec",
    expects: "nothing lost, each position once; caught up in seconds",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(run(course, Fsync::EverySec)),
};

const ROUNDS: u32 = 3;

async fn run(course: &mut Course, fsync: Fsync) -> anyhow::Result<()> {
    let mut setup = Setup::new(Relay::Connector);
    setup.redis = Redis::builder().appendonly(fsync);
    let (mut scene, load) = under_load(course, setup).await?;
    for _ in 0..ROUNDS {
        load.commits(100).await?;
        scene.redis()?.kill().await?;
        course.injected("Redis killed");
        load.commits(50).await?;
        scene.redis()?.start_again().await?;
        course.recovered(scene.caught_up().await?);
    }
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}
