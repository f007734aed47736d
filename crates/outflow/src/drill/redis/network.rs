//! The way to the broker: answers that never come, connections that are cut in the middle of a
//! batch, and a slow line.

use std::time::Duration;

use rand::Rng as _;

use super::under_load;
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Setup};

const WHY: &str = "Whoever sends a write and hears nothing cannot know whether it was done. Sending it again must \
be safe, and finding out must be possible: with ids that are made of positions, the entry at the id that Redis \
refuses is either one's own (done) or somebody else's (stop, and say so).";

pub(super) const SWALLOWED: Drill = Drill {
    name: "net-swallow",
    injects: "Redis does what it is asked to, but its answers are lost with the connection, five times",
    expects: "each position once: what was done unheard is found and not repeated",
    why: WHY,
    breaks: &[],
    run: |course| Box::pin(swallowed(course)),
};

pub(super) const CUT: Drill = Drill {
    name: "net-cut",
    injects: "connections of relay and consumer to both servers are cut in the middle of a request, twenty times",
    expects: "a batch is in the stream as a whole or not at all; each position once, in order",
    why: WHY,
    breaks: &[],
    run: |course| Box::pin(cut(course)),
};

pub(super) const SLOW: Drill = Drill {
    name: "net-slow",
    injects: "every piece on the way to Redis waits for 50 ms, at 200 KB/s, for some seconds",
    expects: "late, and nothing else; caught up when the line is good again",
    why: "Batches fill while the one before them is on its way, so a slow line makes batches larger rather than \
the queue longer, and the throughput of a line is not its round trips.",
    breaks: &[],
    run: |course| Box::pin(slow(course)),
};

async fn swallowed(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    for _ in 0..5 {
        let before = scene.sink.request_bytes();
        scene.sink.swallow_replies();
        load.commits(50).await?;
        let unheard = scene.sink.request_bytes() - before;
        scene.sink.cut();
        scene.sink.resume();
        course.injected(format!("the answers to {unheard} bytes of requests were lost"));
        course.recovered(scene.caught_up().await?);
    }
    load.end(&mut scene).await?;
    scene.end(course).await
}

async fn cut(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    for number in 1..=20 {
        let (relay, consumer) =
            (course.rng.random_range(1..20_000), course.rng.random_range(1..2_000));
        scene.sink.cut_after(relay);
        scene.inbox.cut_after(consumer);
        // what the relay tells the source is short
        scene.source.cut_after(course.rng.random_range(1..500));
        course
            .injected(format!("cut after {relay} bytes of the relay, {consumer} of the consumer"));
        let pause = Duration::from_millis(course.rng.random_range(0..200));
        tokio::time::sleep(pause).await;
        load.commits(20).await?;
        if number % 5 == 0 {
            course.recovered(scene.caught_up().await?);
        }
    }
    load.end(&mut scene).await?;
    scene.end(course).await
}

async fn slow(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    for way in [&scene.sink, &scene.inbox] {
        way.delay(Duration::from_millis(50));
        way.throttle(200_000);
    }
    course.injected("50 ms and 200 KB/s on the way to Redis");
    load.commits(1000).await?;
    for way in [&scene.sink, &scene.inbox] {
        way.delay(Duration::ZERO);
        way.throttle(0);
    }
    course.recovered(scene.caught_up().await?);
    load.end(&mut scene).await?;
    scene.end(course).await
}
