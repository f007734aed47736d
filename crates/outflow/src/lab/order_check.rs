//! `outflow lab order-check`: events of one aggregate leave in the order of their `seq`.

use std::fmt::Write as _;

use super::delivery::Deliveries;
use super::event::{aggregate_id, now};
use super::folder::{Lab, ORDER_CHECK, quote};
use super::lesson::Lesson;
use super::relay;

/// What happens to an order within one second: one timestamp for all, inserted in this order.
const ONE_SECOND: [(i64, &str); 3] = [(4, "OrderShipped"), (2, "OrderPaid"), (3, "OrderPacked")];

const WHY: &str = "\
A clock cannot order them: they carry the same second, clocks of two machines differ, and a row
that was begun first may commit last. The order of insertion cannot either. seq is counted within
the aggregate by the transaction that writes the event, so the relay sorts by it, and a receiver
can see that one is missing. Between aggregates there is no order, and nobody needs one.";

/// Runs the step.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Lesson> {
    let mut database = lab.database()?;
    let rows = database.outbox()?;
    if !rows.iter().any(|row| row.published) {
        return Err(lab.missing("nothing was published yet", "relay"));
    }
    let mut broker = lab.broker().await?;
    let lesson = Lesson::new("order-check", "one aggregate, one timestamp, one order", WHY);
    let first = database.orders()?.into_iter().next();
    let shipped = rows.iter().any(|row| row.event.event_type == "OrderShipped");
    let lesson = match first.filter(|_| !shipped) {
        None => lesson,
        Some(order) => {
            let at = now();
            database.add_events(order.id, &ONE_SECOND, &at)?;
            let inserted: Vec<_> = ONE_SECOND.iter().map(|(seq, _)| seq.to_string()).collect();
            lesson.said(format!(
                "{} was paid, packed and shipped at {at}: seq {} inserted in this order",
                aggregate_id(order.id),
                inserted.join(", ")
            ))
        }
    };
    relay::publish(&database, &mut broker).await?;

    let deliveries = broker.deliveries().await?;
    let ok = deliveries.disorder().is_empty();
    let text = describe(&deliveries);
    lab.write(ORDER_CHECK, &text)?;
    let mut lesson = text
        .lines()
        .skip(1)
        .fold(lesson, |lesson, line| lesson.said(format!("left the outbox: {line}")))
        .said(format!(
            "{}: {}",
            lab.path(ORDER_CHECK).display(),
            text.lines().next().unwrap_or_default()
        ));
    lesson.ok = ok;
    let file = quote(database.path());
    Ok(lesson
        .fact("order", if ok { "OK" } else { "WRONG" })
        .fact("file", lab.path(ORDER_CHECK).display().to_string())
        .look(format!(
            "sqlite3 {file} \"SELECT rowid, seq, event_type, payload ->> 'at' FROM outbox WHERE \
             aggregate_id = 'order-1'\""
        ))
        .look(broker.cli(&format!("LRANGE {} 0 -1", super::broker::EVENTS)))
        .next(lab, "relay-crash")
        .with(lab, &broker))
}

/// The verdict, then the sequence of each aggregate.
fn describe(deliveries: &Deliveries) -> String {
    let mut text = match deliveries.disorder().first() {
        None => "ORDER OK\n".to_owned(),
        Some(late) => format!(
            "ORDER WRONG aggregate_id={} seq={} after={}\n",
            late.aggregate_id, late.seq, late.after
        ),
    };
    for (aggregate_id, seqs) in deliveries.sequences() {
        let seqs: Vec<_> = seqs.iter().map(ToString::to_string).collect();
        // writing to a String cannot fail
        let _ = writeln!(text, "{aggregate_id} seq {}", seqs.join(" "));
    }
    text
}
