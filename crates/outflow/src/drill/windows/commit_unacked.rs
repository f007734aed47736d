//! A worker dies after its commit, before XACK.

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Setup, Side};
use crate::drill::state::State;

pub(super) const DRILL: Drill = Drill {
    name: "commit-unacked",
    injects: "the worker dies after the commit, before XACK",
    expects: "applied, but still pending; delivered again it is a duplicate, and nothing is added",
    why: "The commit is in PostgreSQL, the acknowledgement in Redis, so one of them comes first. XACK \
after the commit means that a crash between them delivers the entry again, which the inbox key turns into \
a duplicate: success, acknowledged, counted. XACK before the commit would lose the event instead.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = Scene::set(course, Setup::new(Relay::Connector)).await?;
    scene.begin_relay().await?;
    scene.post("j-1", 100).await?;
    scene.consumer.start_with(&["--fault", "inbox::after_commit=kill"])?;
    scene.was_killed(Side::Consumer).await?;
    course.injected("worker-1 killed between its commit and XACK");
    let unacked = State {
        committed: 1,
        known: 1,
        entries: 1,
        ids: 1,
        pending: 1,
        inbox: 1,
        effects: 1,
        turnover: 100,
        ..State::default()
    };
    course.check("after the kill", &unacked, &scene.state().await?);

    let from = scene.consumer.log_end();
    scene.consumer.start()?;
    course.recovered(scene.caught_up().await?);
    scene.settled().await?;
    let acked = State { pending: 0, ..unacked };
    course.check("after the restart", &acked, &scene.state().await?);
    scene.consumer.stop(STOP_WITHIN).await?;
    let log = scene.consumer.logged_since(from);
    let duplicate = log.contains("duplicates: 1");
    let found = if duplicate { "a duplicate" } else { "something else, see its log" };
    course.holds("the worker counted it as", "a duplicate", found, duplicate);
    scene.judge(course, &[]).await
}
