//! The five windows between two durable steps, with one event each, so that everything that stands
//! in the servers can be said.

mod commit_unacked;
mod consume_rollback;
mod publish_unmarked;
mod same_id_new_entry;
mod same_id_other_payload;

use redis::streams::StreamRangeReply;

use super::course::Course;
use super::list::Drill;
use super::scene::{Relay, STREAM, Scene, Setup};
use super::state::State;

/// In the order in which an event meets them.
pub(super) const DRILLS: &[Drill] = &[
    publish_unmarked::DRILL,
    consume_rollback::DRILL,
    commit_unacked::DRILL,
    same_id_new_entry::DRILL,
    same_id_other_payload::DRILL,
];

/// A scene in which one event was applied, and what stands in the servers then.
async fn one_applied(course: &mut Course) -> anyhow::Result<(Scene, State)> {
    let mut scene = Scene::set(course, Setup::new(Relay::Connector)).await?;
    scene.begin().await?;
    scene.post("j-1", 100).await?;
    scene.settled().await?;
    let once = State {
        committed: 1,
        known: 1,
        entries: 1,
        ids: 1,
        inbox: 1,
        effects: 1,
        turnover: 100,
        ..State::default()
    };
    course.check("before", &once, &scene.state().await?);
    Ok((scene, once))
}

/// Adds the last entry of the stream once more, as another entry, with fields changed as `change`
/// does.
async fn add_again(
    scene: &mut Scene,
    change: impl Fn(&str, String) -> String,
) -> anyhow::Result<String> {
    // the second entry is what these drills are about
    scene.rules.may_repeat = true;
    let mut broker = scene.broker().await?;
    let last: StreamRangeReply = redis::cmd("XREVRANGE")
        .arg((STREAM, "+", "-", "COUNT", 1))
        .query_async(&mut broker)
        .await?;
    let last = last.ids.first().ok_or_else(|| anyhow::anyhow!("{STREAM} is empty"))?;
    let mut fields = Vec::new();
    for (name, value) in &last.map {
        let text: String = redis::from_redis_value(value.clone())?;
        fields.push((name.clone(), change(name, text)));
    }
    // the very next id: one made of the clock would stand above all that the connector makes of
    // positions, and fence it
    let (position, index) = last.id.split_once('-').unwrap_or((last.id.as_str(), "0"));
    let id = format!("{position}-{}", index.parse::<u64>()? + 1);
    redis::cmd("XADD").arg(STREAM).arg(&id).arg(&fields).exec_async(&mut broker).await?;
    Ok(id)
}
