//! C35: PostgreSQL can always shut down, and nothing is confirmed for its sake.

use std::time::Duration;

use outflow_pgoutput::{Error, FeedbackOptions, Retry};
use outflow_sandbox::Shutdown;

use crate::support::{Bench, Reader, eventually};

/// The link takes a second; PostgreSQL's own shutdown and a busy machine the rest. A link that is not released
/// holds the server up for `wal_sender_timeout`, a minute, or for good.
const LIMIT: Duration = Duration::from_secs(10);

async fn fast_shutdown(bench: &Bench) {
    let took = bench.pg.stop(Shutdown::Fast, Duration::from_secs(50)).await.unwrap();
    assert!(took < LIMIT, "took {took:?}");
}

fn is_shutdown(error: &Error) {
    assert_eq!(error.retry(), Retry::Transient, "{error}");
    assert!(matches!(error, Error::ServerShuttingDown(_)), "{error}");
}

#[tokio::test]
async fn c35_a_fast_shutdown_with_an_idle_link() {
    let mut bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    reader.confirm_until(1).await;
    let confirmed = reader.stream.confirmed();
    fast_shutdown(&bench).await;
    is_shutdown(&reader.ends().await.1);
    assert!(reader.stream.flushed() >= confirmed);
    bench.start_again().await;
    bench.emit(2).await;
    // before 17 a shutdown does not write the slot's position: the caller's own is what counts
    assert_eq!(bench.reader_at(confirmed).await.confirm_until(2).await, [2]);
}

#[tokio::test]
async fn c35_a_fast_shutdown_with_an_event_in_flight() {
    let mut bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    reader.confirm_until(1).await;
    let confirmed = reader.stream.confirmed();
    bench.emit(2).await;
    let held = reader.transaction().await;
    fast_shutdown(&bench).await;
    is_shutdown(&reader.ends().await.1);
    bench.start_again().await;
    assert!(bench.confirmed_flush().await < held.commit_lsn);
    assert_eq!(bench.reader_at(confirmed).await.transaction().await.ids(), [2]);
}

#[tokio::test]
async fn c35_an_event_confirmed_during_the_shutdown_reaches_the_server() {
    let bench = Bench::start().await;
    let feedback =
        FeedbackOptions { shutdown_patience: Duration::from_secs(60), ..Default::default() };
    let mut reader = bench.reader_with(feedback).await;
    bench.emit(1).await;
    let held = reader.transaction().await;
    let stop = bench.pg.stop(Shutdown::Fast, Duration::from_secs(50));
    let confirm = async {
        // the sessions are ended first: the walsender has its turn
        eventually("the shutdown has begun", || async { bench.sql.is_closed() }).await;
        reader.stream.confirm(held.end_lsn).unwrap();
    };
    let (took, ()) = tokio::join!(stop, confirm);
    assert!(took.unwrap() < LIMIT);
    is_shutdown(&reader.ends().await.1);
    assert!(reader.stream.flushed() >= held.end_lsn);
}

/// More than all buffers between the server and the caller hold.
async fn stall(bench: &Bench) -> Reader {
    let reader = bench.reader().await;
    bench
        .execute(
            "INSERT INTO outbox SELECT g, 'T', repeat('x', 1000) FROM generate_series(1, 60000) g",
        )
        .await;
    eventually("the walsender waits for us", || async {
        let sql = "SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'walsender'";
        bench.value(sql).await.as_deref() == Some("WalSenderWriteData")
    })
    .await;
    reader
}

#[tokio::test]
async fn c35_a_fast_shutdown_with_a_caller_that_stands_still() {
    let mut bench = Bench::start().await;
    let mut reader = stall(&bench).await;
    fast_shutdown(&bench).await;
    let (before, error) = reader.ends().await;
    is_shutdown(&error);
    assert!(before.is_empty(), "the transaction was cut");
    bench.start_again().await;
    assert_eq!(bench.reader().await.transaction().await.ids().len(), 60_000);
}

#[tokio::test]
async fn c35_the_same_after_a_long_standstill() {
    let bench = Bench::start().await;
    let mut reader = stall(&bench).await;
    // the second connection that watches for a shutdown
    eventually("the sentinel stands by", || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outflow' \
                   AND backend_type = 'client backend'";
        bench.value(sql).await.as_deref() == Some("1")
    })
    .await;
    fast_shutdown(&bench).await;
    is_shutdown(&reader.ends().await.1);
}

#[tokio::test]
async fn the_sentinel_leaves_when_reading_goes_on() {
    let bench = Bench::start().await;
    let mut reader = stall(&bench).await;
    let count = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outflow' \
                   AND backend_type = 'client backend'";
        bench.value(sql).await.unwrap()
    };
    eventually("the sentinel stands by", || async { count().await == "1" }).await;
    assert_eq!(reader.transaction().await.ids().len(), 60_000);
    eventually("the sentinel has left", || async { count().await == "0" }).await;
    reader.stop().await;
}

#[tokio::test]
async fn c45_an_immediate_shutdown_is_transient() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    reader.confirm_until(1).await;
    bench.pg.stop(Shutdown::Immediate, Duration::from_secs(50)).await.unwrap();
    let (_, error) = reader.ends().await;
    assert_eq!(error.retry(), Retry::Transient, "{error}");
    let error = outflow_pgoutput::ReplicationClient::connect(&bench.options()).await.err().unwrap();
    assert_eq!(error.retry(), Retry::Transient, "{error}");
}

#[tokio::test]
async fn c45_a_terminated_walsender_is_transient() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    reader.confirm_until(1).await;
    bench.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").await;
    let (_, error) = reader.ends().await;
    assert_eq!(error.sqlstate().map(|s| s.code()), Some("57P01"), "{error}");
    assert_eq!(error.retry(), Retry::Transient);
}
