//! A known event id comes with another payload.

use super::{add_again, one_applied};
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Series, says_why};
use crate::drill::state::State;
use crate::oracle::verdict::Fault;

pub(super) const DRILL: Drill = Drill {
    name: "same-id-other-payload",
    injects: "another entry with the same event id and another amount",
    expects: "the original holds, the conflict is stored, counted and said; other events go on",
    why: "A second payload under a known id is not a duplicate: one of the two is wrong, and a program \
cannot know which. Taking it for a duplicate would swallow a fact, applying it would count one twice. \
The inbox binds an id to its payload (compared as jsonb, so order and white space do not count), so the \
difference shows; the refused event is kept until a person settles it with `outflow conflicts`.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, once) = one_applied(course).await?;
    let from = scene.consumer.log_end();
    let id = add_again(&mut scene, |name, value| match name {
        "payload" => value.replace("100", "900"),
        _ => value,
    })
    .await?;
    course.injected(format!("entry {id} with the event id of the one before and another amount"));
    let conflicts = [Series::of_consumer("outflow_conflicts_total")];
    says_why(course, &mut scene.consumer, from, &["conflict"], &conflicts).await;
    scene.settled().await?;
    let refused = State { entries: 2, conflicts: 1, ..once };
    course.check("after", &refused, &scene.state().await?);
    let (_, said) = scene.command(&["conflicts", "list"]).await?;
    let shown = said.contains("journal");
    let found = said.lines().last().unwrap_or_default().trim().to_owned();
    course.holds("outflow conflicts list", "names it", found, shown);

    scene.delivers("j-2").await?;
    scene.settled().await?;
    let on = State {
        committed: 2,
        known: 2,
        entries: 3,
        ids: 2,
        inbox: 2,
        effects: 2,
        turnover: 101,
        ..refused
    };
    course.check("after the next event", &on, &scene.state().await?);
    scene.judge(course, &[(Fault::Altered, 1), (Fault::Conflict, 1)]).await
}
