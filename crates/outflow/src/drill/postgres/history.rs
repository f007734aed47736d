//! The source goes back in time: a standby that lagged is promoted, or an older backup is restored.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use outflow_sandbox::{Postgres, Shutdown};
use tokio::process::Command;

use super::{at_rest, begins_again_from_rows, refuses, under_load};
use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Setup, Side, says};
use crate::oracle::verdict::Fault;

const WHY: &str = "After it the source has forgotten events that were published, and new commits will come to stand \
at positions that were used. An entry id of an old position would be refused as a repetition, and the new event with \
it. So the epoch rises: it is the highest part of an entry id, and puts every new entry above every old one. What was \
published and forgotten stays in streams and projections; a person has to compare.";

pub(super) const FORK: Drill = Drill {
    name: "pg-fork",
    injects: "a standby that has the slot, but not the last published events, is promoted",
    expects: "goes on by itself in a new epoch and says so; nothing of the new history lost or doubled",
    why: WHY,
    breaks: &[Server::Postgres],
    run: |course| Box::pin(fork(course)),
};

pub(super) const EPOCH: Drill = Drill {
    name: "kill-epoch",
    injects: "the same, and SIGKILL of the connector when it has stored the new epoch and published nothing",
    expects: "the next start goes on in that epoch, not in another one",
    why: WHY,
    breaks: &[Server::Postgres],
    run: |course| Box::pin(epoch(course)),
};

pub(super) const PROMOTED: Drill = Drill {
    name: "pg-failover",
    injects: "the primary dies, and a standby without its last events and without the slot is promoted",
    expects: "refuses until a person has decided; then a new epoch, nothing of the new history lost",
    why: WHY,
    breaks: &[Server::Postgres],
    run: |course| Box::pin(promoted(course)),
};

pub(super) const RESTORED: Drill = Drill {
    name: "pg-restore",
    injects: "the source is restored from an older copy",
    expects: "refuses: its offset lies beyond the log; then a new epoch, nothing of the new history lost",
    why: WHY,
    breaks: &[Server::Postgres],
    run: |course| Box::pin(restored(course)),
};

/// Events that the source will forget, of a customer of their own.
const FORGOTTEN: u64 = 20;
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// With the consumer's database on another server: its history goes on.
fn setup() -> Setup {
    Setup { books_apart: true, ..Setup::new(Relay::Connector) }
}

/// A source at rest with an older copy of itself, that lacks the last published events.
async fn with_a_copy(course: &Course) -> anyhow::Result<(Scene, PathBuf)> {
    let (mut scene, load) = under_load(course, setup()).await?;
    at_rest(&mut scene, load).await?;
    scene.postgres()?.stop(Shutdown::Fast, ENDS_WITHIN).await?;
    let data = scene.postgres()?.data_dir();
    let copy = data.with_file_name("copy");
    copy_as_it_is(&data, &copy).await?;
    scene.postgres()?.start_again().await?;
    scene.begin_relay().await?;
    publish_what_is_forgotten(&mut scene).await?;
    scene.relay.stop(STOP_WITHIN).await?;
    scene.postgres()?.stop(Shutdown::Fast, ENDS_WITHIN).await?;
    std::fs::rename(&data, data.with_file_name("newer")).context("the data cannot be moved")?;
    std::fs::rename(&copy, &data).context("the copy cannot be moved")?;
    Ok((scene, data))
}

/// The same, with the copy promoted as a standby that keeps its slots is (PostgreSQL 17, Patroni).
async fn with_a_promoted_copy(course: &Course) -> anyhow::Result<Scene> {
    let (scene, data) = with_a_copy(course).await?;
    // any file of the right owner will do
    copy_as_it_is(&data.join("PG_VERSION"), &data.join("standby.signal")).await?;
    scene.postgres()?.start_again().await?;
    scene.postgres()?.promote().await?;
    Ok(scene)
}

/// Publishes and applies events that the source is about to forget.
async fn publish_what_is_forgotten(scene: &mut Scene) -> anyhow::Result<()> {
    let known = std::mem::take(&mut scene.record);
    for number in 0..FORGOTTEN {
        scene.post_for("forgotten", &format!("forgotten-{number}"), 1).await?;
    }
    scene.settled().await?;
    scene.record = known;
    Ok(())
}

/// New events, and the verdict: what was forgotten shows as leaked, once in the stream and once in
/// the inbox, and as a row of the projection that nobody can account for.
async fn goes_on(course: &mut Course, scene: &mut Scene) -> anyhow::Result<()> {
    let load = scene.load_rows("q", super::RATE, course.seed);
    load.commits(200).await?;
    course.recovered(scene.caught_up().await?);
    load.end(scene).await?;
    scene.settled().await?;
    scene.judge(course, &[(Fault::Leaked, 2 * FORGOTTEN), (Fault::Projection, 1)]).await
}

/// The highest part of the last entry's id.
async fn check_epoch(course: &mut Course, scene: &Scene) -> anyhow::Result<()> {
    let (_, said) = scene.command(&["status", "--json"]).await?;
    let report: serde_json::Value = serde_json::from_str(&said)?;
    let epoch = report.pointer("/offset/found/epoch").and_then(serde_json::Value::as_u64);
    course.check("the epoch", &1, &epoch.unwrap_or_default());
    Ok(())
}

async fn fork(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = with_a_promoted_copy(course).await?;
    course.injected(format!("a standby promoted that lacks the last {FORGOTTEN} published events"));
    let from = scene.relay.log_end();
    scene.relay.start()?;
    says(course, &mut scene.relay, from, &["promoted from an older state"]).await;
    goes_on(course, &mut scene).await?;
    check_epoch(course, &scene).await
}

async fn epoch(course: &mut Course) -> anyhow::Result<()> {
    let mut scene = with_a_promoted_copy(course).await?;
    scene.relay.start_with(&["--fault", "relay::epoch_raised=kill"])?;
    scene.was_killed(Side::Relay).await?;
    course.injected("a lagging standby promoted, relay killed with the new epoch stored");
    scene.begin_relay().await?;
    goes_on(course, &mut scene).await?;
    check_epoch(course, &scene).await
}

async fn promoted(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, setup()).await?;
    load.end(&mut scene).await?;
    scene.settled().await?;
    let standby = Postgres::builder().standby_of(scene.postgres()?).start().await?;
    standby.stop(Shutdown::Fast, ENDS_WITHIN).await?;
    publish_what_is_forgotten(&mut scene).await?;
    scene.relay.kill().await?;
    scene.postgres()?.kill().await?;
    standby.start_again().await?;
    standby.promote().await?;
    let old = scene.source_moves_to(standby);
    course
        .injected(format!("primary killed, standby promoted without the last {FORGOTTEN} events"));
    refuses(course, &mut scene, &["--from-rows"]).await?;
    begins_again_from_rows(course, &mut scene).await?;
    goes_on(course, &mut scene).await?;
    drop(old);
    Ok(())
}

async fn restored(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, _) = with_a_copy(course).await?;
    scene.postgres()?.start_again().await?;
    course.injected(format!("the source restored to before its last {FORGOTTEN} events"));
    refuses(course, &mut scene, &["--from-rows"]).await?;
    begins_again_from_rows(course, &mut scene).await?;
    goes_on(course, &mut scene).await
}

/// With owners and modes: the server's account is another one than ours where we are root.
async fn copy_as_it_is(from: &std::path::Path, to: &std::path::Path) -> anyhow::Result<()> {
    let status = Command::new("cp").arg("-a").args([from, to]).status().await;
    let status = status.context("cp cannot be run")?;
    if !status.success() {
        bail!("{} cannot be copied ({status})", from.display());
    }
    Ok(())
}
