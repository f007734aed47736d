//! SIGKILL on the way of an event that fails: to its next attempts, to the dead letters, and back.

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Setup, Side};
use crate::oracle::verdict::Fault;

pub(super) const DRILL: Drill = Drill {
    name: "kill-dead-letter",
    injects: "SIGKILL of the consumer while it tries failing events again and moves them aside",
    expects: "all others applied once; the failing ones are dead letters, and applied once when retried",
    why: "An event that fails is written to the consumer's database before its entry is acknowledged, in the \
transaction that applies the others, so at any moment it is in one place at least. Attempts are counted before \
they begin: one that takes its worker with it counts as well, and cannot go on for ever.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

/// Fails for these amounts while the divisor is zero.
const FAILS: &str = "\
SELECT CASE WHEN (payload ->> 'amount')::numeric = 13 THEN 1 / divisor END FROM events, drill_divisor;";
const POISON: i64 = 13;
const RATE: u32 = 100;
/// Where the worker dies, one after the other, for one failing event each. An event is tried alone
/// once a worker died with it in hand.
const POINTS: [&[&str]; 3] = [
    &["inbox::before_commit"],
    &["inbox::round_marked", "inbox::attempt_started"],
    &["inbox::after_commit"],
];

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut setup = Setup::new(Relay::Connector)
        .set("consumer.max_attempts=3")
        .set("consumer.attempt_first=100ms")
        .set("consumer.attempt_longest=200ms");
    setup.projection = FAILS;
    let mut scene = Scene::set(course, setup).await?;
    let books = scene.divisor_is_zero().await?;
    scene.begin().await?;
    let load = scene.load("d", RATE, course.seed);
    load.commits(20).await?;
    for (number, points) in (1_u64..).zip(POINTS) {
        scene.consumer.stop(STOP_WITHIN).await?;
        // a customer of its own: later events of its aggregate would wait behind it
        let customer = format!("unlucky-{number}");
        scene.post_for(&customer, &customer, POISON).await?;
        for point in points {
            scene.consumer.start_with(&["--fault", &format!("{point}=kill")])?;
            scene.was_killed(Side::Consumer).await?;
            course.injected(format!("consumer killed at {point}, with an event that fails"));
        }
        scene.consumer.start()?;
        course.recovered(scene.caught_up().await?);
    }
    load.end(&mut scene).await?;
    scene.settled().await?;
    let dead = scene.state().await?;
    let failed = POINTS.len() as u64;
    course.check("events without an effect", &failed, &(dead.committed - dead.effects));

    books.batch_execute("UPDATE drill_divisor SET divisor = 1").await?;
    let (well, said) = scene.command(&["dead-letters", "retry", "--every"]).await?;
    let said = said.lines().next().unwrap_or_default().to_owned();
    course.holds("outflow dead-letters retry --every", "done", said, well);
    let all = dead.committed;
    scene.until("retried events are not applied", |state| state.effects == all).await?;
    scene.judge(course, &[(Fault::DeadLetter, failed)]).await
}
