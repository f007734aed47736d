//! What becomes of the source: crashes, shutdowns, slots and publications that go, failovers.

mod crash;
mod failover_slot;
mod history;
mod publication;
mod slot;

use tokio::time::Instant;

use super::course::Course;
use super::list::Drill;
use super::scene::{Load, READY_WITHIN, STOP_WITHIN, Scene, Setup, names_it};

/// Crashes and shutdowns, then what is gone or swapped, then another history.
pub(super) const DRILLS: &[Drill] = &[
    crash::KILL,
    crash::IMMEDIATE,
    crash::FAST,
    slot::LOST,
    slot::RECREATED,
    slot::DROPPED,
    publication::DROPPED,
    publication::SWAPPED,
    history::FORK,
    history::EPOCH,
    history::PROMOTED,
    failover_slot::DRILL,
    history::RESTORED,
];

/// Events a second while the source is broken.
const RATE: u32 = 300;
/// The exit code of a refusal.
const REFUSED: i32 = 3;

/// A scene at work, with producers whose events have rows: some of these drills need to publish
/// them again.
async fn under_load(course: &Course, setup: Setup) -> anyhow::Result<(Scene, Load)> {
    let mut scene = Scene::set(course, setup).await?;
    scene.begin().await?;
    let load = scene.load_rows("p", RATE, course.seed);
    load.commits(100).await?;
    Ok((scene, load))
}

/// Starts the relay, which must refuse to start, with one of these words.
async fn refuses(course: &mut Course, scene: &mut Scene, words: &[&str]) -> anyhow::Result<()> {
    let from = scene.relay.log_end();
    scene.relay.start()?;
    let status = scene.relay.ended(READY_WITHIN).await?;
    let log = scene.relay.logged_since(from);
    let said = log.lines().next_back().unwrap_or_default().trim().to_owned();
    let right = status.code() == Some(REFUSED) && words.iter().any(|word| said.contains(word));
    let expected = format!("exit code 3, with \"{}\"", words.join("\" or \""));
    course.holds("the connector refuses to start", expected, format!("{status}: {said}"), right);
    names_it(course, &scene.relay, Instant::now(), words).await;
    Ok(())
}

/// The way out of a refusal that the runbook has: all rows once more.
async fn begins_again_from_rows(course: &mut Course, scene: &mut Scene) -> anyhow::Result<()> {
    // consumers drop what they have applied
    scene.rules.may_repeat = true;
    let since = Instant::now();
    let (well, said) = scene.command(&["offsets", "reset", "--from-rows", "--yes"]).await?;
    let said = said.lines().next().unwrap_or_default().to_owned();
    course.holds("outflow offsets reset --from-rows --yes", "done", said, well);
    scene.begin_relay().await?;
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    Ok(())
}

/// Stops producers, lets all settle, and stops the relay.
async fn at_rest(scene: &mut Scene, load: Load) -> anyhow::Result<()> {
    load.end(scene).await?;
    scene.settled().await?;
    scene.relay.stop(STOP_WITHIN).await
}
