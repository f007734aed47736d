//! SIGKILL while the connector starts for the first time, with rows that are older than its slot.

use tokio::time::Instant;

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Scene, Setup, Side};

pub(super) const DRILL: Drill = Drill {
    name: "kill-snapshot",
    injects: "SIGKILL at each step between the plan of a snapshot, the slot, its pages and the stream",
    expects: "rows from before the slot and events from after it, each once, in order, without a seam",
    why: "A snapshot is planned in the offset before the slot is created, so a crash in between leaves a plan \
that says so, and the next start begins anew with nothing published. Once the snapshot's visible transactions \
are stored, a crash goes on at the page that is not published; rows of it have positions below the slot's \
consistent point, so a repetition is refused like any other.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

/// Point, hit, and whether there are rows that are older than the slot.
const STEPS: [(&str, u32, bool); 5] = [
    ("relay::snapshot_planned", 1, true),
    ("relay::snapshot_slot_created", 1, true),
    ("relay::snapshot_begun", 1, true),
    ("relay::snapshot_page_published", 2, true),
    ("relay::slot_created", 1, false),
];
const ROWS: u64 = 300;

async fn run(course: &mut Course) -> anyhow::Result<()> {
    for step in STEPS {
        one(course, step).await?;
    }
    Ok(())
}

async fn one(course: &mut Course, (point, hit, rows): (&str, u32, bool)) -> anyhow::Result<()> {
    let mut setup = Setup::new(Relay::Connector).set("sink.batch_entries=50");
    if !rows {
        setup = setup.set("source.snapshot=never");
    }
    let mut scene = Scene::set(course, setup).await?;
    if rows {
        // a message that is older than the slot would be nowhere: rows and nothing else
        let load = scene.load_rows("s", 2000, course.seed);
        load.commits(ROWS).await?;
        load.end(&mut scene).await?;
    }
    scene.relay.start_with(&["--fault", &format!("{point}=kill@{hit}")])?;
    scene.was_killed(Side::Relay).await?;
    course.injected(format!("relay killed at {point}"));
    let since = Instant::now();
    scene.begin_relay().await?;
    scene.consumer.start()?;
    let load = scene.load("t", 300, course.seed);
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}
