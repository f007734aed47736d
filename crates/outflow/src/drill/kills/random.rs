//! SIGKILL at moments that nobody chose, of both sides, under load.

use std::time::Duration;

use rand::Rng as _;

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Scene, Setup, Side};

/// Events a second.
const RATE: u32 = 300;
/// After so many kills everything may catch up, and it is measured how long that takes.
const BREATH: u32 = 5;

const WHY: &str = "Gaps that somebody thought of are not all gaps. Kills at random moments, also of a process \
that is still recovering from the last one, meet the others.";

pub(super) const CONNECTOR: Drill = Drill {
    name: "kill-random",
    injects: "SIGKILL of connector or consumer at random moments, --times of them",
    expects: "each position once, each effect once, in order",
    why: WHY,
    breaks: &[],
    run: |course| Box::pin(run(course, Relay::Connector)),
};

pub(super) const POLLING: Drill = Drill {
    name: "kill-random-polling",
    injects: "SIGKILL of polling relay or consumer at random moments, --times of them",
    expects: "at least one entry an event, each effect once, in order",
    why: WHY,
    breaks: &[],
    run: |course| Box::pin(run(course, Relay::Polling)),
};

async fn run(course: &mut Course, relay: Relay) -> anyhow::Result<()> {
    let setup = match relay {
        Relay::Connector => Setup::new(relay),
        Relay::Polling => Setup::new(relay).set("polling.lease=1s"),
    };
    let mut scene = Scene::set(course, setup).await?;
    scene.begin().await?;
    let load = scene.load("r", RATE, course.seed);
    load.commits(50).await?;
    for number in 1..=course.times {
        let side = if course.rng.random() { Side::Relay } else { Side::Consumer };
        let mut millis = |most: u64| Duration::from_millis(course.rng.random_range(0..most));
        let (after, dead) = (millis(400), millis(300));
        tokio::time::sleep(after).await;
        let child = scene.side(side);
        let pid = child.kill().await?;
        course.injected(format!(
            "{} (pid {pid}) killed after {after:?}, dead for {dead:?}",
            child.name()
        ));
        tokio::time::sleep(dead).await;
        child.start()?;
        if number % BREATH == 0 || number == course.times {
            course.recovered(scene.caught_up().await?);
        }
    }
    load.end(&mut scene).await?;
    scene.end(course).await
}
