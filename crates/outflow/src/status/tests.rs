use outflow_relay::polling::Backlog;
use outflow_relay::preflight::{Finding, Severity};

use super::broker::{Broker, Group, Stream};
use super::consumer::{Consumer, Lost};
use super::report::Report;
use super::source::Source;
use crate::config::{Config, Sources};
use crate::http::Health;

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
    serde_json::to_value(Report::new(&config(), None, (Ok(None), broker), None, Vec::new()))
        .unwrap()
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
    let report = Report::new(&config(), None, (Ok(None), broker), Some(Ok(consumer)), Vec::new());
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
    let report = Report::new(&config(), None, (Ok(None), broker), Some(Ok(consumer)), Vec::new());
    assert!(!report.healthy);
    let shown = report.to_string();
    let expected = "consumer `books` holds back 2 events. The oldest is e1 of order/7 (failed, 3 attempts): no_one";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn why_no_connector_can_start_is_a_problem() {
    let source = Source {
        wal_lsn: "0/1".into(),
        slot: None,
        slot_active: false,
        lag_bytes: None,
        refusal: Some("slot `outflow` does not exist".into()),
        findings: Vec::new(),
        polling: None,
    };
    let broker = Ok(stream(vec![group(0, Some(0), Some(1))]));
    let report = Report::new(&config(), Some(Ok(source)), (Ok(None), broker), None, Vec::new());
    let report = serde_json::to_value(&report).unwrap();
    let expected = "the connector cannot start: slot `outflow` does not exist";
    assert_eq!(report["problems"][0], expected, "{report}");
}

/// A report about an outbox that is polled, as JSON and as a table.
fn polled(backlog: Backlog) -> (serde_json::Value, String) {
    let finding = |code| Finding {
        severity: Severity::Refuse,
        code,
        message: format!("{code} is wrong"),
        remedy: "mend it".into(),
    };
    let source = Source {
        wal_lsn: "0/1".into(),
        slot: None,
        slot_active: false,
        lag_bytes: None,
        refusal: None,
        findings: vec![finding("slot_missing"), finding("publication_missing")],
        polling: Some(backlog),
    };
    let broker = Ok(stream(vec![group(0, Some(0), Some(1))]));
    let report = Report::new(&config(), Some(Ok(source)), (Ok(None), broker), None, Vec::new());
    (serde_json::to_value(&report).unwrap(), report.to_string())
}

const AT_REST: Backlog = Backlog {
    unpublished: 0,
    oldest_seconds: None,
    claimed: 0,
    lapsed: 0,
    relays: 0,
    last_marked_seconds: Some(3700.2),
};

#[test]
fn an_outbox_that_is_polled_needs_no_slot() {
    let (json, shown) = polled(AT_REST);
    assert_eq!(json["healthy"], true, "{json}");
    assert_eq!(json["notes"], serde_json::json!([]));
    assert!(shown.contains("0 rows") && shown.contains("1h 1m 40s ago"), "{shown}");
    assert!(!shown.contains("log end"), "{shown}");
}

#[test]
fn rows_that_nobody_polls_are_a_problem_and_a_relay_that_is_behind_is_a_note() {
    let waiting = Backlog { unpublished: 7, oldest_seconds: Some(60.0), lapsed: 2, ..AT_REST };
    let (json, _) = polled(waiting.clone());
    let problem = json["problems"][0].as_str().unwrap();
    assert!(
        problem.starts_with("7 rows wait to be published, the oldest for 1m, and no"),
        "{problem}"
    );
    assert!(problem.contains("2 claims have run out"), "{problem}");

    let stuck = Backlog { claimed: 7, relays: 1, lapsed: 0, ..waiting };
    let (json, _) = polled(stuck.clone());
    let problem = json["problems"][0].as_str().unwrap();
    assert!(problem.contains("7 claimed, and none was published for 1h 1m 40s"), "{problem}");

    let (json, _) = polled(Backlog { last_marked_seconds: Some(0.2), ..stuck });
    assert_eq!(json["healthy"], true, "{json}");
    assert!(json["notes"][0].as_str().unwrap().starts_with("polling is behind: 7 rows"), "{json}");

    let fresh = Backlog { unpublished: 9, oldest_seconds: Some(5.0), ..AT_REST };
    assert_eq!(polled(fresh).0["healthy"], true);
}

#[test]
fn every_process_that_was_asked_is_judged() {
    let broker = Broker { streams: Vec::new(), streams_incomplete: false };
    let detail = serde_json::Value::Null;
    let stands_still = Some("applier waits: database: gone".to_owned());
    let processes = vec![
        Ok(Health::new("relay", None, detail.clone())),
        Ok(Health::new("consume", stands_still, detail)),
        Err("no process answers at http://127.0.0.1:1".to_owned()),
    ];
    let report = Report::new(&config(), None, (Ok(None), Ok(broker)), None, processes);
    let shown = report.to_string();
    assert!(!report.healthy && shown.contains("relay") && shown.contains("not ready"), "{shown}");
    let report = serde_json::to_value(report).unwrap();
    assert_eq!(report["problems"][0], "consume is not ready: applier waits: database: gone");
    assert_eq!(report["problems"][1], "process: no process answers at http://127.0.0.1:1");
    assert_eq!(report["processes"][0]["found"]["command"], "relay");
}
