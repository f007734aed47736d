//! Two connectors on one slot.

use std::time::Duration;

use tokio::time::Instant;

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{READY_WITHIN, Relay, Scene, Series, Setup, is_at_work, says_why};

pub(super) const DRILL: Drill = Drill {
    name: "standby-connector",
    injects: "a second connector on the slot; the first is killed, again and again",
    expects: "the second says that it waits, and takes over within seconds",
    why: "PostgreSQL lets one connection read a slot. The second connector asks again and again, and streams from \
the stored offset as soon as the server has noticed that the first one's connection is gone: at once for a \
process that died, after wal_sender_timeout for a machine that did.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

const RATE: u32 = 300;
const ROUNDS: u32 = 3;
/// Within seconds: delays between two attempts are at most one.
const TAKES_OVER_WITHIN: Duration = Duration::from_secs(10);

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = Scene::set(course, Setup::new(Relay::Connector)).await?;
    scene.begin().await?;
    let load = scene.load("s", RATE, course.seed);
    load.commits(50).await?;
    let mut standby = scene.process("standby", &["relay"]);
    for round in 1..=ROUNDS {
        let from = standby.log_end();
        standby.start()?;
        says_why(course, &mut standby, from, &["slot"], &[Series::relay_waits_on("slot")]).await;
        let from = standby.log_end();
        let since = Instant::now();
        let pid = scene.relay.kill().await?;
        course.injected(format!("round {round}: the connector at work (pid {pid}) killed"));
        let taken = standby.says(from, TAKES_OVER_WITHIN, is_at_work).await;
        let found = match &taken {
            Ok(_) => format!("after {:.1} s", since.elapsed().as_secs_f64()),
            Err(error) => error.to_string(),
        };
        course.holds("the standby takes over", "within 10 s", found, taken.is_ok());
        scene.caught_up().await?;
        course.recovered(since.elapsed());
        // the one that is at work now is the next one to die
        std::mem::swap(&mut scene.relay, &mut standby);
    }
    load.commits(50).await?;
    load.end(&mut scene).await?;
    tokio::time::timeout(READY_WITHIN * 3, scene.end(course)).await?
}
