//! Redis stands still for longer than the source waits for a sign of life.

use std::time::Duration;

use outflow_sandbox::Postgres;

use super::under_load;
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Relay, Series, Setup, says_why};

pub(super) const DRILL: Drill = Drill {
    name: "redis-stall",
    injects: "SIGSTOP of Redis for three times wal_sender_timeout or longer, under load",
    expects: "relay and consumer say why; the source keeps its connection; memory stays bounded; nothing lost or doubled",
    why: "A server drops a reader that says nothing for wal_sender_timeout. Status updates go out on a timer of \
their own, whatever the sink does, so the slot stays with this connector. What the sink cannot take is not \
read from the socket either: the server keeps it in its log, and memory stays where the configuration puts it.",
    breaks: &[Server::Postgres, Server::Redis],
    run: |course| Box::pin(run(course)),
};

const TIMEOUT: Duration = Duration::from_secs(2);

async fn run(course: &mut Course) -> anyhow::Result<()> {
    let mut setup = Setup::new(Relay::Connector);
    let timeout = format!("{}s", TIMEOUT.as_secs());
    setup.postgres = Postgres::builder().setting("wal_sender_timeout", timeout);
    let (mut scene, load) = under_load(course, setup).await?;
    let (of_relay, of_consumer) = (scene.relay.log_end(), scene.consumer.log_end());
    let dropped = |log: &str| log.matches("due to replication timeout").count();
    let before = dropped(&scene.postgres()?.log());
    scene.redis()?.sigstop()?;
    course.injected(format!("Redis paused for {:?} or longer", TIMEOUT * 3));
    let stalled = tokio::time::sleep(TIMEOUT * 3);
    let sink = [Series::relay_waits_on("sink")];
    says_why(course, &mut scene.relay, of_relay, &["sink"], &sink).await;
    let components = ["reader", "acker"];
    let series = components.map(Series::consumer_waits_in);
    says_why(course, &mut scene.consumer, of_consumer, &components, &series).await;
    stalled.await;
    scene.redis()?.sigcont()?;
    course.recovered(scene.caught_up().await?);
    let after = dropped(&scene.postgres()?.log());
    course.check("connections that the source dropped", &before, &after);
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}
