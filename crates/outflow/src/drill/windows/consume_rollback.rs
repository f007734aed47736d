//! The consumer's transaction fails after the inbox insert.

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Scene, Series, Setup, Side, says_why};
use crate::drill::state::State;

pub(super) const DRILL: Drill = Drill {
    name: "consume-rollback",
    injects: "the projection divides by zero after the inbox row was inserted; the worker dies at the rollback",
    expects: "inbox and projection unchanged, the entry still pending, the reason said; applied once it is mended",
    why: "Inbox row and projection are written in one transaction, so a projection that fails takes the \
inbox row with it: there is no moment in which an event counts as applied without its effect. XACK comes \
after the commit, so the entry stays pending, and comes again. A worker that lives on writes the failed event \
down in its own database (parked) in a transaction of its own, acknowledges, and tries it again later, so that \
others need not wait.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

/// Fails for every event while the divisor is zero.
const DIVIDES: &str = "SELECT 1 / divisor FROM drill_divisor, events;";

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut setup = Setup::new(Relay::Connector);
    setup.projection = DIVIDES;
    let mut scene = Scene::set(course, setup).await?;
    let books = scene.divisor_is_zero().await?;
    scene.begin_relay().await?;
    scene.post("j-1", 100).await?;
    scene.consumer.start_with(&["--fault", "inbox::rolled_back=kill"])?;
    scene.was_killed(Side::Consumer).await?;
    course.injected("a projection that divides by zero; worker killed at the rollback");
    let rolled_back =
        State { committed: 1, known: 1, entries: 1, ids: 1, pending: 1, ..State::default() };
    course.check("after the rollback", &rolled_back, &scene.state().await?);

    let from = scene.consumer.log_end();
    scene.consumer.start()?;
    let failed = [Series::of_consumer("outflow_attempts_failed_total")];
    says_why(course, &mut scene.consumer, from, &["division by zero"], &failed).await;
    scene.until("the event is not parked", |state| state.parked == 1 && state.pending == 0).await?;
    let parked = State { pending: 0, parked: 1, ..rolled_back };
    course.check("while it fails", &parked, &scene.state().await?);

    books.batch_execute("UPDATE drill_divisor SET divisor = 1").await?;
    course.recovered(scene.caught_up().await?);
    scene.settled().await?;
    let mended = State { parked: 0, inbox: 1, effects: 1, turnover: 100, ..parked };
    course.check("after it was mended", &mended, &scene.state().await?);
    scene.judge(course, &[]).await
}
