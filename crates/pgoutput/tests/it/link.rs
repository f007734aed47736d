//! The link itself: standstill, silence, cuts, the end.

use std::time::{Duration, Instant};

use outflow_pgoutput::{Appetite, Error, FeedbackOptions, ReplicationClient, Retry, StartOptions};
use outflow_sandbox::{Postgres, Proxy};

use crate::support::{Bench, PUBLICATION, Reader, SLOT, eventually, options};

#[tokio::test]
async fn c33_c34_a_caller_that_stands_still_keeps_its_walsender() {
    let bench = Bench::with(Postgres::builder().setting("wal_sender_timeout", "3s")).await;
    let mut reader = bench.reader().await;
    bench.emit(0).await;
    reader.confirm_until(0).await;
    let pid = bench.walsender().await;
    assert!(pid.is_some());
    bench
        .execute(
            "INSERT INTO outbox SELECT g, 'T', repeat('x', 1000) FROM generate_series(1, 60000) g",
        )
        .await;
    // the time itself is what is tested: several times wal_sender_timeout
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.walsender().await, pid, "{}", bench.pg.log());
    let transaction = reader.transaction().await;
    assert_eq!(transaction.ids().len(), 60_000);
    assert_eq!(bench.walsender().await, pid, "{}", bench.pg.log());
    // the same while events are in flight and everything is read
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(bench.walsender().await, pid);
    assert!(bench.confirmed_flush().await < transaction.commit_lsn);
    reader.stop().await;
}

#[tokio::test]
async fn c33_updates_go_out_without_a_wal_sender_timeout() {
    let bench = Bench::with(Postgres::builder().setting("wal_sender_timeout", "0")).await;
    let feedback =
        FeedbackOptions { status_interval: Duration::from_millis(100), ..Default::default() };
    let reader = bench.reader_with(feedback).await;
    let sql = "SELECT reply_time FROM pg_stat_replication";
    eventually("a first update", || async { bench.value(sql).await.is_some() }).await;
    let first = bench.value(sql).await;
    eventually("another update", || async { bench.value(sql).await != first }).await;
    reader.stop().await;
}

async fn through(bench: &Bench, proxy: &Proxy, feedback: FeedbackOptions) -> Reader {
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let client = ReplicationClient::connect(&options(&url)).await.unwrap();
    let start = StartOptions::new(SLOT, PUBLICATION);
    let reader = Reader::new(client.start_replication(start, feedback).await.unwrap());
    bench.emit(1).await;
    reader
}

#[tokio::test]
async fn c44_a_peer_that_fell_silent_is_given_up_in_time() {
    let bench = Bench::start().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", bench.pg.port())).start().await.unwrap();
    let peer_timeout = Duration::from_secs(2);
    let feedback = FeedbackOptions { peer_timeout, ..FeedbackOptions::default() };
    let mut reader = through(&bench, &proxy, feedback).await;
    assert_eq!(reader.confirm_until(1).await, [1]);
    // an idle link is asked and answers: it stays up for longer than the limit
    tokio::time::sleep(peer_timeout * 2).await;
    bench.emit(2).await;
    assert_eq!(reader.confirm_until(2).await, [2]);
    proxy.pause();
    let since = Instant::now();
    let (_, error) = reader.ends().await;
    assert!(matches!(error, Error::PeerTimeout { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Transient);
    let took = since.elapsed();
    assert!(took >= peer_timeout / 2 && took < peer_timeout * 5, "{took:?}");
    assert!(error.to_string().contains("2s"), "{error}");
}

#[tokio::test]
async fn c45_a_cut_link_is_transient_and_loses_nothing() {
    let bench = Bench::start().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", bench.pg.port())).start().await.unwrap();
    let mut reader = through(&bench, &proxy, FeedbackOptions::default()).await;
    let transaction = reader.transaction().await;
    proxy.cut();
    let (_, error) = reader.ends().await;
    assert_eq!(error.retry(), Retry::Transient, "{error}");
    // confirming is still allowed, and reaches nobody
    reader.stream.confirm(transaction.end_lsn).unwrap();
    assert!(reader.stream.next().await.unwrap().is_none());
    eventually("the server has noticed", || async { !bench.slot_is_active().await }).await;
    assert_eq!(bench.reader().await.confirm_until(1).await, [1]);
}

#[tokio::test]
async fn dropping_the_stream_frees_the_slot() {
    let bench = Bench::start().await;
    let reader = bench.reader().await;
    assert!(bench.slot_is_active().await);
    drop(reader);
    eventually("the slot is free", || async { !bench.slot_is_active().await }).await;
}

#[tokio::test]
async fn c52_a_stop_in_the_middle_of_a_large_transaction() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    let first = reader.transaction().await;
    bench
        .execute(
            "INSERT INTO outbox SELECT g, 'T', repeat('x', 1000) FROM generate_series(2, 60000) g",
        )
        .await;
    reader.stream.confirm(first.end_lsn).unwrap();
    // a keepalive may have come between the two: then it counts, but never as far as the second
    let flush = reader.stop().await;
    assert!(flush >= first.end_lsn);
    assert!(!bench.slot_is_active().await);
    assert_eq!(bench.confirmed_flush().await, flush);
    let mut reader = bench.reader().await;
    let second = reader.transaction().await;
    assert_eq!(second.ids().len(), 59_999);
    assert!(flush <= second.commit_lsn);
    reader.stop().await;
}

#[tokio::test]
async fn a_stop_that_takes_too_long_is_ended() {
    let bench = Bench::start().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", bench.pg.port())).start().await.unwrap();
    let reader = through(&bench, &proxy, FeedbackOptions::default()).await;
    proxy.pause();
    let error = reader.stream.stop(Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, Error::StopTimeout { .. }), "{error}");
}

#[tokio::test]
async fn waiting_for_a_chunk_is_cancel_safe() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    let writer = async {
        for id in 1..=200 {
            bench.emit(id).await;
        }
    };
    let read = async {
        let mut ids = Vec::new();
        while ids.last() != Some(&200) {
            // given up again and again in the middle of waiting; what has come stays in the reader
            let wait = Duration::from_micros(100 * u64::try_from(ids.len() % 7).unwrap());
            if let Ok(transaction) = tokio::time::timeout(wait, reader.try_transaction()).await {
                ids.extend(transaction.unwrap().ids());
            }
        }
        ids
    };
    let ((), ids) = tokio::join!(writer, read);
    assert_eq!(ids, (1..=200).collect::<Vec<_>>());
    reader.stop().await;
}

#[tokio::test]
async fn appetite_changes_how_bytes_come_and_not_which() {
    let bench = Bench::start().await;
    let linger = Duration::from_millis(100);
    let feedback = FeedbackOptions { linger, ..FeedbackOptions::default() };
    let mut reader = bench.reader_with(feedback).await;
    for (id, appetite) in
        (1..40).zip([Appetite::Bulk, Appetite::Bulk, Appetite::Prompt].iter().cycle())
    {
        reader.stream.set_appetite(*appetite);
        bench.emit(id).await;
        // a few bytes do not lie there for long
        let since = Instant::now();
        assert_eq!(reader.confirm_until(id).await, [id]);
        assert!(since.elapsed() < Duration::from_secs(10), "{appetite:?} {:?}", since.elapsed());
    }
    reader.stream.set_appetite(Appetite::Bulk);
    bench
        .execute(
            "INSERT INTO outbox SELECT g, 'T', repeat('x', 300) FROM generate_series(100, 20000) g",
        )
        .await;
    assert_eq!(reader.transaction().await.ids().len(), 19_901);
    reader.stop().await;
}

#[tokio::test]
async fn c33_bulk_appetite_answers_the_server() {
    let bench = Bench::with(Postgres::builder().setting("wal_sender_timeout", "3s")).await;
    let feedback =
        FeedbackOptions { status_interval: Duration::from_secs(60), ..FeedbackOptions::default() };
    let mut reader = bench.reader_with(feedback).await;
    reader.stream.set_appetite(Appetite::Bulk);
    let pid = bench.walsender().await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(bench.walsender().await, pid);
    reader.stream.set_appetite(Appetite::Prompt);
    bench.emit(1).await;
    assert_eq!(reader.confirm_until(1).await, [1]);
    reader.stop().await;
}

#[tokio::test]
async fn small_buffers_work_too() {
    let bench = Bench::start().await;
    let feedback = FeedbackOptions {
        read_buffer: 4096,
        chunks: 1,
        recv_buffer: Some(128 << 10),
        low_water: 1024,
        ..FeedbackOptions::default()
    };
    let mut reader = bench.reader_with(feedback).await;
    bench
        .execute("INSERT INTO outbox SELECT g, 'T', repeat('x', g % 20000) FROM generate_series(1, 2000) g")
        .await;
    let rows = reader.transaction().await.rows();
    assert_eq!(rows.len(), 2000);
    assert!(rows.iter().all(|row| row[2].len() == row[0].parse::<usize>().unwrap() % 20_000));
    reader.stop().await;
    for bad in [
        FeedbackOptions { chunks: 0, ..Default::default() },
        FeedbackOptions { read_buffer: 1, ..Default::default() },
        FeedbackOptions { peer_timeout: Duration::ZERO, ..Default::default() },
        FeedbackOptions { status_interval: Duration::ZERO, ..Default::default() },
    ] {
        let start = StartOptions::new(SLOT, PUBLICATION);
        let error = bench.client().await.start_replication(start, bad).await.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error}");
    }
}
