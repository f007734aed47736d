//! Stops: finish, acknowledge, close, within a deadline.

use std::time::{Duration, Instant};

use crate::support::{Bed, gated, seen};
use outflow_inbox::{ConsumerOptions, State};

#[tokio::test]
async fn a_stop_finishes_and_acknowledges_what_is_in_work() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=30, 1).await;
    let (slow, mut entered, gate) = gated();
    let mut running = bed.start(ConsumerOptions { batch: 10, ..bed.options() }, slow);
    assert_eq!(entered.recv().await, Some(10));
    running.shutdown.cancel();
    gate.add_permits(10);
    running.until_status(|status| status.state == State::Stopped).await;
    let summary = running.end().await.unwrap();
    assert!(summary.clean && summary.counts.applied >= 10, "{summary:?}");
    assert_eq!(summary.counts.acknowledged, summary.counts.applied);
    assert_eq!(bed.pending().await, 0);
    assert_eq!(bed.count("seen").await, i64::try_from(summary.counts.applied).unwrap());
    // and the rest comes later
    bed.run_until(bed.options(), seen(), |counts| {
        counts.acknowledged == 30 - summary.counts.acknowledged
    })
    .await;
    bed.assert_exactly_once(30).await;
}

#[tokio::test]
async fn c80_a_stop_does_not_wait_for_a_blocking_read() {
    let mut bed = Bed::new().await;
    let (block, lease) = (Duration::from_secs(60), Duration::from_secs(180));
    let options = ConsumerOptions { block, lease, ..bed.options() };
    let mut running = bed.start(options, seen());
    bed.add_many(1..=1, 1).await;
    running.until(|counts| counts.acknowledged == 1).await;
    let began = Instant::now();
    assert!(running.stop().await.clean);
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_stop_ends_at_its_deadline_and_rolls_back() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("stopped at the deadline");
    bed.add_many(1..=10, 1).await;
    let (stuck, mut entered, _gate) = gated();
    let options = ConsumerOptions { stop_timeout: Duration::from_millis(100), ..bed.options() };
    let running = bed.start(options, stuck);
    assert_eq!(entered.recv().await, Some(10));
    let summary = running.stop().await;
    assert!(!summary.clean);
    bed.until_true("SELECT count(*) = 0 FROM seen").await;
    assert_eq!(bed.pending().await, 10);
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 10).await;
    bed.assert_exactly_once(10).await;
}

#[tokio::test]
async fn a_stop_while_the_database_is_gone_gives_the_batch_back() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("waiting: database");
    bed.add_many(1..=10, 1).await;
    let nowhere = outflow_inbox::connect_no_tls("postgres://postgres@127.0.0.1:1/none");
    let mut running = crate::support::start(bed.options(), nowhere, seen());
    running.until_waiting_for("database").await;
    assert!(running.stop().await.clean);
}
