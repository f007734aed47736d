//! `outflow lab relay`: from the outbox to the list.

use rustix::process::{Signal, getpid, kill_process};

use super::broker::{Broker, EVENTS};
use super::database::Database;
use super::folder::{Lab, quote};
use super::lesson::Lesson;

const WHY: &str = "\
Push first, mark second. A relay that dies in between pushes again: an event may come twice. The
other way around it would be marked and never come. So the outbox turns \"maybe lost\" into \"maybe
twice\", and twice can be repaired by whoever receives it.";

/// The flags of the step.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Args {
    /// Die by SIGKILL after the first push, before its mark; `relay-crash` starts this
    #[arg(long, hide = true)]
    pub(super) die_before_mark: bool,
}

/// Runs the step.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Lesson> {
    let database = lab.database()?;
    if database.outbox()?.is_empty() {
        return Err(lab.missing("the outbox is empty, there is nothing to publish", "place-order"));
    }
    let mut broker = lab.broker().await?;
    let before = broker.length(EVENTS).await?;
    let published = publish(&database, &mut broker).await?;
    let after = broker.length(EVENTS).await?;

    let lesson = Lesson::new("relay", "push what is pending, then mark it", WHY);
    let lesson = match published.as_slice() {
        [] => lesson.said("no row is pending: nothing was pushed"),
        ids => lesson
            .said(format!("pushed, then marked as PUBLISHED: {}", ids.join(", ")))
            .said("a second run finds no pending row, and the list stays as it is"),
    };
    let file = quote(database.path());
    Ok(lesson
        .said(format!("{EVENTS}: {before} entries before, {after} now"))
        .fact("published", published)
        .fact("list_before", before)
        .fact("list_after", after)
        .look(format!("sqlite3 {file} 'SELECT event_id, status FROM outbox'"))
        .look(broker.cli(&format!("LRANGE {EVENTS} 0 -1")))
        .next(lab, "order-check")
        .with(lab, &broker))
}

/// Publishes what is pending; returns the event ids in the order of the list.
pub(super) async fn publish(
    database: &Database,
    broker: &mut Broker,
) -> anyhow::Result<Vec<String>> {
    let mut published = Vec::new();
    for event in database.pending()? {
        broker.push(&event.entry()?).await?;
        database.mark_published(&event.event_id)?;
        published.push(event.event_id);
    }
    Ok(published)
}

/// Publishes the first pending event and dies before its mark. Only ever returns an error.
pub(super) async fn die_before_mark(lab: &mut Lab) -> anyhow::Result<Lesson> {
    let database = lab.database()?;
    let mut broker = lab.broker().await?;
    if let Some(event) = database.pending()?.first() {
        broker.push(&event.entry()?).await?;
        kill_process(getpid(), Signal::KILL)?;
    }
    anyhow::bail!("no row is pending: there was nothing to die of")
}
