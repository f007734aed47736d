//! `outflow lab consume`: empties the list, and does the work of each event once.

use super::broker::{Broker, DEAD_LETTERS, EVENTS, PROCESSED};
use super::delivery::Processed;
use super::event::Event;
use super::folder::Lab;
use super::lesson::Lesson;

const WHY: &str = "\
The result is kept under the event id, in the same Redis transaction that takes the entry off the
list. A crash before it changes nothing, and the entry comes again; a crash after it finds the id.
An event that comes twice finds its id and has no second effect: at least once on the way, exactly
once in effect. That holds because result and id are kept together: a mail that was sent cannot be
rolled back.";

/// What a run has done.
#[derive(Debug, Default)]
struct Work {
    taken: u64,
    fresh: u64,
    duplicates: u64,
    set_aside: u64,
}

/// Runs the step.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Lesson> {
    let database = lab.database()?;
    let mut broker = lab.broker().await?;
    let published = database.outbox()?.iter().any(|row| row.published);
    if !published && broker.length(EVENTS).await? == 0 {
        return Err(lab.missing("nothing was published yet", "relay"));
    }
    let work = empty(&mut broker).await?;
    let deliveries = broker.deliveries().await?;
    let (once, each_time) = deliveries.pieces();
    let distinct = broker.results().await?;
    let mut lesson = Lesson::new("consume", "empty the list, apply each event once", WHY)
        .said(format!(
            "taken off {EVENTS}: {}; new events: {}; known by their id: {}",
            work.taken, work.fresh, work.duplicates
        ))
        .said(format!("results in {PROCESSED}: {distinct}, one for each event"))
        .said(format!("stock: {once} pieces taken; without the filter it would be {each_time}"));
    if work.set_aside > 0 {
        lesson = lesson.said(format!(
            "{} entries are no events, or others under a known id; set aside in {DEAD_LETTERS}",
            work.set_aside
        ));
    }
    Ok(lesson
        .fact("taken", work.taken)
        .fact("fresh", work.fresh)
        .fact("duplicates", work.duplicates)
        .fact("dead_letters", work.set_aside)
        .fact("processed", distinct)
        .fact("pieces", once)
        .fact("pieces_without_filter", each_time)
        .look(broker.cli(&format!("LLEN {EVENTS}")))
        .look(broker.cli(&format!("HGETALL {PROCESSED}")))
        .next(lab, "report")
        .with(lab, &broker))
}

async fn empty(broker: &mut Broker) -> anyhow::Result<Work> {
    let mut work = Work::default();
    let mut number = broker.results().await?;
    while let Some(entry) = broker.head().await? {
        work.taken += 1;
        let Some(event) = Event::read(&entry) else {
            broker.set_aside(&entry).await?;
            work.set_aside += 1;
            continue;
        };
        let result = match broker.result(&event.event_id).await? {
            // a known id with another content is no duplicate: somebody has to look at it
            Some(known) if !known.is_result_of(&event) => {
                broker.set_aside(&entry).await?;
                work.set_aside += 1;
                continue;
            }
            Some(known) => {
                work.duplicates += 1;
                Processed { deliveries: known.deliveries + 1, ..known }
            }
            None => {
                work.fresh += 1;
                number += 1;
                Processed::first(number, &event)
            }
        };
        broker.finish(&entry, &event.event_id, &result).await?;
    }
    Ok(work)
}
