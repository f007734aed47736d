//! `outflow lab report`: the four counts.

use super::broker::PROCESSED;
use super::database::Database;
use super::delivery::Deliveries;
use super::folder::{Lab, REPORT};
use super::lesson::Lesson;

const WHY: &str = "\
What was enqueued beyond processed_unique came twice: the price of at-least-once delivery, and the
event id has caught it. Every event has had its effect, and none had it twice.";

/// The four counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) orders: usize,
    pub(super) outbox: usize,
    /// Entries that were ever in the list.
    pub(super) enqueued: u64,
    pub(super) processed_unique: usize,
}

impl Counts {
    /// As they are now.
    pub(super) fn of(orders: usize, outbox: usize, deliveries: &Deliveries) -> Self {
        let processed_unique = deliveries.processed.len() + deliveries.foreign_results.len();
        Self { orders, outbox, enqueued: deliveries.enqueued(), processed_unique }
    }

    /// The content of `report.txt`.
    pub(super) fn text(self) -> String {
        let Self { orders, outbox, enqueued, processed_unique } = self;
        format!(
            "orders={orders}\noutbox={outbox}\nenqueued={enqueued}\n\
             processed_unique={processed_unique}\n"
        )
    }
}

/// Runs the step.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Lesson> {
    let database: Database = lab.database()?;
    let mut broker = lab.broker().await?;
    let deliveries = broker.deliveries().await?;
    if deliveries.processed.is_empty() {
        return Err(lab.missing("nothing was processed yet", "consume"));
    }
    let counts = Counts::of(database.orders()?.len(), database.outbox()?.len(), &deliveries);
    lab.write(REPORT, &counts.text())?;
    let lesson = Lesson::new("report", "what came in, what went out", WHY);
    let lesson = counts.text().lines().fold(lesson, |lesson, line| lesson.said(line));
    Ok(lesson
        .fact("orders", counts.orders)
        .fact("outbox", counts.outbox)
        .fact("enqueued", counts.enqueued)
        .fact("processed_unique", counts.processed_unique)
        .fact("file", lab.path(REPORT).display().to_string())
        .look(format!("cat {}", super::folder::quote(&lab.path(REPORT))))
        .look(broker.cli(&format!("HLEN {PROCESSED}")))
        .next(lab, "check")
        .with(lab, &broker))
}
