//! Crashes: the connector ends in every gap between two durable steps, and at random moments.
//!
//! A task that panics or is dropped leaves the servers as a killed process does: sockets close,
//! nothing more is sent. (The demo kills processes.)

use outflow_relay::config::{EntryIdMode, OffsetStoreKind};

use crate::support::{PATIENCE, Running, World};

/// Emits, crashes at the failpoint, starts again, and looks for every event once, in order.
async fn crash_at(failpoint: &str, store: OffsetStoreKind) {
    let mut world = World::start().await;
    world.config.offset.store = store;
    world.config.sink.batch_entries = 7;
    let scenario = fail::FailScenario::setup();
    world.connector().await.stop().await;
    let mut expected = Vec::new();
    for round in 1..=3 {
        fail::cfg(failpoint, "2*off->1*panic->off").unwrap();
        let running = world.spawn();
        emit_thirty(&world, round).await;
        expected.extend((1..=30).map(|i| format!("{round}-{i}")));
        crashed(running, failpoint).await;
        fail::remove(failpoint);
    }
    scenario.teardown();
    finish(&world, &expected).await;
}

/// The same while the connector bootstraps, with rows that are older than its slot.
async fn crash_in_snapshot(failpoint: &str, action: &str) {
    let mut world = World::start().await;
    world.config.sink.batch_entries = 7;
    emit_thirty(&world, 1).await;
    let scenario = fail::FailScenario::setup();
    fail::cfg(failpoint, action).unwrap();
    let running = world.spawn();
    crashed(running, failpoint).await;
    scenario.teardown();
    let mut expected: Vec<String> = (1..=30).map(|i| format!("1-{i}")).collect();
    emit_thirty(&world, 2).await;
    expected.extend((1..=30).map(|i| format!("2-{i}")));
    finish(&world, &expected).await;
}

async fn emit_thirty(world: &World, round: u32) {
    world
        .execute(&format!(
            "SELECT outflow.emit('order', '1', 'T', '{{}}', '{round}-' || i) \
             FROM generate_series(1, 30) i"
        ))
        .await;
}

async fn finish(world: &World, expected: &[String]) {
    let running = world.connector().await;
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    world.expect_ids("outflow:order", &expected).await;
    running.stop().await;
    assert_eq!(world.ids("outflow:order").await, expected);
}

async fn crashed(running: Running, failpoint: &str) {
    let ended = tokio::time::timeout(PATIENCE, running.task).await;
    let ended = ended.unwrap_or_else(|_| panic!("never came to {failpoint}"));
    assert!(ended.unwrap_err().is_panic());
}

#[tokio::test]
async fn before_a_batch_is_published() {
    crash_at("relay::before_publish", OffsetStoreKind::Redis).await;
}

#[tokio::test]
async fn between_a_batch_and_its_confirmation() {
    crash_at("relay::after_publish", OffsetStoreKind::Redis).await;
}

#[tokio::test]
async fn after_a_confirmation() {
    crash_at("relay::after_confirm", OffsetStoreKind::Redis).await;
}

#[tokio::test]
async fn between_a_batch_and_its_offset_in_postgresql() {
    crash_at("relay::after_publish", OffsetStoreKind::Postgres).await;
}

#[tokio::test]
async fn between_an_offset_in_postgresql_and_its_confirmation() {
    crash_at("relay::after_offset", OffsetStoreKind::Postgres).await;
}

#[tokio::test]
async fn with_the_snapshot_planned() {
    crash_in_snapshot("relay::snapshot_planned", "panic").await;
}

#[tokio::test]
async fn with_the_slot_created_and_its_snapshot_not_stored() {
    crash_in_snapshot("relay::snapshot_slot_created", "panic").await;
}

#[tokio::test]
async fn with_the_snapshot_stored_and_nothing_published() {
    crash_in_snapshot("relay::snapshot_begun", "panic").await;
}

#[tokio::test]
async fn between_two_pages_of_the_snapshot() {
    crash_in_snapshot("relay::snapshot_page_published", "2*off->panic").await;
}

#[tokio::test]
async fn with_ids_from_redis_and_the_offset_beside_them_nothing_is_doubled() {
    let mut world = World::start().await;
    world.config.sink.entry_id = EntryIdMode::Auto;
    let scenario = fail::FailScenario::setup();
    fail::cfg("relay::after_publish", "1*off->1*panic->off").unwrap();
    let running = world.spawn();
    world.emit("a").await;
    crashed(running, "relay::after_publish").await;
    scenario.teardown();
    let running = world.connector().await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c55_in_the_middle_of_a_transaction_again_and_again() {
    let mut world = World::start().await;
    world.config.sink.batch_entries = 50;
    let running = world.connector().await;
    running.stop().await;
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', '{}', i::text) FROM generate_series(1, 1000) i",
        )
        .await;
    let scenario = fail::FailScenario::setup();
    for _ in 0..5 {
        fail::cfg("relay::after_publish", "3*off->1*panic->off").unwrap();
        crashed(world.spawn(), "relay::after_publish").await;
    }
    scenario.teardown();
    let expected: Vec<String> = (1..=1000).map(|i| i.to_string()).collect();
    finish(&world, &expected).await;
}

#[tokio::test]
async fn at_random_moments() {
    let mut world = World::start().await;
    world.config.sink.batch_entries = 20;
    let writer = world.pg.connect_to(&world.database.name).await.unwrap();
    let writing = tokio::spawn(async move {
        for i in 0..300 {
            let sql = format!(
                "SELECT outflow.emit('order', '1', 'T', '{{}}', '{i}-' || j) \
                 FROM generate_series(1, 10) j"
            );
            writer.batch_execute(&sql).await.unwrap();
        }
    });
    let mut pause = 3;
    while !writing.is_finished() {
        let running = world.spawn();
        // a sequence without a pattern, the same in every run
        pause = (pause * 31 + 7) % 97;
        tokio::time::sleep(std::time::Duration::from_millis(20 + pause)).await;
        running.task.abort();
        let _ = running.task.await;
    }
    writing.await.unwrap();
    let expected: Vec<String> =
        (0..300).flat_map(|i| (1..=10).map(move |j| format!("{i}-{j}"))).collect();
    finish(&world, &expected).await;
}
