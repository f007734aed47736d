//! Redis loses what it had acknowledged; the slot goes back to a rewind point.

use std::time::Duration;

use outflow_pgoutput::ReplicationClient;
use outflow_relay::config::{OffsetStoreKind, SnapshotMode};
use outflow_relay::offset::ConfiguredStore;
use outflow_relay::offset::reset::{self, Known, ResetMode};
use outflow_relay::{Retry, resume};
use outflow_sandbox::{Postgres, Redis};

use crate::support::{PATIENCE, Running, World};

/// A Redis that keeps what was there at the last SAVE, and a connector that keeps rewind points.
async fn forgetful() -> World {
    let redis = Redis::builder().on_disk().setting("save", "3600 1000000");
    let mut world = World::with(Postgres::builder(), redis).await;
    world.config.source.rewind_interval = Duration::from_secs(3600);
    world
}

/// Publishes a; remembers it; publishes b and c, which are confirmed to the server.
async fn publish_beyond_the_save(world: &World) -> Running {
    let running = world.connector().await;
    until(
        world,
        "there is a rewind point",
        "SELECT count(*) = 1 FROM pg_replication_slots
        WHERE slot_name = 'outflow_rewind_1'",
    )
    .await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    let mut redis = world.redis.connect().await.unwrap();
    redis::cmd("SAVE").exec_async(&mut redis).await.unwrap();
    world.emit("b").await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    until(
        world,
        "c is confirmed",
        "SELECT confirmed_flush_lsn >= (SELECT max(lsn) FROM mark)
        FROM pg_replication_slots WHERE slot_name = 'outflow'",
    )
    .await;
    running
}

async fn until(world: &World, what: &str, sql: &str) {
    world.execute("CREATE TABLE IF NOT EXISTS mark AS SELECT pg_current_wal_lsn() AS lsn").await;
    world.execute("UPDATE mark SET lsn = pg_current_wal_lsn()").await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !world.sql.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(tokio::time::Instant::now() < deadline, "waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn entries_that_redis_lost_are_published_again_while_the_connector_runs() {
    let world = forgetful().await;
    let running = publish_beyond_the_save(&world).await;
    world.logs.expect_warn("rewind point was there");
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    world.emit("d").await;
    running.logs_may_say_it_stood_still();
    world.expect_ids("outflow:order", &["a", "b", "c", "d"]).await;
    running.stop().await;
}

#[tokio::test]
async fn entries_that_redis_lost_are_published_again_at_the_next_start() {
    let world = forgetful().await;
    let running = publish_beyond_the_save(&world).await;
    running.crash().await;
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    assert_eq!(world.ids("outflow:order").await, ["a"]);
    world.logs.expect_warn("rewind point was there");
    let running = world.connector().await;
    world.emit("d").await;
    world.expect_ids("outflow:order", &["a", "b", "c", "d"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c61_a_redis_that_comes_back_empty_is_filled_from_the_oldest_point() {
    let mut world = World::start().await;
    world.config.source.rewind_interval = Duration::from_secs(3600);
    let running = world.connector().await;
    until(
        &world,
        "there is a rewind point",
        "SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'outflow_rewind_1'",
    )
    .await;
    world.emit("a").await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    world.logs.expect_warn("the stored offset is gone");
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    world.emit("c").await;
    running.logs_may_say_it_stood_still();
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn a_crash_between_dropping_the_slot_and_copying_the_point_is_mended() {
    let world = forgetful().await;
    let running = publish_beyond_the_save(&world).await;
    running.stop().await;
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    world.execute("SELECT pg_drop_replication_slot('outflow')").await;
    world.logs.expect_warn("rewind point was there");
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn without_a_rewind_point_the_gap_is_refused() {
    let mut world = forgetful().await;
    let running = publish_beyond_the_save(&world).await;
    running.stop().await;
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    world.execute("SELECT pg_drop_replication_slot('outflow_rewind_1')").await;
    world.config.source.rewind_interval = Duration::ZERO;
    let error = world.spawn().failure().await;
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("beyond the stored offset"), "{error}");
}

#[tokio::test]
async fn with_the_offset_elsewhere_lost_entries_are_refused_while_the_connector_runs() {
    let mut world = forgetful().await;
    world.config.offset.store = OffsetStoreKind::Postgres;
    let running = publish_beyond_the_save(&world).await;
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    world.emit("d").await;
    running.logs_may_say_it_stood_still();
    let error = running.failure().await;
    assert_eq!(error.retry(), Retry::Fatal);
    for part in ["outflow:order", "lost entries", "--from-rows"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(world.ids("outflow:order").await, ["a"]);
}

#[tokio::test]
async fn points_are_replaced_in_turn_and_removed_when_none_are_wanted() {
    const POINTS: &str = "SELECT count(*) = 2 FROM pg_replication_slots
        WHERE slot_name LIKE 'outflow\\_rewind\\__'";
    const FRESH: &str = "SELECT min(confirmed_flush_lsn) >= (SELECT max(lsn) FROM old)
        FROM pg_replication_slots WHERE slot_name LIKE 'outflow\\_rewind\\__'";
    let mut world = World::start().await;
    world.config.source.rewind_interval = Duration::from_millis(50);
    let running = world.connector().await;
    until(&world, "there are two points", POINTS).await;
    world.execute("CREATE TABLE old AS SELECT pg_current_wal_lsn() AS lsn").await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    until(&world, "both are younger than that", FRESH).await;
    running.stop().await;
    world.config.source.rewind_interval = Duration::ZERO;
    let running = world.connector().await;
    let none = POINTS.replace("= 2", "= 0");
    until(&world, "there are none", &none).await;
    running.stop().await;
}

/// A slot that is synchronised to standbys, taken up by the connector.
async fn with_failover_slot(world: &mut World) -> bool {
    if world.pg.version() < 17 {
        eprintln!(
            "skipped: failover slots came with PostgreSQL 17, this is {}",
            world.pg.version()
        );
        return false;
    }
    world
        .execute(
            "SELECT pg_create_logical_replication_slot('outflow', 'pgoutput', failover => true)",
        )
        .await;
    true
}

#[tokio::test]
async fn a_slot_that_is_put_back_goes_on_being_synchronised_to_standbys() {
    let mut world = forgetful().await;
    if !with_failover_slot(&mut world).await {
        return;
    }
    let running = publish_beyond_the_save(&world).await;
    running.stop().await;
    world.redis.kill().await.unwrap();
    world.redis.start_again().await.unwrap();
    world.logs.expect_warn("rewind point was there");
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    assert_eq!(world.slot("failover").await.as_deref(), Some("true"));
    running.stop().await;
}

#[tokio::test]
async fn a_slot_that_is_begun_anew_goes_on_being_synchronised_to_standbys() {
    let mut world = World::start().await;
    if !with_failover_slot(&mut world).await {
        return;
    }
    // what `outflow offsets reset --from-rows` stores
    let mut link = ReplicationClient::connect(&world.config.source.connect).await.unwrap();
    let facts = resume::inspect(&mut link, "outflow", None).await.unwrap();
    let known = Known::default();
    let plan = reset::plan(ResetMode::FromRows, &facts, known, SnapshotMode::Initial).unwrap();
    let mut store = ConfiguredStore::new(&world.config);
    store.replace(None, &plan.offset).await.unwrap();
    world.emit("a").await;
    let before = world.slot("confirmed_flush_lsn").await;
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a"]).await;
    assert_ne!(world.slot("confirmed_flush_lsn").await, before, "it is another slot");
    assert_eq!(world.slot("failover").await.as_deref(), Some("true"));
    running.stop().await;
}
