//! What slot, publication and server may go through while a connector runs.

use std::time::Duration;

use outflow_relay::Retry;
use outflow_relay::status::On;
use outflow_sandbox::{Postgres, Redis, Shutdown};
use tokio::time::Instant;

use crate::support::{PATIENCE, World};

#[tokio::test]
async fn c31_an_idle_outbox_lets_the_slot_advance() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.pg.create_database("neighbour").await.unwrap();
    let neighbour = world.pg.connect_to("neighbour").await.unwrap();
    neighbour
        .batch_execute("CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        .await
        .unwrap();
    // less than the neighbour wrote; the last bytes wait for the server's own next record
    let sql = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 1000000 \
               FROM pg_replication_slots WHERE slot_name = 'outflow'";
    let deadline = Instant::now() + PATIENCE;
    while !world.sql.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(
            Instant::now() < deadline,
            "the slot stands at {:?}",
            world.slot("confirmed_flush_lsn").await
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn c32_c33_a_stalled_sink_confirms_nothing_and_keeps_the_link() {
    let pg = Postgres::builder().setting("wal_sender_timeout", "2s");
    let mut world = World::with(pg, Redis::builder()).await;
    world.config.sink.timeout = Duration::from_secs(60);
    let running = world.connector().await;
    world.emit("first").await;
    world.expect_ids("outflow:order", &["first"]).await;
    let walsender = world.slot("active_pid").await;
    // said after five seconds
    world.logs.expect_warn("Redis has not answered");
    world.redis.sigstop().unwrap();
    let before: String =
        world.sql.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', '{}', i::text) FROM generate_series(1, 20000) i",
        )
        .await;
    // three times as long as the server would wait for a silent client
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let sql = format!(
            "SELECT confirmed_flush_lsn <= '{before}' FROM pg_replication_slots \
             WHERE slot_name = 'outflow'"
        );
        assert!(world.sql.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(world.slot("active_pid").await, walsender, "the link stayed up");
    world.redis.sigcont().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while world.ids("outflow:order").await.len() < 20_001 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    running.stop().await;
    assert_eq!(world.ids("outflow:order").await.len(), 20_001);
}

#[tokio::test]
async fn c35_a_fast_shutdown_is_not_held_up() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.pg.stop(Shutdown::Fast, Duration::from_secs(5)).await.unwrap();
    running.waiting_for("").await;
    world.pg.start_again().await.unwrap();
    running.streaming().await;
    let sql = world.pg.connect_to(&world.database.name).await.unwrap();
    sql.batch_execute("SELECT outflow.emit('order', '1', 'T', '{}', 'b')").await.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c35_a_fast_shutdown_with_events_that_cannot_be_published() {
    let mut world = World::start().await;
    world.logs.expect_warn("standing still");
    world.config.sink.timeout = Duration::from_secs(60);
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.redis.sigstop().unwrap();
    world.emit("b").await;
    world.pg.stop(Shutdown::Fast, Duration::from_secs(5)).await.unwrap();
    world.redis.sigcont().unwrap();
    world.pg.start_again().await.unwrap();
    running.streaming().await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c36_a_slot_in_use_is_waited_for_and_taken_over() {
    let world = World::start().await;
    let first = world.connector().await;
    let second = world.spawn();
    second.waiting_on(On::Slot, "in use by process").await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    first.crash().await;
    second.streaming().await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    second.stop().await;
}

#[tokio::test]
async fn c45_a_crash_of_the_server_is_survived() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.pg.kill().await.unwrap();
    running.waiting_for("").await;
    world.pg.start_again().await.unwrap();
    running.streaming().await;
    let sql = world.pg.connect_to(&world.database.name).await.unwrap();
    sql.batch_execute("SELECT outflow.emit('order', '1', 'T', '{}', 'b')").await.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c46_a_start_that_is_refused_leaves_no_slot_behind() {
    let world = World::start().await;
    world.execute("DROP PUBLICATION outflow").await;
    let error = world.spawn().failure().await;
    assert!(error.to_string().contains("CREATE PUBLICATION"), "{error}");
    let sql = "SELECT count(*) FROM pg_replication_slots";
    let slots: i64 = world.sql.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(slots, 0, "a slot that nobody reads holds back log and catalogs");
}

#[tokio::test]
async fn c14_a_swapped_table_is_noticed_while_running() {
    let world = World::start().await;
    world.logs.expect_warn("another table than when the connector started");
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world
        .execute(
            "ALTER TABLE outflow.outbox RENAME TO outbox_old;
             CREATE TABLE outflow.outbox (LIKE outflow.outbox_old INCLUDING ALL)",
        )
        .await;
    running.waiting_for("publication").await;
    world.execute("ALTER PUBLICATION outflow ADD TABLE outflow.outbox").await;
    running.streaming().await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c17_a_narrowed_publication_is_noticed_while_running() {
    let world = World::start().await;
    world.logs.expect_warn("carries more than inserts");
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.execute("ALTER PUBLICATION outflow SET (publish = 'update')").await;
    running.waiting_for("insert").await;
    world.execute("ALTER PUBLICATION outflow SET (publish = 'insert')").await;
    running.streaming().await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c18_a_dropped_publication_is_named_with_its_remedy() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.execute("DROP PUBLICATION outflow").await;
    running.waiting_on(On::Publication, "publication").await;
    running.crash().await;
    let error = world.spawn().failure().await;
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("CREATE PUBLICATION"), "{error}");

    // created again, it does not reach back to what was written meanwhile
    world.emit("gap").await;
    world
        .execute("CREATE PUBLICATION outflow FOR TABLE outflow.outbox WITH (publish = 'insert')")
        .await;
    let running = world.spawn();
    let lost = "was written while publication outflow did not exist";
    running.waiting_on(On::Publication, lost).await;
    assert_eq!(world.ids("outflow:order").await, ["a"]);
    running.crash().await;
}

#[tokio::test]
async fn c39_a_slot_that_was_created_anew_is_refused() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.stop().await;
    world.emit("gap").await;
    world
        .execute(
            "SELECT pg_drop_replication_slot('outflow');
             SELECT pg_create_logical_replication_slot('outflow', 'pgoutput')",
        )
        .await;
    let error = world.spawn().failure().await;
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("slot `outflow`"), "{error}");
}

#[tokio::test]
async fn c39_a_slot_that_is_dropped_while_running_is_what_is_waited_for() {
    let mut world = World::start().await;
    world.config.source.rewind_interval = Duration::ZERO;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    // the connector comes back within milliseconds: whoever is first has the slot
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active";
    let deadline = Instant::now() + PATIENCE;
    loop {
        world.sql.batch_execute(end).await.unwrap();
        let dropped = world.sql.batch_execute("SELECT pg_drop_replication_slot('outflow')").await;
        if dropped.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "{dropped:?}");
    }
    running.waiting_on(On::Slot, "slot `outflow` does not exist").await;
    running.crash().await;
}
