//! Entries that a stream lost: which of them matter, and that each is named once.

use outflow_inbox::ConsumerOptions;
use std::time::Duration;

use crate::support::{Bed, seen};

const OPEN: &str = "outflow.lost_entries WHERE settled_at IS NULL";

#[tokio::test]
async fn c71_entries_that_were_applied_before_they_vanished_are_not_lost() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=10, 1).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 10).await;
    // as after a crash between commit and XACK, or a failover that forgot the XACK
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "SETID", &stream, "accounting", "0"]).await;
    bed.read_and_die("worker-1", 10).await;
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "0"]).await;
    let running = bed.start(bed.options(), seen());
    // whoever takes the entries over finds them gone, and Redis drops them from its list
    let said = async {
        while bed.log.matching("nothing is lost").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), said).await.unwrap();
    let summary = running.stop().await;
    // no warning either: the log of a test must hold none
    assert_eq!(summary.counts.lost, 0);
    assert_eq!(bed.count(OPEN).await, 0);
    assert_eq!(bed.log.matching("nothing is lost").len(), 1);
    bed.assert_exactly_once(10).await;
}

#[tokio::test]
async fn c71_lost_entries_are_written_down_and_named_once() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=2, 1).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 2).await;
    let lost = [bed.add("e3", "1", b"{}").await, bed.add("e4", "1", b"{}").await];
    bed.read_and_die("worker-1", 2).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "0"]).await;
    // as a worker leaves it that was killed after it had written the first one down
    let known = "INSERT INTO outflow.lost_entries (consumer_id, stream, above_id, up_to_id, entries, was_pending) \
                 VALUES ('accounting', $1, '0-0', $2, 1, true)";
    bed.sql.execute(known, &[&stream, &lost[0]]).await.unwrap();
    bed.log.expect_warn("while they were pending, before they were applied");
    let mut running = bed.start(bed.options(), seen());
    running.until(|counts| counts.lost == 1).await;
    assert_eq!(running.stop().await.counts.lost, 1);
    let said = bed.log.matching("before they were applied");
    assert_eq!(said.len(), 1, "{said:?}");
    let said = format!("{said:?}");
    assert!(said.contains(&lost[1]) && !said.contains(&lost[0]), "{said}");
    assert!(said.contains("outflow offsets reset --from-rows --yes"), "{said}");
    assert_eq!(bed.count(OPEN).await, 2);
    assert_eq!(bed.pending().await, 0);
}

#[tokio::test]
async fn c70_entries_that_were_trimmed_before_they_were_delivered_are_counted_and_named() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=10, 1).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 10).await;
    bed.add_many(11..=510, 1).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "100"]).await;
    bed.log.expect_warn("entries were trimmed or deleted before they were delivered");
    let mut running = bed.start(bed.options(), seen());
    running.until(|counts| counts.acknowledged == 100).await;
    let counts = running.stop().await.counts;
    assert_eq!((counts.applied, counts.lost), (100, 400));
    let row = bed
        .sql
        .query_one("SELECT entries, was_pending FROM outflow.lost_entries", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (400, false));

    // once
    bed.add_many(511..=512, 1).await;
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 2).await;
    assert_eq!(summary.counts.lost, 0);
    assert_eq!(bed.log.matching("before they were delivered").len(), 1);
}

#[tokio::test]
async fn c70_a_stream_that_is_trimmed_below_a_consumer_that_runs_is_noticed() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("entries were trimmed or deleted before they were delivered");
    let (handler, mut entered, gate) = crate::support::gated();
    let options =
        ConsumerOptions { batch: 5, claim_interval: Duration::from_millis(10), ..bed.options() };
    let mut running = bed.start(options, handler);
    bed.add_many(1..=5, 1).await;
    entered.recv().await.unwrap();
    // one batch is applied, one read ahead, one waits for its place
    bed.add_many(6..=200, 1).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "20"]).await;
    gate.add_permits(1_000);
    running.until(|counts| counts.applied + counts.lost >= 200).await;
    let counts = running.stop().await.counts;
    assert_eq!(counts.applied + counts.lost, 200, "{counts:?}");
}
