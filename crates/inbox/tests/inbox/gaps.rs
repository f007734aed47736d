//! Numbers that are missing in an aggregate.

use std::time::Duration;

use crate::support::{Bed, seen};
use outflow_inbox::{ConsumerOptions, OnGap};

/// Adds events `e<seq>` with that `seq` and payload `{"v": seq}`.
async fn add(bed: &mut Bed, aggregate: &str, seqs: &[i64]) {
    let mut pipe = redis::pipe();
    for seq in seqs {
        pipe.cmd("XADD")
            .arg(&bed.stream)
            .arg("*")
            .arg(&[("event_id", format!("{aggregate}-{seq}")), ("seq", seq.to_string())])
            .arg(&[("aggregate_type", "order"), ("aggregate_id", aggregate), ("event_type", "T")])
            .arg("payload")
            .arg(format!("{{\"v\": {seq}}}"))
            .ignore();
    }
    pipe.exec_async(&mut bed.redis).await.unwrap();
}

fn options(bed: &Bed, on_gap: OnGap, wait: Duration) -> ConsumerOptions {
    ConsumerOptions { on_gap, gap_wait: wait, ..bed.options() }
}

#[tokio::test]
async fn a_gap_is_reported_and_nothing_waits_for_it() {
    let mut bed = Bed::new().await;
    bed.log
        .expect_warn("gap: event a-5 has seq 5, expected was 4: applied without what is missing");
    add(&mut bed, "a", &[1, 2, 3, 5, 6]).await;
    add(&mut bed, "b", &[7, 8]).await;
    let options = options(&bed, OnGap::Warn, Duration::from_secs(60));
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 7).await;
    // late, and no gap
    add(&mut bed, "a", &[4, 7]).await;
    running.until(|counts| counts.acknowledged == 9).await;
    let counts = running.stop().await.counts;
    assert_eq!((counts.applied, counts.gaps), (9, 1));
    assert_eq!(bed.count("outflow.sequence WHERE last_seq IN (7, 8)").await, 2);
}

#[tokio::test]
async fn events_behind_a_gap_wait_until_it_is_filled_and_are_applied_in_order() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("it and later ones wait for what is missing");
    add(&mut bed, "a", &[1, 2, 5, 6]).await;
    add(&mut bed, "b", &[1, 2]).await;
    let options = options(&bed, OnGap::Wait, Duration::from_secs(600));
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 6).await;
    assert_eq!(bed.count("seen").await, 4);
    assert_eq!(bed.count("outflow.parked WHERE cause = 'gap' AND seq = 5").await, 1);
    // the later of two that are missing comes first, others go on
    add(&mut bed, "a", &[4, 7]).await;
    add(&mut bed, "b", &[3]).await;
    running.until(|counts| counts.applied == 5).await;
    running.until_status(|status| status.held.parked == 4).await;
    let status = running.status.borrow().held.clone();
    assert!(status.oldest.unwrap().contains("a-5 of order a (gap)"));
    add(&mut bed, "a", &[3]).await;
    running.until(|counts| counts.applied == 10).await;
    add(&mut bed, "a", &[8]).await;
    running.until(|counts| counts.applied == 11).await;
    running.stop().await;
    assert_eq!(bed.count("outflow.parked").await, 0);
    assert_eq!(bed.count("seen").await, 11);
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn the_wait_for_a_gap_is_bounded() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("it and later ones wait for what is missing");
    bed.log.expect_warn("applied without what is missing");
    add(&mut bed, "a", &[1, 3, 4]).await;
    let options = options(&bed, OnGap::Wait, Duration::from_millis(300));
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 3).await;
    running.until(|counts| counts.applied == 3).await;
    add(&mut bed, "a", &[5]).await;
    running.until(|counts| counts.applied == 4).await;
    let counts = running.stop().await.counts;
    assert_eq!((counts.gaps, counts.failed), (2, 0));
    bed.assert_order_within_aggregates().await;
}
