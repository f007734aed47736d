//! Several workers of one consumer.

use std::time::Duration;

use crate::support::{Bed, PATIENCE, Running, gated, seen};
use outflow_inbox::{ConsumerOptions, Retry};

fn worker(bed: &Bed, n: usize) -> ConsumerOptions {
    ConsumerOptions { worker: format!("worker-{n}"), ..bed.options() }
}

async fn until_streams(running: &mut Running, streams: usize) {
    running.until_status(|status| status.streams == streams).await;
}

#[tokio::test]
async fn streams_are_shared_out_and_change_hands_in_order() {
    let mut bed = Bed::new().await;
    let keys: Vec<String> = (0..4).map(|n| format!("{}:{n}", bed.stream)).collect();
    let options = |n| ConsumerOptions { streams: keys.clone(), ..worker(&bed, n) };
    let (one, two, three) = (options(1), options(2), options(3));
    let mut first = bed.start(one, seen());
    until_streams(&mut first, 4).await;
    let mut n = 0;
    // each stream has aggregates of its own
    let mut add = async |bed: &mut Bed, rounds: usize| {
        for _ in 0..rounds {
            for key in &keys {
                n += 1;
                let payload = format!("{{\"v\": {n}}}");
                bed.add_to(key, &format!("e{n}"), key, payload.as_bytes()).await;
            }
        }
        i64::from(n)
    };
    add(&mut bed, 20).await;
    let mut second = bed.start(two, seen());
    add(&mut bed, 20).await;
    until_streams(&mut second, 2).await;
    until_streams(&mut first, 2).await;
    let mut third = bed.start(three, seen());
    add(&mut bed, 20).await;
    third.until_status(|status| status.streams >= 1).await;
    first.crash().await;
    add(&mut bed, 20).await;
    until_streams(&mut second, 2).await;
    until_streams(&mut third, 2).await;
    let applied = second.stop().await.counts.applied;
    assert!(applied > 0);
    until_streams(&mut third, 4).await;
    let all = add(&mut bed, 20).await;
    bed.until_true(&format!("SELECT count(*) = {all} FROM outflow.inbox")).await;
    third.stop().await;
    assert_eq!(bed.count("seen").await, all);
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.count("outflow.position WHERE holder IS NOT NULL").await, 0);
}

#[tokio::test]
async fn c72_a_worker_in_reserve_takes_over_what_a_crashed_one_had_in_work() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 3).await;
    let (stuck, mut entered, _gate) = gated();
    let first = bed.start(ConsumerOptions { batch: 10, ..worker(&bed, 1) }, stuck);
    assert_eq!(entered.recv().await, Some(10));
    let mut second = bed.start(worker(&bed, 2), seen());
    // long before the lease is over: the first one's session is gone
    first.crash().await;
    second.until(|counts| counts.applied == 60 && counts.claimed >= 10).await;
    second.stop().await;
    bed.assert_exactly_once(60).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c76_a_second_process_of_one_name_is_refused() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("another process has the name `worker-1`");
    let options = ConsumerOptions { lease: Duration::from_secs(1), ..bed.options() };
    let mut first = bed.start(options.clone(), seen());
    first.until_status(|status| status.streams == 1).await;
    let error = bed.start(options.clone(), seen()).end().await.unwrap_err();
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("is running already, in another process"), "{error}");
    bed.add_many(1..=10, 1).await;
    first.until(|counts| counts.acknowledged == 10).await;
    // and one that died makes room at once
    first.crash().await;
    bed.add_many(11..=20, 1).await;
    bed.run_until(options, seen(), |counts| counts.acknowledged == 10).await;
    bed.assert_exactly_once(20).await;
}

#[tokio::test]
async fn workers_that_are_gone_are_removed_from_the_group_when_they_hold_nothing() {
    let mut bed = Bed::new().await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "CREATE", &stream, "accounting", "0", "MKSTREAM"]).await;
    bed.redis_command(&["XGROUP", "CREATECONSUMER", &stream, "accounting", "gone"]).await;
    let options = ConsumerOptions {
        claim_interval: Duration::from_millis(20),
        claim_min_idle: Duration::from_millis(1),
        ..bed.options()
    };
    let running = bed.start(options, seen());
    let names = async {
        loop {
            let info = bed.redis_command(&["XINFO", "CONSUMERS", &stream, "accounting"]).await;
            if !format!("{info:?}").contains("gone") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, names).await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn what_was_read_before_a_stream_changed_hands_is_not_overtaken() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=10, 2).await;
    let (slow, mut entered, gate) = gated();
    let options = ConsumerOptions { batch: 10, ..bed.options() };
    let mut running = bed.start(options, slow);
    assert_eq!(entered.recv().await, Some(10));
    // as another worker does that takes the stream and dies, while this one is in mid-transaction
    let taken = "UPDATE outflow.position SET token = token + 1, holder = NULL";
    bed.sql.batch_execute(taken).await.unwrap();
    bed.until_true("SELECT holder = 'worker-1' AND token = 3 FROM outflow.position").await;
    // read ahead under the newer token
    bed.add_many(11..=11, 2).await;
    bed.until_pending(11).await;
    bed.add_many(12..=20, 2).await;
    gate.add_permits(100);
    running.until(|counts| counts.acknowledged == 20).await;
    running.stop().await;
    bed.assert_exactly_once(20).await;
    bed.assert_order_within_aggregates().await;
}
