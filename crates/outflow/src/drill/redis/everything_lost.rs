//! Redis forgets all that it had acknowledged: streams, groups and offset.

use tokio::time::Instant;

use super::RATE;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Series, Setup, says, shows_it};
use crate::oracle::verdict::Fault;

const WHY: &str = "No program can bring back what a broker has acknowledged and forgotten, if nothing else has \
it. The outbox has: the slot only tells what was confirmed, so the connector goes on from there and the rest is \
published again from rows, with the command of the runbook. Events keep their ids, so consumers drop what they \
had applied. Keep persistence on, and rows for longer than it takes to notice.";

pub(super) const CRASH: Drill = Drill {
    name: "redis-kill-without-persistence",
    injects: "SIGKILL of a Redis without persistence under load, then `outflow offsets reset --from-rows`",
    expects: "the loss is said; after the reset no event is lost, each effect once; order across the loss is not kept",
    why: WHY,
    breaks: &[Server::Redis],
    run: |course| Box::pin(run(course, Loss::Crash)),
};

pub(super) const FLUSHALL: Drill = Drill {
    name: "redis-flushall",
    injects: "FLUSHALL under load, then `outflow offsets reset --from-rows`",
    expects: "the loss is said; after the reset no event is lost, each effect once; order across the loss is not kept",
    why: WHY,
    breaks: &[],
    run: |course| Box::pin(run(course, Loss::Flushall)),
};

#[derive(Debug, Clone, Copy)]
enum Loss {
    Crash,
    Flushall,
}

async fn run(course: &mut Course, loss: Loss) -> anyhow::Result<()> {
    let mut scene = Scene::set(course, Setup::new(Relay::Connector)).await?;
    // rows that were published after the loss are published once more
    scene.rules.may_repeat = true;
    // what was published since the loss stands before what is published again
    course.tolerate(Fault::Reordered);
    scene.begin().await?;
    // messages have no rows to publish again from
    let load = scene.load_rows("b", RATE, course.seed);
    load.commits(200).await?;
    let from = scene.consumer.log_end();
    match loss {
        Loss::Crash => {
            scene.redis()?.kill().await?;
            course.injected("Redis killed, and with it all that it had");
            scene.redis()?.start_again().await?;
        }
        Loss::Flushall => {
            let mut broker = scene.broker().await?;
            redis::cmd("FLUSHALL").exec_async(&mut broker).await?;
            course.injected("FLUSHALL");
        }
    }
    let noticed = Instant::now();
    says(course, &mut scene.consumer, from, &["the group was gone", "lost"]).await;
    let rebuilt = [Series::of_consumer("outflow_groups_rebuilt_total")];
    shows_it(course, &scene.consumer, noticed, &rebuilt).await;
    load.commits(100).await?;
    load.end(&mut scene).await?;

    let since = Instant::now();
    scene.relay.stop(STOP_WITHIN).await?;
    let (well, said) = scene.command(&["offsets", "reset", "--from-rows", "--yes"]).await?;
    let said = said.lines().next().unwrap_or_default().to_owned();
    course.holds("outflow offsets reset --from-rows --yes", "done", said, well);
    scene.begin_relay().await?;
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    scene.end(course).await
}
