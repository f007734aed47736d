//! The source ends, one way or the other, and comes back.

use std::time::Duration;

use outflow_sandbox::Shutdown;

use super::under_load;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Relay, Series, Setup, says_why};

const WHY: &str = "A slot is on the disk like a table: after a crash it may have forgotten the last positions that \
it was told, never more. The connector resumes from its own stored offset and not from the slot's memory, so it \
asks for what it needs; what comes twice has positions that the stream refuses.";

pub(super) const KILL: Drill = Drill {
    name: "pg-kill",
    injects: "SIGKILL of all of PostgreSQL under load, three times",
    expects: "what was acknowledged is there; nothing lost or doubled; caught up in seconds",
    why: WHY,
    breaks: &[Server::Postgres],
    run: |course| Box::pin(run(course, How::Kill)),
};

pub(super) const IMMEDIATE: Drill = Drill {
    name: "pg-immediate",
    injects: "immediate shutdown of PostgreSQL under load, three times",
    expects: "nothing lost or doubled; caught up in seconds",
    why: WHY,
    breaks: &[Server::Postgres],
    run: |course| Box::pin(run(course, How::Immediate)),
};

pub(super) const FAST: Drill = Drill {
    name: "pg-fast",
    injects: "fast shutdown of PostgreSQL while the connector is connected, and Redis takes nothing",
    expects: "the server is down within 5 s; nothing lost or doubled afterwards",
    why: "A server that shuts down first sends its walsenders' clients all that is left and waits until they have \
confirmed it. A client that confirms only what its sink has taken would hold it up for as long as the sink \
stalls, and somebody would pull the plug. The connector answers that it has received what the server sends at \
its end, and lets go; the stored offset, not that answer, decides where it resumes.",
    breaks: &[Server::Postgres],
    run: |course| Box::pin(fast(course)),
};

#[derive(Debug, Clone, Copy)]
enum How {
    Kill,
    Immediate,
}

const ROUNDS: u32 = 3;
/// For a fast shutdown.
const DOWN_WITHIN: Duration = Duration::from_secs(5);
/// For any.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

async fn run(course: &mut Course, how: How) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    for _ in 0..ROUNDS {
        load.commits(100).await?;
        match how {
            How::Kill => scene.postgres()?.kill().await?,
            How::Immediate => {
                scene.postgres()?.stop(Shutdown::Immediate, ENDS_WITHIN).await?;
            }
        }
        course.injected(format!("PostgreSQL ended: {how:?}"));
        scene.postgres()?.start_again().await?;
        course.recovered(scene.caught_up().await?);
    }
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}

async fn fast(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let from = scene.relay.log_end();
    scene.sink.pause();
    load.commits(300).await?;
    let down = scene.postgres()?.stop(Shutdown::Fast, DOWN_WITHIN).await;
    course.injected("fast shutdown, with a connector that cannot publish");
    let found = match &down {
        Ok(took) => format!("after {:.1} s", took.as_secs_f64()),
        Err(error) => error.to_string(),
    };
    course.holds("the server is down", "within 5 s", found, down.is_ok());
    if down.is_err() {
        scene.postgres()?.stop(Shutdown::Immediate, ENDS_WITHIN).await?;
    }
    let waited = ["sink", "source"];
    let series = waited.map(Series::relay_waits_on);
    says_why(course, &mut scene.relay, from, &waited, &series).await;
    scene.postgres()?.start_again().await?;
    scene.sink.resume();
    course.recovered(scene.caught_up().await?);
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}
