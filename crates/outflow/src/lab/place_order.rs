//! `outflow lab place-order`: order and outbox row in one transaction.

use super::database::Database;
use super::event::now;
use super::folder::{Lab, quote};
use super::lesson::Lesson;

/// The orders of the exercise.
const ORDERS: [(&str, i64); 3] = [("pear", 2), ("plum", 5), ("fig", 1)];

const WHY: &str = "\
The event is a row, so it commits with its order or not at all, and no broker is asked. Whether
Redis is up, slow or gone does not matter to the customer who orders. What was a race between two
systems is now a row that waits.";

/// The flags of the step.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Args {
    /// Place one more order, for this article [default: the next of the three of the exercise]
    #[arg(long, value_name = "TEXT")]
    sku: Option<String>,
    /// How many pieces
    #[arg(long, requires = "sku", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=1_000_000), value_name = "N")]
    qty: i64,
    /// Fail before the commit: the event breaks a rule of its table
    #[arg(long)]
    fail: bool,
}

impl Args {
    /// An order that fails.
    pub(super) fn failing() -> Self {
        Self { sku: None, qty: 1, fail: true }
    }
}

/// How many orders the exercise asks for.
pub(super) const WANTED: usize = ORDERS.len();

/// Runs the step.
pub(super) fn run(lab: &Lab, args: &Args) -> anyhow::Result<Lesson> {
    let mut database = lab.database()?;
    let before = database.orders()?.len();
    let lesson = Lesson::new("place-order", "order and event in one transaction", WHY);
    let lesson = match (args.fail, &args.sku, ORDERS.get(before)) {
        (true, sku, _) => {
            let sku = sku.as_deref().unwrap_or("quince");
            fail(&mut database, lesson, sku, args.qty)?
        }
        (false, Some(sku), _) => place(&mut database, lesson, sku, args.qty)?,
        (false, None, Some((sku, qty))) => place(&mut database, lesson, sku, *qty)?,
        (false, None, None) => {
            let more = lab.command("place-order --sku apple --qty 3");
            lesson
                .said(format!("the {WANTED} orders of the exercise are there: nothing was changed"))
                .said(format!("one more: {more}"))
        }
    };
    let (orders, outbox) = (database.orders()?.len(), database.outbox()?.len());
    let lesson = lesson.said(format!("orders: {orders}; rows in the outbox: {outbox}"));
    let file = quote(database.path());
    let lesson = lesson
        .fact("orders", orders)
        .fact("outbox", outbox)
        .look(format!("sqlite3 {file} 'SELECT * FROM orders'"))
        .look(format!("sqlite3 {file} 'SELECT event_id, seq, event_type, status FROM outbox'"));
    let (next, again) = ("relay", "place-order");
    Ok(lesson.next(lab, if orders < WANTED { again } else { next }))
}

fn place(database: &mut Database, lesson: Lesson, sku: &str, qty: i64) -> anyhow::Result<Lesson> {
    let (order, event) = database.place(sku, qty, &now(), false)?;
    Ok(lesson
        .said(format!("order {} ({qty} x {sku}) and event {} committed", order.id, event.event_id))
        .fact("order_id", order.id)
        .fact("event_id", event.event_id))
}

/// The order is inserted, the event is refused, and the transaction ends without a commit.
fn fail(database: &mut Database, lesson: Lesson, sku: &str, qty: i64) -> anyhow::Result<Lesson> {
    let before = (database.orders()?, database.outbox()?);
    let Err(error) = database.place(sku, qty, &now(), true) else {
        anyhow::bail!("the event without a payload was accepted: outbox.payload is not NOT NULL");
    };
    anyhow::ensure!(
        before == (database.orders()?, database.outbox()?),
        "the transaction failed, and still left something behind"
    );
    Ok(lesson
        .said(format!("an order ({qty} x {sku}) was inserted, then its event was refused:"))
        .said(format!("  {}", reason(&error)))
        .said("rolled back: neither the order nor the event is there")
        .fact("rolled_back", true))
}

/// What SQLite says, without the number that it adds.
fn reason(error: &anyhow::Error) -> String {
    match error.downcast_ref::<rusqlite::Error>() {
        Some(error) => error.to_string(),
        None => crate::failure::chain(error),
    }
}
