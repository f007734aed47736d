//! A new entry carries an event id that was applied.

use super::add_again;
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Setup};
use crate::drill::state::State;

pub(super) const DRILL: Drill = Drill {
    name: "same-id-new-entry",
    injects: "another entry with the same event id and the same payload",
    expects: "two entries, one inbox row, one effect",
    why: "An entry id names a delivery, an event id names a fact. A relay that publishes at least once, an \
operator who publishes again and a producer that retries all bring a new entry of a fact that is known. \
Whoever deduplicates by entry id applies it twice; the inbox key is consumer and event id.",
    run: |course| Box::pin(run(course)),
};

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = Scene::set(Setup::new(Relay::Connector)).await?;
    // the second entry is what the drill is about
    scene.rules.may_repeat = true;
    scene.begin().await?;
    scene.post("j-1", 100).await?;
    scene.settled().await?;
    let once = State {
        committed: 1,
        known: 1,
        entries: 1,
        ids: 1,
        inbox: 1,
        effects: 1,
        turnover: 100,
        ..State::default()
    };
    course.check("before", &once, &scene.state().await?);
    let from = scene.consumer.log_end();
    let id = add_again(&scene, |_, value| value).await?;
    course.injected(format!("entry {id} with the event id of the one before"));
    scene.settled().await?;
    let twice = State { entries: 2, ..once };
    course.check("after", &twice, &scene.state().await?);
    scene.consumer.stop(STOP_WITHIN).await?;
    let duplicate = scene.consumer.logged_since(from).contains("duplicates: 1");
    let found = if duplicate { "a duplicate" } else { "something else, see its log" };
    course.holds("the worker counted it as", "a duplicate", found, duplicate);
    scene.judge(course, &[]).await
}
