use super::broker::{Broker, Group, Stream};
use super::consumer::{Consumer, Lost};
use super::report::Report;
use crate::config::{Config, Sources};

fn config() -> Config {
    let flags = [("consumer.id", "books"), ("consumer.streams", "order")];
    let flags = flags.map(|(key, value)| ("--set".into(), key.into(), value.into())).to_vec();
    Config::load(&Sources { flags, ..Sources::default() }).unwrap()
}

fn stream(groups: Vec<Group>) -> Broker {
    let stream = Stream {
        key: "outflow:order".into(),
        entries: 9,
        last_id: "5-0".into(),
        last_position: Some("0/5:0".into()),
        groups,
    };
    Broker { streams: vec![stream], streams_incomplete: false }
}

fn group(pending: i64, lag: Option<i64>, idle_ms: Option<i64>) -> Group {
    let (name, last_delivered_id) = ("books".into(), "5-0".into());
    Group { name, workers: 1, pending, lag, last_delivered_id, idle_ms }
}

/// Problems and notes of a report about `broker` alone, as its JSON has them.
fn report(broker: Result<Broker, String>) -> serde_json::Value {
    serde_json::to_value(Report::new(&config(), None, (Ok(None), broker), None, None)).unwrap()
}

#[test]
fn a_group_is_stuck_when_entries_wait_and_nobody_asks_for_them() {
    for (group, healthy) in [
        (group(0, Some(0), None), true),
        (group(0, Some(0), Some(3_600_000)), true),
        (group(5, Some(0), Some(500)), true),
        (group(5, Some(0), Some(61_000)), false),
        (group(0, Some(1), Some(61_000)), false),
        (group(0, Some(1), None), false),
        (group(0, None, Some(61_000)), true),
    ] {
        let shown = format!("{group:?}");
        let report = report(Ok(stream(vec![group])));
        assert_eq!(report["healthy"], healthy, "{shown}: {report}");
    }
}

#[test]
fn a_part_that_was_not_reached_is_named_and_the_rest_is_shown() {
    let report = report(Err("connection refused".into()));
    assert_eq!(report["problems"][0], "redis: connection refused");
    assert_eq!(report["broker"]["error"], "connection refused");
    assert_eq!(report["notes"][0], "source: source.url is not set");
}

#[test]
fn a_stream_without_the_consumer_s_group_is_a_problem() {
    let report = report(Ok(stream(Vec::new())));
    assert_eq!(report["problems"][0], "consumer `books` has no group in outflow:order");
}

#[test]
fn what_waits_for_a_person_is_a_note() {
    let consumer = Consumer {
        id: "books".into(),
        applied: 7,
        open_conflicts: 1,
        open_dead_letters: 2,
        parked: 3,
        oldest_parked: None,
        lost_entries: 3,
        lost: vec![Lost {
            stream: "outflow:order".into(),
            entries: 3,
            above_id: "1-0".into(),
            up_to_id: "4-0".into(),
            detected_at: "2026-01-31T12:00:00Z".into(),
        }],
        positions: Vec::new(),
    };
    let broker = Ok(stream(vec![group(0, Some(0), Some(1))]));
    let report = Report::new(&config(), None, (Ok(None), broker), Some(Ok(consumer)), None);
    assert!(report.healthy);
    let shown = report.to_string();
    assert!(shown.contains("has 1 open conflict\n"), "{shown}");
    assert!(shown.contains("has 2 open dead letters\n"), "{shown}");
    assert!(shown.contains("holds back 3 events behind dead letters"), "{shown}");
    assert!(shown.contains("lost 3 entries before consumer `books` had applied them"), "{shown}");
    assert!(shown.contains("0/5:0"), "{shown}");
}

#[test]
fn an_event_that_fails_again_and_again_is_a_problem_with_its_error() {
    let oldest = super::consumer::Parked {
        event_id: "e1".into(),
        aggregate_type: "order".into(),
        aggregate_id: "7".into(),
        cause: "failed".into(),
        attempts: 3,
        error: Some("no_one".into()),
    };
    let consumer = Consumer {
        id: "books".into(),
        applied: 7,
        open_conflicts: 0,
        open_dead_letters: 0,
        parked: 2,
        oldest_parked: Some(oldest),
        lost_entries: 0,
        lost: Vec::new(),
        positions: Vec::new(),
    };
    let broker = Ok(stream(vec![group(0, Some(0), Some(1))]));
    let report = Report::new(&config(), None, (Ok(None), broker), Some(Ok(consumer)), None);
    assert!(!report.healthy);
    let shown = report.to_string();
    let expected = "consumer `books` holds back 2 events. The oldest is e1 of order/7 (failed, 3 attempts): no_one";
    assert!(shown.contains(expected), "{shown}");
}
