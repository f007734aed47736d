//! Confirmations: what reaches the slot, and what must not.

use std::time::Duration;

use outflow_pgoutput::{Error, FeedbackOptions, Lsn, Retry, StartOptions};

use crate::support::{Bench, PUBLICATION, Reader, SLOT, eventually};

/// Waits until the server has sent everything up to here.
async fn caught_up(reader: &Reader, tip: Lsn) {
    eventually("the stream has caught up", || async { reader.stream.received() >= tip }).await;
}

#[tokio::test]
async fn a_confirmed_position_moves_the_slot() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    let transaction = reader.transaction().await;
    assert!(bench.confirmed_flush().await < transaction.end_lsn);
    reader.stream.confirm(transaction.end_lsn).unwrap();
    eventually("the slot has moved", || async {
        bench.confirmed_flush().await >= transaction.end_lsn
    })
    .await;
    // lower ones change nothing
    reader.stream.confirm(transaction.commit_lsn).unwrap();
    reader.stream.confirm(Lsn::from(0)).unwrap();
    assert_eq!(reader.stream.confirmed(), transaction.end_lsn);
    assert!(reader.stop().await >= transaction.end_lsn);
}

#[tokio::test]
async fn c31_an_idle_outbox_follows_a_busy_neighbour() {
    let bench = Bench::start().await;
    bench.pg.create_database("neighbour").await.unwrap();
    let neighbour = bench.pg.connect_to("neighbour").await.unwrap();
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    reader.confirm_until(1).await;
    neighbour
        .batch_execute(
            "CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 40000) g",
        )
        .await
        .unwrap();
    let tip = bench.tip().await;
    eventually("the slot follows", || async { bench.confirmed_flush().await >= tip }).await;
    // and the same for a table of this database that is not published
    bench.execute("CREATE TABLE u AS SELECT g FROM generate_series(1, 100000) g").await;
    let tip = bench.tip().await;
    eventually("the slot follows", || async { bench.confirmed_flush().await >= tip }).await;
    assert!(reader.stream.flushed() >= tip);
    reader.stop().await;
}

#[tokio::test]
async fn c32_a_keepalive_is_not_confirmed_while_an_event_is_in_flight() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    bench.emit(2).await;
    let (first, second) = (reader.transaction().await, reader.transaction().await);
    bench.execute("CREATE TABLE u AS SELECT g FROM generate_series(1, 100000) g").await;
    let tip = bench.tip().await;
    caught_up(&reader, tip).await;
    assert!(bench.confirmed_flush().await < first.commit_lsn);
    reader.stream.confirm(first.end_lsn).unwrap();
    eventually("the first is confirmed", || async {
        bench.confirmed_flush().await >= first.end_lsn
    })
    .await;
    assert!(bench.confirmed_flush().await < second.end_lsn);
    reader.stream.confirm(second.end_lsn).unwrap();
    eventually("the slot follows", || async { bench.confirmed_flush().await >= tip }).await;
    reader.stop().await;
}

#[tokio::test]
async fn without_idle_advance_the_caller_confirms_keepalives_itself() {
    let bench = Bench::start().await;
    let feedback = FeedbackOptions { idle_advance: false, ..FeedbackOptions::default() };
    let mut reader = bench.reader_with(feedback).await;
    bench.emit(1).await;
    let end = reader.transaction().await.end_lsn;
    reader.stream.confirm(end).unwrap();
    bench.execute("CREATE TABLE u AS SELECT g FROM generate_series(1, 1000) g").await;
    let tip = bench.tip().await;
    caught_up(&reader, tip).await;
    eventually("the event is confirmed", || async { bench.confirmed_flush().await >= end }).await;
    assert_eq!(bench.confirmed_flush().await, end);
    reader.stream.confirm(reader.stream.received()).unwrap();
    eventually("the slot follows", || async { bench.confirmed_flush().await >= tip }).await;
    reader.stop().await;
}

#[tokio::test]
async fn c49_c50_a_position_from_the_future_never_reaches_the_slot() {
    let bench = Bench::start().await;
    let future: Lsn = "FFF/0".parse().unwrap();
    let before = bench.confirmed_flush().await;
    let feedback = FeedbackOptions {
        status_interval: Duration::from_millis(50),
        ..FeedbackOptions::default()
    };
    // the server accepts such a start, and sends nothing
    let mut start = StartOptions::new(SLOT, PUBLICATION);
    start.start = future;
    let stream = bench.client().await.start_replication(start, feedback.clone()).await.unwrap();
    bench.emit(1).await;
    let tip = bench.tip().await;
    eventually("the server has heard from the link", || async {
        let sql = format!(
            "SELECT sent_lsn >= '{tip}' AND reply_time IS NOT NULL FROM pg_stat_replication"
        );
        bench.value(&sql).await.as_deref() == Some("t")
    })
    .await;
    let error = stream.confirm(future).unwrap_err();
    assert!(matches!(error, Error::ConfirmBeyondReceived { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Fatal);
    assert_eq!(stream.stop(Duration::from_secs(10)).await.unwrap(), Lsn::from(0));
    assert_eq!(bench.confirmed_flush().await, before);

    // with the right start the event that was passed over is there
    let mut reader = bench.reader_with(feedback).await;
    let transaction = reader.transaction().await;
    assert_eq!(transaction.ids(), [1]);
    let received = reader.stream.received();
    assert!(reader.stream.confirm(Lsn::from(u64::from(received) + (1 << 30))).is_err());
    assert_eq!(reader.stream.confirmed(), Lsn::from(0));
    reader.stop().await;
}

#[tokio::test]
async fn c52_c09_nothing_comes_again_after_an_orderly_stop_and_nothing_is_skipped() {
    let bench = Bench::start().await;
    bench.emit(0).await;
    let mut reader = bench.reader().await;
    assert_eq!(reader.confirm_until(0).await, [0]);
    for round in 1..=5 {
        let flush = reader.stop().await;
        assert!(!bench.slot_is_active().await, "the slot is free when stop returns");
        assert_eq!(bench.confirmed_flush().await, flush);
        // no other WAL: nothing may come
        reader = bench.reader().await;
        caught_up(&reader, bench.tip().await).await;
        bench.emit(round).await;
        assert_eq!(reader.confirm_until(round).await, [round], "round {round}");
    }
    // an event written while nobody listens is the first to come
    reader.stop().await;
    bench.emit(99).await;
    let mut reader = bench.reader().await;
    assert_eq!(reader.confirm_until(99).await, [99]);
    reader.stop().await;
}

#[tokio::test]
async fn c52_confirming_the_commit_lsn_brings_the_transaction_back() {
    let bench = Bench::start().await;
    bench.emit(1).await;
    let feedback = FeedbackOptions { idle_advance: false, ..FeedbackOptions::default() };
    for _ in 0..3 {
        let mut reader = bench.reader_with(feedback.clone()).await;
        let transaction = reader.transaction().await;
        assert_eq!(transaction.ids(), [1]);
        reader.stream.confirm(transaction.commit_lsn).unwrap();
        reader.stop().await;
    }
}

#[tokio::test]
async fn what_was_not_confirmed_comes_again() {
    let bench = Bench::start().await;
    bench.emit(1).await;
    bench.emit(2).await;
    let mut reader = bench.reader().await;
    let first = reader.transaction().await;
    assert_eq!(reader.transaction().await.ids(), [2]);
    reader.stream.confirm(first.end_lsn).unwrap();
    reader.stop().await;
    let mut reader = bench.reader().await;
    assert_eq!(reader.transaction().await.ids(), [2]);
    reader.stop().await;
}

#[tokio::test]
async fn c56_a_start_above_the_slot_skips_and_one_below_is_raised() {
    let bench = Bench::start().await;
    for id in 1..=3 {
        bench.emit(id).await;
    }
    let mut reader = bench.reader().await;
    let first = reader.transaction().await;
    let second = reader.transaction().await;
    reader.stop().await;
    let mut start = StartOptions::new(SLOT, PUBLICATION);
    start.start = second.end_lsn;
    let stream = bench.client().await.start_replication(start.clone(), FeedbackOptions::default());
    let mut reader = Reader::new(stream.await.unwrap());
    assert_eq!(reader.confirm_until(3).await, [3]);
    reader.stop().await;
    start.start = first.end_lsn;
    let stream = bench.client().await.start_replication(start, FeedbackOptions::default());
    let mut reader = Reader::new(stream.await.unwrap());
    bench.emit(4).await;
    assert_eq!(reader.confirm_until(4).await, [4]);
    reader.stop().await;
}
