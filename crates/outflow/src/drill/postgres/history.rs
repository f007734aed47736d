//! The source goes back in time: a standby that lagged is promoted, or an older backup is restored.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use outflow_sandbox::{Postgres, Shutdown};
use tokio::process::Command;

use super::{at_rest, begins_again_from_rows, refuses, under_load};
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Scene, Setup};
use crate::oracle::verdict::Fault;

const WHY: &str = "After either, the source has forgotten events that were published, and new commits will come to \
stand at positions that were used. An entry id of an old position would be refused as a repetition, and the new event \
with it. So the epoch rises: it is the highest part of an entry id, and puts every new entry above every old one. \
What was published and forgotten stays in streams and projections; a person has to compare.";

pub(super) const PROMOTED: Drill = Drill {
    name: "pg-failover",
    injects: "the primary dies, and a standby without its last events is promoted",
    expects: "refuses until a person has decided; then a new epoch, nothing of the new history lost",
    why: WHY,
    run: |course| Box::pin(promoted(course)),
};

pub(super) const RESTORED: Drill = Drill {
    name: "pg-restore",
    injects: "the source is restored from an older copy",
    expects: "refuses: its offset lies beyond the log; then a new epoch, nothing of the new history lost",
    why: WHY,
    run: |course| Box::pin(restored(course)),
};

/// Events that the source will forget, of a customer of their own.
const FORGOTTEN: u64 = 20;
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// With the consumer's database on another server: its history goes on.
fn setup() -> Setup {
    Setup { books_apart: true, ..Setup::new(Relay::Connector) }
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
    load.end(scene).await?;
    scene.settled().await?;
    scene.judge(course, &[(Fault::Leaked, 2 * FORGOTTEN), (Fault::Projection, 1)]).await
}

async fn promoted(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, setup()).await?;
    load.end(&mut scene).await?;
    scene.settled().await?;
    let standby = Postgres::builder().standby_of(&scene.postgres).start().await?;
    standby.stop(Shutdown::Fast, ENDS_WITHIN).await?;
    publish_what_is_forgotten(&mut scene).await?;
    scene.relay.kill().await?;
    scene.postgres.kill().await?;
    standby.start_again().await?;
    standby.promote().await?;
    scene.source.point_at(format!("127.0.0.1:{}", standby.port()));
    scene.source.cut();
    let old = std::mem::replace(&mut scene.postgres, Arc::new(standby));
    course
        .injected(format!("primary killed, standby promoted without the last {FORGOTTEN} events"));
    // logical slots are not on a standby unless somebody has put them there
    refuses(course, &mut scene, &["--from-rows"]).await?;
    begins_again_from_rows(course, &mut scene).await?;
    goes_on(course, &mut scene).await?;
    drop(old);
    Ok(())
}

async fn restored(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, setup()).await?;
    at_rest(&mut scene, load).await?;
    scene.postgres.stop(Shutdown::Fast, ENDS_WITHIN).await?;
    let data = scene.postgres.data_dir();
    let copy = data.with_file_name("copy");
    run("cp", &["-a", &data.display().to_string(), &copy.display().to_string()]).await?;
    scene.postgres.start_again().await?;
    scene.begin_relay().await?;
    publish_what_is_forgotten(&mut scene).await?;
    scene.relay.stop(super::STOP_WITHIN).await?;
    scene.postgres.stop(Shutdown::Fast, ENDS_WITHIN).await?;
    std::fs::rename(&data, data.with_file_name("newer")).context("the data cannot be moved")?;
    std::fs::rename(&copy, &data).context("the copy cannot be moved")?;
    scene.postgres.start_again().await?;
    course.injected(format!("the source restored to before its last {FORGOTTEN} events"));
    refuses(course, &mut scene, &["--from-rows"]).await?;
    begins_again_from_rows(course, &mut scene).await?;
    goes_on(course, &mut scene).await
}

async fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program).args(args).status().await;
    let status = status.with_context(|| format!("{program} cannot be run"))?;
    if !status.success() {
        bail!("{program} failed ({status})");
    }
    Ok(())
}
