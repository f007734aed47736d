//! Where groups begin, and what happens when they vanish.

use crate::support::{Bed, seen};
use outflow_inbox::{ConsumerOptions, Start};

#[tokio::test]
async fn c74_a_stream_that_is_deleted_while_it_is_read_begins_again_at_the_position() {
    let mut bed = Bed::new().await;
    // Redis 7 ends the blocking read with UNBLOCKED, later reads with NOGROUP
    bed.log.expect_warn("waiting: redis: ");
    bed.log.expect_warn("the group was gone and is rebuilt at the stored position");
    let mut running = bed.start(bed.options(), seen());
    bed.add_many(1..=100, 3).await;
    running.until(|counts| counts.acknowledged == 100).await;
    bed.until_true("SELECT entry_id = resume_id FROM outflow.position").await;
    let stream = bed.stream.clone();
    bed.redis_command(&["DEL", &stream]).await;
    bed.add_many(101..=150, 3).await;
    running.until(|counts| counts.acknowledged == 150).await;
    let summary = running.stop().await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (150, 0));
    bed.assert_exactly_once(150).await;
}

#[tokio::test]
async fn c74_a_group_that_is_destroyed_while_it_is_read_is_rebuilt() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("NOGROUP");
    bed.log.expect_warn("the group was gone and is rebuilt at the stored position");
    let mut running = bed.start(bed.options(), seen());
    bed.add_many(1..=100, 3).await;
    running.until(|counts| counts.acknowledged == 100).await;
    for round in 1..=3 {
        let stream = bed.stream.clone();
        bed.redis_command(&["XGROUP", "DESTROY", &stream, "accounting"]).await;
        let from = 100 * round + 1;
        bed.add_many(from..=from + 99, 3).await;
        running.until(|counts| counts.applied == from + 99).await;
    }
    running.stop().await;
    bed.assert_exactly_once(400).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c74_a_group_that_was_lost_while_nobody_ran_is_rebuilt_at_the_position() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=50, 3).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 50).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "DESTROY", &stream, "accounting"]).await;
    bed.add_many(51..=60, 3).await;
    bed.log.expect_warn("the group was gone and is rebuilt at the stored position");
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 10).await;
    // not from the beginning, and not from the end
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (10, 0));
    bed.assert_exactly_once(60).await;
}

#[tokio::test]
async fn c74_entries_in_work_when_the_group_vanishes_are_not_skipped() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("NOGROUP");
    bed.log.expect_warn("the group was gone and is rebuilt at the stored position");
    // a worker that dies holds e1 .. e10 while another one is far beyond them
    let mut first = bed.start(bed.options(), seen());
    first.until_status(|status| status.state == outflow_inbox::State::Running).await;
    first.stop().await;
    bed.add_many(1..=10, 1).await;
    bed.read_and_die("worker-9", 10).await;
    bed.add_many(11..=30, 1).await;
    let options = ConsumerOptions { share_streams: true, ..bed.options() };
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 20).await;
    let (applied, resume) = bed.position().await;
    assert_ne!(applied, resume);
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "DESTROY", &stream, "accounting"]).await;
    running.until(|counts| counts.applied == 30).await;
    running.until_status(|status| status.lag_entries == Some(0)).await;
    running.stop().await;
    bed.assert_exactly_once(30).await;
}

#[tokio::test]
async fn c75_workers_that_start_at_once_share_one_group() {
    let mut bed = Bed::new().await;
    for round in 0..10 {
        bed.stream = format!("{}:{round}", bed.database.name);
        bed.add_many(1 + round * 20..=20 + round * 20, 2).await;
        let mut workers: Vec<_> = (0..5)
            .map(|n| {
                let worker = format!("worker-{n}");
                bed.start(ConsumerOptions { worker, ..bed.options() }, seen())
            })
            .collect();
        bed.until_true(&format!("SELECT count(*) = {} FROM outflow.inbox", 20 + round * 20)).await;
        let mut applied = 0;
        for worker in workers.drain(..) {
            applied += worker.stop().await.counts.applied;
        }
        assert_eq!(applied, 20);
        assert_eq!(bed.pending().await, 0);
    }
    bed.assert_exactly_once(200).await;
}

#[tokio::test]
async fn c75_a_later_consumer_begins_where_its_configuration_says() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=10, 1).await;
    let after = bed.add("e11", "1", br#"{"v": 11}"#).await;
    bed.add_many(12..=20, 1).await;
    let consumer = |id: &str, from: Start| ConsumerOptions {
        consumer_id: id.to_owned(),
        from: Some(from),
        ..bed.options()
    };
    let all = consumer("all", Start::Beginning);
    let some = consumer("some", Start::After(after.parse().unwrap()));
    let new = consumer("new", Start::Now);
    let summary = bed.run_until(all, seen(), |counts| counts.acknowledged == 20).await;
    assert_eq!(summary.counts.applied, 20);
    let summary = bed.run_until(some, seen(), |counts| counts.acknowledged == 9).await;
    assert_eq!(summary.counts.applied, 9);

    let mut running = bed.start(new.clone(), seen());
    running.until_status(|status| status.lag_entries == Some(0)).await;
    // lost before anything was applied: the beginning that was chosen still holds
    bed.log.expect_warn("NOGROUP");
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "DESTROY", &stream, "new"]).await;
    bed.add_many(21..=23, 1).await;
    running.until(|counts| counts.acknowledged == 3).await;
    assert_eq!(running.stop().await.counts.applied, 3);
}
