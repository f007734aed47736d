//! The log capture.

use std::panic::{AssertUnwindSafe, catch_unwind};

use outflow_sandbox::logs::Capture;

#[test]
fn an_unexpected_warning_fails_the_test() {
    let capture = Capture::install();
    tracing::warn!(slot = "s1", "slot is inactive");
    assert_eq!(capture.offending(), ["WARN sandbox::logs: slot is inactive slot=\"s1\""]);
    assert!(catch_unwind(AssertUnwindSafe(|| capture.assert_quiet())).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(capture))).is_err());
}

#[test]
fn expected_warnings_and_lower_levels_pass() {
    let capture = Capture::install();
    capture.expect_warn("slot is inactive");
    tracing::warn!("slot is inactive");
    tracing::error!("slot is inactive for good");
    tracing::info!("started");
    tracing::debug!(port = 1, "detail");
    capture.assert_quiet();
    assert_eq!(capture.matching("detail"), ["DEBUG sandbox::logs: detail port=1"]);
}

#[test]
fn another_threads_events_count_where_the_capture_is_for_the_process() {
    let mine = Capture::install_for_process();
    mine.expect_warn("");
    std::thread::spawn(|| tracing::warn!("from a worker")).join().unwrap();
    assert_eq!(mine.matching("from a worker").len(), 1);
}

#[tokio::test]
async fn tasks_of_the_test_are_heard() {
    let capture = Capture::install();
    capture.expect_warn("task");
    tokio::spawn(async { tracing::warn!("from a task") }).await.unwrap();
    assert_eq!(capture.matching("from a task").len(), 1);
}
