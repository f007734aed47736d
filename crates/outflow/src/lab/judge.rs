//! The verdict on a lab: from what was found to what is off. Pure.

use super::check::Outcome;
use super::database::{Order, OutboxRow, Shape};
use super::delivery::Deliveries;
use super::event::PLACED;
use super::place_order::WANTED;
use super::report::Counts;

const ORDERS: [&str; 3] = ["id", "sku", "qty"];
const OUTBOX: [&str; 6] = ["event_id", "aggregate_id", "seq", "event_type", "payload", "status"];

/// Everything that the steps have left.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) shape: Shape,
    pub(super) orders: Vec<Order>,
    pub(super) outbox: Vec<OutboxRow>,
    pub(super) deliveries: Deliveries,
    /// Orders in `dualwrite.db`, if it is there, and entries in `dualwrite.events`.
    pub(super) dual_write: (Option<usize>, u64),
    pub(super) dual_write_file: Option<String>,
    pub(super) order_check_file: Option<String>,
    pub(super) at_least_once_file: Option<String>,
    pub(super) report_file: Option<String>,
}

impl Shape {
    /// Whether both tables have every column that the lab reads.
    pub(super) fn has_tables(&self) -> bool {
        let has = |there: &[String], wanted: &[&str]| {
            wanted.iter().all(|name| there.iter().any(|column| column == name))
        };
        has(&self.orders, &ORDERS) && has(&self.outbox, &OUTBOX)
    }
}

/// What was found, or what is off and which step mends it.
type Finding = Result<String, (String, &'static str)>;

/// Judges every outcome, in the order of the steps.
pub(super) fn judge(facts: &Facts) -> Vec<Outcome> {
    let outcome = |step, must_hold, finding: Finding| match finding {
        Ok(found) => Outcome { step, must_hold, ok: true, found, remedy: None },
        Err((found, remedy)) => {
            Outcome { step, must_hold, ok: false, found, remedy: Some(remedy.to_owned()) }
        }
    };
    vec![
        outcome(
            "init",
            "orders and outbox with their columns; status PENDING by default; partial index",
            tables(&facts.shape),
        ),
        outcome(
            "dual-write",
            "dualwrite.out: INCONSISTENT, with the counts of dualwrite.db and dualwrite.events",
            dual_write(facts),
        ),
        outcome(
            "place-order",
            "3 orders or more, each with its OrderPlaced, and no other OrderPlaced",
            orders(facts),
        ),
        outcome(
            "relay",
            "no row pends; PUBLISHED rows, and no others, were delivered",
            relayed(facts),
        ),
        outcome("order-check", "order_check.out: ORDER OK, and it is true", ordered(facts)),
        outcome("relay-crash", "atleastonce.out: DUPLICATE, and it is true", duplicated(facts)),
        outcome("consume", "the list is empty; one result for each event", consumed(facts)),
        outcome(
            "report",
            "report.txt: the counts as they are; enqueued >= processed_unique",
            reported(facts),
        ),
    ]
}

fn off<T>(found: impl Into<String>, remedy: &'static str) -> Result<T, (String, &'static str)> {
    Err((found.into(), remedy))
}

/// The first line of a file that must be there.
fn first_line<'a>(
    file: Option<&'a String>,
    name: &str,
    step: &'static str,
) -> Result<&'a str, (String, &'static str)> {
    match file {
        Some(text) => Ok(text.lines().next().unwrap_or_default()),
        None => off(format!("{name} is missing"), step),
    }
}

fn tables(shape: &Shape) -> Finding {
    for (table, there, wanted) in
        [("orders", &shape.orders, ORDERS.as_slice()), ("outbox", &shape.outbox, &OUTBOX)]
    {
        if there.is_empty() {
            return off(format!("table {table} is missing"), "init");
        }
        if there != wanted {
            return off(format!("{table}({})", there.join(", ")), "clean");
        }
    }
    if shape.status_default != "'PENDING'" {
        return off(format!("default of status: {}", shape.status_default), "clean");
    }
    if !shape.partial_index {
        return off("no index on pending rows", "init");
    }
    Ok("as they must be".to_owned())
}

fn dual_write(facts: &Facts) -> Finding {
    let step = "dual-write";
    let line = first_line(facts.dual_write_file.as_ref(), "dualwrite.out", step)?;
    let (Some(saved), published) = facts.dual_write else {
        return off("dualwrite.db is missing", step);
    };
    let wanted = format!("INCONSISTENT orders={saved} published={published}");
    if line != wanted {
        return off(format!("`{line}`, but there are {saved} orders and {published} events"), step);
    }
    if u64::try_from(saved).is_ok_and(|saved| saved == published) {
        return off(format!("{saved} orders and {published} events agree"), step);
    }
    Ok(line.to_owned())
}

fn orders(facts: &Facts) -> Finding {
    let (orders, rows) = (&facts.orders, &facts.outbox);
    if orders.len() < WANTED {
        return off(format!("{} orders", orders.len()), "place-order");
    }
    let placed = || rows.iter().filter(|row| row.event.event_type == PLACED);
    for order in orders {
        match placed().filter(|row| row.is_of(order)).count() {
            1 => {}
            count => {
                return off(format!("order {} has {count} {PLACED} events", order.id), "clean");
            }
        }
    }
    if let Some(row) = placed().find(|row| !orders.iter().any(|order| row.is_of(order))) {
        return off(format!("event {} has no order", row.event.event_id), "clean");
    }
    Ok(format!("{} orders, {} {PLACED} events", orders.len(), placed().count()))
}

fn relayed(facts: &Facts) -> Finding {
    let delivered = facts.deliveries.distinct();
    for row in &facts.outbox {
        let id = row.event.event_id.as_str();
        match (row.published, delivered.contains(id)) {
            (true, true) => {}
            (false, false) => return off(format!("{id} is PENDING"), "relay"),
            (false, true) => {
                let found =
                    format!("{id} was delivered and is PENDING: it will be published again");
                return off(found, "relay");
            }
            (true, false) => {
                return off(format!("{id} is PUBLISHED and nowhere to be found: lost"), "clean");
            }
        }
    }
    let known = |id: &&&str| facts.outbox.iter().any(|row| row.event.event_id == ***id);
    if let Some(id) = delivered.iter().find(|id| !known(id)) {
        return off(format!("{id} was delivered and is not in the outbox"), "clean");
    }
    match facts.outbox.len() {
        0 => off("nothing was published", "relay"),
        rows => Ok(format!("{rows} rows PUBLISHED and delivered")),
    }
}

fn ordered(facts: &Facts) -> Finding {
    let step = "order-check";
    let line = first_line(facts.order_check_file.as_ref(), "order_check.out", step)?;
    if let Some(late) = facts.deliveries.disorder().first() {
        let found = format!("{}: seq {} left after {}", late.aggregate_id, late.seq, late.after);
        return off(found, "clean");
    }
    if line != "ORDER OK" {
        return off(format!("`{line}`, but the order is right"), step);
    }
    let longest = facts.deliveries.sequences().into_iter().max_by_key(|(_, seqs)| seqs.len());
    match longest {
        Some((aggregate_id, seqs)) if seqs.len() > 1 => {
            let seqs: Vec<_> = seqs.iter().map(ToString::to_string).collect();
            Ok(format!("{aggregate_id}: seq {}", seqs.join(" ")))
        }
        _ => off("no aggregate has more than one event: there is no order to check", step),
    }
}

fn duplicated(facts: &Facts) -> Finding {
    let step = "relay-crash";
    let line = first_line(facts.at_least_once_file.as_ref(), "atleastonce.out", step)?;
    let named = line
        .strip_prefix("DUPLICATE event_id=")
        .and_then(|rest| rest.rsplit_once(" count="))
        .filter(|(_, count)| *count == "2");
    let Some((id, _)) = named else {
        return off(format!("`{line}`"), step);
    };
    match facts.deliveries.count(id) {
        2 => Ok(line.to_owned()),
        count => off(format!("`{line}`, but it was delivered {count} times"), step),
    }
}

fn consumed(facts: &Facts) -> Finding {
    let all = &facts.deliveries;
    let waiting = all.waiting.len() as u64 + all.malformed;
    if waiting > 0 {
        return off(format!("{waiting} entries wait in outbox.events"), "consume");
    }
    if let Some(id) = all.foreign_results.first() {
        return off(format!("processed holds `{id}`, which no step has put there"), "clean");
    }
    if all.processed.is_empty() {
        return off("nothing was processed", "consume");
    }
    if all.dead_letters > 0 {
        let found = format!("{} entries in outbox.dead-letters were no events", all.dead_letters);
        return off(found, "clean");
    }
    let ordered: i64 = facts.orders.iter().map(|order| order.qty).sum();
    let (taken, _) = all.pieces();
    if taken != ordered {
        return off(
            format!("{ordered} pieces were ordered, {taken} taken out of the stock"),
            "clean",
        );
    }
    Ok(format!("{} results, {taken} pieces ordered and taken", all.processed.len()))
}

fn reported(facts: &Facts) -> Finding {
    let step = "report";
    let Some(text) = &facts.report_file else {
        return off("report.txt is missing", step);
    };
    let counts = Counts::of(facts.orders.len(), facts.outbox.len(), &facts.deliveries);
    for (there, wanted) in text.lines().zip(counts.text().lines()) {
        if there != wanted {
            return off(format!("`{there}`, but it is {wanted}"), step);
        }
    }
    if *text != counts.text() {
        return off(format!("{} lines in place of four", text.lines().count()), step);
    }
    if usize::try_from(counts.enqueued).is_ok_and(|enqueued| enqueued < counts.processed_unique) {
        return off("more was processed than enqueued", "clean");
    }
    Ok(format!("enqueued={} processed_unique={}", counts.enqueued, counts.processed_unique))
}

#[cfg(test)]
mod tests;
