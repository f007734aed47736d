//! Servers that go away, refuse, and come back; handlers that misbehave.

use std::time::Duration;

use crate::support::{Bed, PATIENCE, gated, seen, start};
use outflow_inbox::{ConsumerOptions, Delivery, Error, Handler, HandlerError, Retry, Transaction};
use outflow_sandbox::{Fsync, Proxy, Redis};

#[tokio::test]
async fn a_connection_that_is_terminated_in_a_transaction_is_replaced() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("waiting: database");
    bed.add_many(1..=20, 2).await;
    let (slow, mut entered, gate) = gated();
    let mut running = bed.start(bed.options(), slow);
    assert_eq!(entered.recv().await, Some(20));
    bed.until_true(
        "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND state = 'idle in transaction'",
    )
    .await;
    gate.add_permits(10);
    running.until(|counts| counts.acknowledged == 20).await;
    let summary = running.stop().await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (20, 0));
    assert!(summary.counts.retries > 0);
    bed.assert_exactly_once(20).await;
}

#[tokio::test]
async fn a_redis_that_restarts_loses_nothing() {
    let mut bed = Bed::new().await;
    let (redis, options) = bed.with_own_redis(Redis::builder().appendonly(Fsync::Always)).await;
    bed.add_many(1..=50, 2).await;
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 50).await;
    redis.kill().await.unwrap();
    running.until_waiting_for("redis").await;
    redis.start_again().await.unwrap();
    bed.redis = redis.connect().await.unwrap();
    bed.add_many(51..=80, 2).await;
    running.until(|counts| counts.applied == 80).await;
    running.until_status(|status| status.lag_entries == Some(0)).await;
    running.stop().await;
    bed.assert_exactly_once(80).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c61_a_redis_that_comes_back_empty_is_read_from_the_position() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("NOGROUP");
    bed.log.expect_warn("the group was gone and is rebuilt at the stored position");
    let (redis, options) = bed.with_own_redis(Redis::builder()).await;
    bed.add_many(1..=50, 2).await;
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 50).await;
    redis.kill().await.unwrap();
    redis.start_again().await.unwrap();
    bed.redis = redis.connect().await.unwrap();
    bed.add_many(51..=60, 2).await;
    running.until(|counts| counts.acknowledged == 60).await;
    running.stop().await;
    bed.assert_exactly_once(60).await;
}

#[tokio::test]
async fn c59_a_redis_that_became_a_replica_is_waited_for() {
    let mut bed = Bed::new().await;
    let (_redis, options) = bed.with_own_redis(Redis::builder()).await;
    bed.add_many(1..=10, 1).await;
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 10).await;
    bed.redis_command(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]).await;
    bed.redis_command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    running.until_waiting_for("READONLY").await;
    bed.redis_command(&["REPLICAOF", "NO", "ONE"]).await;
    bed.add_many(11..=20, 1).await;
    running.until(|counts| counts.acknowledged == 20).await;
    running.stop().await;
    bed.assert_exactly_once(20).await;
}

#[tokio::test]
async fn what_waiting_cannot_help_ends_the_consumer_with_advice() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("lag and position are not measured");
    // C67: a key of another type
    let key = format!("{}:text", bed.stream);
    bed.redis_command(&["SET", &key, "x"]).await;
    let options = ConsumerOptions { streams: vec![key], ..bed.options() };
    let error = bed.start(options, seen()).end().await.unwrap_err();
    assert!(matches!(error, Error::Redis { .. }) && error.retry() == Retry::Fatal);
    assert!(error.to_string().contains("correct `streams`"), "{error}");

    let url = bed.redis_server.url().replace("redis://", "redis://nobody:wrong@");
    let options = ConsumerOptions { redis: url.parse().unwrap(), ..bed.options() };
    let error = bed.start(options, seen()).end().await.unwrap_err();
    assert!(error.to_string().contains("correct user and password"), "{error}");

    bed.sql.batch_execute("DROP TABLE outflow.inbox").await.unwrap();
    let error = bed.start(bed.options(), seen()).end().await.unwrap_err();
    assert!(error.to_string().contains("run the files of sql/consumer"), "{error}");

    let missing = outflow_inbox::connect_no_tls(&bed.postgres.url_for("no_such_database"));
    let error = start(bed.options(), missing, seen()).end().await.unwrap_err();
    assert!(error.to_string().contains("create the database"), "{error}");
}

#[tokio::test]
async fn c80_entries_whose_reply_was_lost_are_read_again_at_once() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("waiting: redis");
    let proxy = Proxy::to(format!("127.0.0.1:{}", bed.redis_server.port())).start().await.unwrap();
    let options = ConsumerOptions {
        redis: format!("redis://{}/", proxy.address()).parse().unwrap(),
        response_timeout: Duration::from_millis(300),
        ..bed.options()
    };
    bed.add_many(1..=10, 2).await;
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 10).await;
    proxy.swallow_replies();
    bed.add_many(11..=30, 2).await;
    // the connection looks healthy, only nothing comes any more
    running.until_waiting_for("no reply within").await;
    assert!(bed.pending().await > 0);
    proxy.cut();
    proxy.resume();
    running.until(|counts| counts.acknowledged == 30).await;
    assert_eq!(running.stop().await.counts.claimed, 0);
    bed.assert_exactly_once(30).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn a_redis_user_needs_no_more_than_the_advice_says() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("set aside in outflow.dead_letter");
    bed.log.expect_warn("lag and position are not measured");
    let keys = format!("~{}", bed.stream);
    let user = |name: &str| {
        let url = bed.redis_server.url().replace("redis://", &format!("redis://{name}:pw@"));
        ConsumerOptions { redis: url.parse().unwrap(), ..bed.options() }
    };
    let (none, enough) = (user("none"), user("enough"));
    bed.redis_command(&["ACL", "SETUSER", "none", "on", ">pw", &keys, "-@all"]).await;
    let error = bed.start(none, seen()).end().await.unwrap_err();
    assert_eq!(error.retry(), Retry::Fatal);
    let advice = error.to_string();
    let mut command = vec!["ACL", "SETUSER", "enough", "on", ">pw", &keys, "-@all"];
    command.extend(
        advice.split([' ', '(', ')', ',']).filter(|word| word.starts_with('+')).collect::<Vec<_>>(),
    );
    bed.redis_command(&command).await;
    bed.add_many(1..=5, 1).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XADD", &stream, "*", "foo", "bar"]).await;
    let mut running = bed.start(enough, seen());
    running.until(|counts| counts.acknowledged == 6).await;
    running.until_status(|status| status.lag_entries == Some(0)).await;
    let summary = running.stop().await;
    assert!(summary.clean);
    assert_eq!((summary.counts.applied, summary.counts.malformed), (5, 1));
}

#[tokio::test]
async fn servers_that_are_not_there_yet_are_waited_for() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("waiting: redis");
    bed.log.expect_warn("waiting: database");
    let redis = Redis::builder().start().await.unwrap();
    redis.kill().await.unwrap();
    let up = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (database, gate) = (bed.connect(), up.clone());
    let connect: outflow_inbox::Connect = std::sync::Arc::new(move || {
        if gate.load(std::sync::atomic::Ordering::SeqCst) {
            return database();
        }
        Box::pin(async { Err("connection refused".into()) })
    });
    let options = ConsumerOptions { redis: redis.url().parse().unwrap(), ..bed.options() };
    let mut running = start(options, connect, seen());
    running.until_waiting_for("database: connection refused").await;
    up.store(true, std::sync::atomic::Ordering::SeqCst);
    running.until_waiting_for("redis").await;
    redis.start_again().await.unwrap();
    bed.redis = redis.connect().await.unwrap();
    bed.add_many(1..=5, 1).await;
    running.until(|counts| counts.acknowledged == 5).await;
    running.stop().await;
    bed.assert_exactly_once(5).await;
}

/// Hides a failed statement.
struct Hides;

impl Handler for Hides {
    async fn apply(&mut self, tx: &Transaction<'_>, _: &[Delivery]) -> Result<(), HandlerError> {
        let _ = tx.batch_execute("SELECT 1 / 0").await;
        Ok(())
    }
}

#[tokio::test]
async fn a_handler_that_hides_a_failure_does_not_get_inbox_rows_for_it() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("cannot be applied");
    bed.add_many(1..=2, 1).await;
    let patient = ConsumerOptions { max_attempts: 1000, ..bed.options() };
    let mut running = bed.start(patient, Hides);
    running.until(|counts| counts.failed > 0 && counts.acknowledged == 2).await;
    running.stop().await;
    assert_eq!(
        bed.count("outflow.parked WHERE error LIKE '%the handler reported success'").await,
        1
    );
    assert_eq!(bed.count("outflow.inbox").await, 0);
}

/// Fails with a serialization failure a few times, as a busy database may.
struct Unlucky(u32);

impl Handler for Unlucky {
    async fn apply(&mut self, tx: &Transaction<'_>, _: &[Delivery]) -> Result<(), HandlerError> {
        if self.0 > 0 {
            self.0 -= 1;
            tx.batch_execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$").await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn c77_a_serialization_failure_is_nobodys_fault() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("waiting: database");
    bed.add_many(1..=2, 1).await;
    let summary = bed.run_until(bed.options(), Unlucky(2), |c| c.acknowledged == 2).await;
    assert_eq!((summary.counts.applied, summary.counts.retries), (2, 2));
    assert!(bed.log.matching("cannot be applied").is_empty());
}

#[tokio::test]
async fn a_transaction_that_takes_too_long_is_given_up_and_tried_again() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("a transaction was given up after 1s");
    bed.add_many(1..=1, 1).await;
    let (stuck, mut entered, gate) = gated();
    let options = ConsumerOptions { apply_timeout: Duration::from_secs(1), ..bed.options() };
    let mut running = bed.start(options, stuck);
    assert_eq!(entered.recv().await, Some(1));
    assert_eq!(tokio::time::timeout(PATIENCE, entered.recv()).await, Ok(Some(1)));
    gate.add_permits(1);
    running.until(|counts| counts.acknowledged == 1).await;
    running.stop().await;
    bed.assert_exactly_once(1).await;
}
