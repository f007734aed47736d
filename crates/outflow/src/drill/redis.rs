//! What becomes of the broker, and of the way to it.

mod crash;
mod everything_lost;
mod failover;
mod network;
mod refusals;
mod sentinel;
mod stall;

use super::course::Course;
use super::list::Drill;
use super::scene::{Load, Scene, Setup};

/// Crashes, losses, refusals, and the network.
pub(super) const DRILLS: &[Drill] = &[
    crash::ALWAYS,
    crash::EVERYSEC,
    everything_lost::CRASH,
    everything_lost::FLUSHALL,
    failover::DRILL,
    failover::KILLED,
    sentinel::DRILL,
    refusals::OOM,
    refusals::READONLY,
    refusals::MISCONF,
    refusals::LOADING,
    stall::DRILL,
    network::SWALLOWED,
    network::CUT,
    network::SLOW,
];

/// Events a second while the broker is broken.
const RATE: u32 = 300;

/// A scene at work, with producers.
async fn under_load(course: &Course, setup: Setup) -> anyhow::Result<(Scene, Load)> {
    let mut scene = Scene::set(course, setup).await?;
    scene.begin().await?;
    let load = scene.load("b", RATE, course.seed);
    load.commits(50).await?;
    Ok((scene, load))
}
