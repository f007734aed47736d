//! A new entry carries an event id that was applied.

use super::{add_again, one_applied};
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::STOP_WITHIN;
use crate::drill::state::State;

pub(super) const DRILL: Drill = Drill {
    name: "same-id-new-entry",
    injects: "another entry with the same event id and the same payload",
    expects: "two entries, one inbox row, one effect",
    why: "An entry id names a delivery, an event id names a fact. A relay that publishes at least once, an \
operator who publishes again and a producer that retries all bring a new entry of a fact that is known. \
Whoever deduplicates by entry id applies it twice; the inbox key is consumer and event id.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, once) = one_applied(course).await?;
    let from = scene.consumer.log_end();
    let id = add_again(&mut scene, |_, value| value).await?;
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
