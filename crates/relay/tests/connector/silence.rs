//! Servers that do not answer: it is said within ten seconds, and a stop does not wait for them.

use std::time::Duration;

use outflow_pgoutput::ConnectOptions;
use outflow_relay::PollingConfig;
use outflow_relay::config::SnapshotMode;
use outflow_relay::polling::{ClaimColumns, WakeUp};
use outflow_relay::status::State;
use outflow_sandbox::Proxy;
use tokio::time::Instant;

use crate::support::{PATIENCE, Running, World};

/// Standing still is said within this.
const SAID: Duration = Duration::from_secs(10);

/// A world whose relays reach PostgreSQL through a proxy.
async fn behind_a_proxy() -> (World, Proxy) {
    let mut world = World::start().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", world.pg.port())).start().await.unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", proxy.port(), world.database.name);
    world.config.source.connect = ConnectOptions::parse(&url).unwrap();
    (world, proxy)
}

async fn says(running: &Running, text: &str) {
    let since = Instant::now();
    running.waiting_for(text).await;
    assert!(since.elapsed() < SAID, "said after {:?}", since.elapsed());
}

/// Ends before a silent server would have answered.
async fn stops_within(running: Running, limit: Duration) {
    let since = Instant::now();
    running.stop().await;
    assert!(since.elapsed() < limit, "stopped after {:?}", since.elapsed());
}

#[tokio::test]
async fn c44_a_source_that_falls_silent_while_nothing_happens_is_named() {
    let (world, proxy) = behind_a_proxy().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    proxy.pause();
    says(&running, "PostgreSQL has not answered").await;
    proxy.resume();
    running.streaming().await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c44_a_source_that_is_silent_at_the_start_is_named_and_holds_no_stop_up() {
    let (world, proxy) = behind_a_proxy().await;
    proxy.pause();
    let running = world.spawn();
    says(&running, "PostgreSQL has not answered").await;
    stops_within(running, Duration::from_secs(2)).await;
}

#[tokio::test]
async fn c44_a_polling_relay_names_a_silent_source_too_and_stops_at_once() {
    let (world, proxy) = behind_a_proxy().await;
    world.allow_polling().await;
    proxy.pause();
    let polling = PollingConfig {
        relay: "silent".into(),
        lease: Duration::from_secs(5),
        interval: Duration::from_millis(10),
        max_interval: Duration::from_millis(50),
        wake_up: WakeUp::Interval,
        retention: None,
        columns: ClaimColumns::default(),
    };
    let running = world.poll(polling);
    says(&running, "PostgreSQL has not answered").await;
    stops_within(running, Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_broker_that_is_silent_for_longer_than_a_stop_may_take_is_named_and_given_up() {
    let mut world = World::start().await;
    world.config.sink.timeout = Duration::from_secs(120);
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.redis.sigstop().unwrap();
    world.emit("b").await;
    says(&running, "Redis has not answered").await;
    world.logs.expect_warn("stopped before everything was published");
    stops_within(running, outflow_relay::STOP_DEADLINE + Duration::from_secs(5)).await;
    world.redis.sigcont().unwrap();
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c46_a_stop_while_the_slot_waits_for_an_old_transaction_leaves_no_slot_behind() {
    for snapshot in [SnapshotMode::Initial, SnapshotMode::Never] {
        let mut world = World::start().await;
        world.config.source.snapshot = snapshot;
        let old = world.pg.connect_to(&world.database.name).await.unwrap();
        old.batch_execute("BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'open')")
            .await
            .unwrap();
        let running = world.spawn();
        running.waiting_for("waits for transactions that were open").await;
        stops_within(running, Duration::from_secs(2)).await;
        let deadline = Instant::now() + PATIENCE;
        let slots = "SELECT count(*) FROM pg_replication_slots";
        while world.sql.query_one(slots, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            assert!(Instant::now() < deadline, "a slot is left behind, for nobody");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        old.batch_execute("COMMIT").await.unwrap();
        let running = world.connector().await;
        assert!(matches!(running.status.borrow().state, State::Streaming));
        running.stop().await;
    }
}
