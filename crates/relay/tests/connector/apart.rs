//! The offset in PostgreSQL, whose session may end while everything else goes on.

use outflow_relay::config::{EntryIdMode, OffsetStoreKind};

use crate::support::World;

async fn world() -> World {
    let mut world = World::start().await;
    world.config.offset.store = OffsetStoreKind::Postgres;
    world
}

#[tokio::test]
async fn c45_the_session_of_the_offset_ends_and_the_link_goes_on() {
    let world = world().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.logs_may_say_it_stood_still();
    world
        .execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE datname = current_database() AND backend_type = 'client backend'
               AND pid <> pg_backend_pid()",
        )
        .await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.until("b is covered by the offset", |status| status.published == 2).await;
    running.stop().await;
    let running = world.connector().await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c45_the_server_that_keeps_the_offset_is_started_again() {
    let world = world().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.logs_may_say_it_stood_still();
    world.pg.kill().await.unwrap();
    running.waiting_for("").await;
    world.pg.start_again().await.unwrap();
    let sql = world.pg.connect_to(&world.database.name).await.unwrap();
    sql.batch_execute("SELECT outflow.emit('order', '1', 'T', '{}', 'b')").await.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn entries_are_not_sent_again_because_their_offset_cannot_be_stored() {
    let mut world = world().await;
    world.config.sink.entry_id = EntryIdMode::Auto;
    let name = &world.database.name;
    world.execute(&format!("ALTER DATABASE \"{name}\" SET lock_timeout = '50ms'")).await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    let other = world.pg.connect_to(name).await.unwrap();
    let lock = "BEGIN; LOCK TABLE outflow.connector_offset IN ACCESS EXCLUSIVE MODE";
    other.batch_execute(lock).await.unwrap();
    world.emit("b").await;
    running.waiting_for("saving the offset of the connector").await;
    other.batch_execute("COMMIT").await.unwrap();
    running.streaming().await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}
