use super::super::delivery::Processed;
use super::super::event::{Event, Payload};
use super::*;

fn event(order: i64, seq: i64, event_type: &str) -> Event {
    let qty = (event_type == PLACED).then_some(order);
    let payload = Payload { order_id: order, sku: None, qty, at: "x".to_owned() };
    Event::of_order(order, seq, event_type, serde_json::to_string(&payload).unwrap())
}

/// Three orders, the first with two events, everything delivered, one event twice.
fn sound() -> Facts {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let mut facts = Facts {
        shape: Shape {
            orders: names(&ORDERS),
            outbox: names(&OUTBOX),
            status_default: "'PENDING'".to_owned(),
            partial_index: true,
        },
        orders: (1..=3).map(|id| Order { id, sku: "fig".to_owned(), qty: id }).collect(),
        dual_write: (Some(2), 1),
        dual_write_file: Some("INCONSISTENT orders=2 published=1\nmore\n".to_owned()),
        order_check_file: Some("ORDER OK\n".to_owned()),
        at_least_once_file: Some("DUPLICATE event_id=order-3.1 count=2\n".to_owned()),
        ..Facts::default()
    };
    let events = [(1, 1, PLACED), (2, 1, PLACED), (1, 2, "OrderPaid"), (3, 1, PLACED)];
    for (number, (order, seq, event_type)) in (1..).zip(events) {
        let event = event(order, seq, event_type);
        let first = Processed::first(number, &event);
        let deliveries = if order == 3 { 2 } else { 1 };
        let result = Processed { deliveries, ..first };
        facts.deliveries.processed.insert(event.event_id.clone(), result);
        facts.outbox.push(OutboxRow { event, published: true });
    }
    facts.report_file = Some("orders=3\noutbox=4\nenqueued=5\nprocessed_unique=4\n".to_owned());
    facts
}

/// The steps whose outcome is off.
fn off_after(plant: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
    let mut facts = sound();
    plant(&mut facts);
    let outcomes = judge(&facts);
    assert_eq!(outcomes.len(), 8);
    for outcome in &outcomes {
        assert_eq!(outcome.ok, outcome.remedy.is_none(), "{outcome:?}");
    }
    outcomes.iter().filter(|outcome| !outcome.ok).map(|outcome| outcome.step).collect()
}

#[test]
fn a_sound_lab_has_nothing_off() {
    assert_eq!(off_after(|_| ()), [""; 0]);
}

#[test]
fn an_empty_folder_has_everything_off() {
    assert_eq!(off_after(|facts| *facts = Facts::default()).len(), 8);
}

#[test]
fn tables_are_compared_with_what_init_makes() {
    assert_eq!(off_after(|facts| facts.shape.orders.clear()), ["init"]);
    assert_eq!(off_after(|facts| facts.shape.outbox.push("claimed_by".to_owned())), ["init"]);
    assert_eq!(off_after(|facts| facts.shape.status_default.clear()), ["init"]);
    assert_eq!(off_after(|facts| facts.shape.partial_index = false), ["init"]);
}

#[test]
fn the_dual_write_must_be_inconsistent_and_said_as_it_is() {
    for line in ["CONSISTENT orders=2 published=1", "INCONSISTENT orders=2 published=2", ""] {
        let file = Some(format!("{line}\n"));
        assert_eq!(off_after(|facts| facts.dual_write_file = file), ["dual-write"], "{line}");
    }
    assert_eq!(off_after(|facts| facts.dual_write_file = None), ["dual-write"]);
    assert_eq!(off_after(|facts| facts.dual_write = (None, 1)), ["dual-write"]);
    assert_eq!(
        off_after(|facts| {
            facts.dual_write = (Some(2), 2);
            facts.dual_write_file = Some("INCONSISTENT orders=2 published=2\n".to_owned());
        }),
        ["dual-write"]
    );
}

#[test]
fn orders_and_their_events_stand_together() {
    let mend = |facts: &mut Facts| {
        let counts = Counts::of(facts.orders.len(), facts.outbox.len(), &facts.deliveries);
        facts.report_file = Some(counts.text());
    };
    let without_event = |facts: &mut Facts| {
        facts.orders.push(Order { id: 9, sku: "fig".to_owned(), qty: 0 });
        mend(facts);
    };
    assert_eq!(off_after(without_event), ["place-order"]);
    let without_order = |facts: &mut Facts| {
        facts.orders[0] = Order { id: 9, sku: "fig".to_owned(), qty: 1 };
        mend(facts);
    };
    assert_eq!(off_after(without_order), ["place-order"]);
    assert!(off_after(|facts| drop(facts.orders.pop())).contains(&"place-order"));
}

#[test]
fn marks_and_deliveries_agree() {
    assert_eq!(off_after(|facts| facts.outbox[1].published = false), ["relay"]);
    let lost = off_after(|facts| drop(facts.deliveries.processed.remove("order-2.1")));
    assert!(lost.contains(&"relay"), "{lost:?}");
    let unknown = off_after(|facts| {
        let event = event(9, 1, "OrderPaid");
        facts.deliveries.processed.insert("x".to_owned(), Processed::first(9, &event));
    });
    assert_eq!(unknown, ["relay", "report"]);
}

#[test]
fn the_order_is_looked_at_and_not_only_the_file() {
    let late = |facts: &mut Facts| {
        facts.deliveries.processed.get_mut("order-1.1").unwrap().number = 9;
    };
    assert_eq!(off_after(late), ["order-check"]);
    let said = |facts: &mut Facts| facts.order_check_file = Some("ORDER WRONG\n".to_owned());
    assert_eq!(off_after(said), ["order-check"]);
    assert_eq!(off_after(|facts| facts.order_check_file = None), ["order-check"]);
}

#[test]
fn the_duplicate_is_counted_and_not_only_read() {
    for line in [
        "DUPLICATE event_id=order-3.1 count=3",
        "DUPLICATE event_id=order-2.1 count=2",
        "DUPLICATE event_id=order-9.1 count=2",
        "UNIQUE event_id=order-3.1 count=2",
        "",
    ] {
        let file = Some(format!("{line}\n"));
        assert_eq!(off_after(|facts| facts.at_least_once_file = file), ["relay-crash"], "{line}");
    }
}

#[test]
fn what_waits_or_does_not_belong_is_found() {
    let again = |facts: &mut Facts| facts.deliveries.waiting.push(event(2, 1, PLACED));
    assert_eq!(off_after(again), ["consume", "report"]);
    assert_eq!(off_after(|facts| facts.deliveries.malformed = 1), ["consume", "report"]);
    assert_eq!(off_after(|facts| facts.deliveries.dead_letters = 1), ["consume", "report"]);
    let foreign = |facts: &mut Facts| facts.deliveries.foreign_results.push("x".to_owned());
    assert_eq!(off_after(foreign), ["consume", "report"]);
    let twice = |facts: &mut Facts| {
        facts.deliveries.processed.get_mut("order-2.1").unwrap().pieces = 4;
    };
    assert_eq!(off_after(twice), ["consume"]);
}

#[test]
fn the_report_has_four_lines_and_says_what_is() {
    for text in [
        "orders=4\noutbox=4\nenqueued=5\nprocessed_unique=4\n",
        "orders=3\noutbox=4\nenqueued=5\n",
        "orders=3\noutbox=4\nenqueued=5\nprocessed_unique=4\nmore=1\n",
        "",
    ] {
        let file = Some(text.to_owned());
        assert_eq!(off_after(|facts| facts.report_file = file), ["report"], "{text}");
    }
    assert_eq!(off_after(|facts| facts.report_file = None), ["report"]);
}
