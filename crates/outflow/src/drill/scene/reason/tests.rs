//! What a drill finds when a reason is there, is another one, is missing, or comes too late.

use metrics_exporter_prometheus::PrometheusBuilder;
use outflow_relay::status::{On, Reporter, State};

use super::*;
use crate::drill::course::Course;
use crate::drill::given::Given;
use crate::drill::progress::Progress;
use crate::rig::CONSUMER;

const SINK: Series = Series::relay_waits_on("sink");

/// What a process would serve after it has counted like this.
fn served(count: impl FnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, count);
    recorder.handle().render()
}

fn relay(state: State) -> String {
    served(|| Reporter::new().state(state))
}

fn waits(on: On) -> State {
    State::Waiting { on, reason: "said elsewhere".to_owned() }
}

/// What a drill notes that looks for `series` in `metrics`, when it has stood still for `for_long`.
async fn judged(series: &[Series], metrics: &str, for_long: Duration) -> (bool, String) {
    let mut course = Course::new(1, 1, Given::default(), Progress::silent());
    let since = Instant::now() - for_long;
    shows(&mut course, "relay", since, series, async || anyhow::Ok(metrics.to_owned())).await;
    let found = course.outcome.checks.iter().map(|check| check.found.clone()).collect();
    (course.outcome.passed(), found)
}

#[tokio::test]
async fn a_drill_fails_where_a_metric_shows_no_reason_another_one_or_a_late_one() {
    let (sink, at_once, too_long) = (relay(waits(On::Sink)), Duration::ZERO, SAID_WITHIN + EVERY);
    let (passed, found) = judged(&[SINK], &sink, at_once).await;
    assert!(passed && found.ends_with(": outflow_connector_waiting{on=\"sink\"} 1"), "{found}");

    let (passed, found) = judged(&[SINK], &sink, too_long).await;
    assert!(!passed && found.starts_with("after 10.1 s: outflow_connector_waiting"), "{found}");

    let (passed, found) = judged(&[SINK], &relay(waits(On::Publication)), too_long).await;
    assert!(!passed && found == "outflow_connector_waiting{on=\"publication\"} 1", "{found}");

    for silent in [relay(State::Streaming), String::new()] {
        let (passed, found) = judged(&[SINK], &silent, too_long).await;
        assert!(!passed && found == "nothing", "{found} in {silent}");
    }
}

#[tokio::test]
async fn a_drill_looks_again_until_a_metric_shows_the_reason() {
    let mut course = Course::new(1, 1, Given::default(), Progress::silent());
    let mut answers =
        [Ok(String::new()), Err(anyhow::anyhow!("no process answers")), Ok(relay(waits(On::Sink)))]
            .into_iter();
    let next = async || answers.next().unwrap();
    shows(&mut course, "relay", Instant::now(), &[SINK], next).await;
    assert!(course.outcome.passed(), "{:?}", course.outcome.checks);
    assert!(answers.next().is_none());
}

#[test]
fn each_reason_of_a_relay_shows_under_its_own_label() {
    let all = [On::Source, On::Slot, On::Publication, On::Sink, On::Offset];
    for waited in all {
        for label in all {
            let series = Series::relay_waits_on(label.as_str());
            let found = relay(waits(waited));
            let shown = found.lines().any(|line| series.is_raised(line) && series.is_in(line));
            assert_eq!(shown, waited == label, "{waited:?} under {label:?}: {found}");
        }
    }
}

#[test]
fn the_names_of_a_consumer_are_those_that_it_counts_under() {
    use outflow_inbox::metrics::{CONFLICTS_TOTAL, WAITING};
    let text = served(|| {
        metrics::gauge!(WAITING, "consumer" => CONSUMER, "component" => "reader").set(1.0);
        metrics::counter!(CONFLICTS_TOTAL, "consumer" => CONSUMER).increment(2);
        metrics::counter!("outflow_conflicts_replaced_total", "consumer" => CONSUMER).increment(1);
    });
    for (series, shown) in [
        (Series::consumer_waits_in("reader"), true),
        (Series::consumer_waits_in("acker"), false),
        (Series::of_consumer("outflow_conflicts_total"), true),
        // the beginning of another name
        (Series::of_consumer("outflow_conflicts"), false),
        (SINK, false),
    ] {
        let found = text.lines().any(|line| series.is_raised(line) && series.is_in(line));
        assert_eq!(found, shown, "{series} in {text}");
    }
}

#[tokio::test]
async fn a_drill_fails_where_status_names_another_reason() {
    for (said, right) in [("waiting for sink: OOM", true), ("waiting for slot", false)] {
        let mut course = Course::new(1, 1, Given::default(), Progress::silent());
        let words = ["OOM", "READONLY"];
        let at = "outflow status on relay".to_owned();
        let look = Look { at, expected: with(&words), since: Instant::now() - SAID_WITHIN + EVERY };
        let ask = async || anyhow::Ok(vec!["somewhere else".to_owned(), said.to_owned()]);
        look.at(&mut course, ask, |line| has_one(line, &words)).await;
        assert_eq!(course.outcome.passed(), right, "{said}: {:?}", course.outcome.checks);
    }
}
