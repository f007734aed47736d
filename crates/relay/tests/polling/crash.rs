//! SIGKILL in every gap between two durable steps, and what the next relay makes of it.

use std::time::Duration;

use tokio::time::Instant;

use crate::child::Relay;
use crate::support::{PATIENCE, World};
use crate::world::{emit, polling, until_all_published, until_count, world};

const LEASE: Duration = Duration::from_secs(2);
const CLAIMED: &str = "SELECT count(*) FROM outflow.outbox WHERE claimed_until IS NOT NULL";

async fn until_entries(world: &World, wanted: usize) {
    let deadline = Instant::now() + PATIENCE;
    while world.ids("outflow:order").await.len() != wanted {
        assert!(Instant::now() < deadline, "{:?}", world.ids("outflow:order").await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn between_claim_and_publication_another_relay_takes_over_once_the_lease_is_over() {
    let world = world().await;
    emit(&world, "1", "a").await;
    emit(&world, "1", "b").await;
    let mut killed = Relay::start(&world, "killed", LEASE, "polling::claimed=pause");
    until_count(&world, CLAIMED, 2).await;
    killed.kill();
    let running = world.poll(polling("heir"));
    emit(&world, "1", "c").await;
    emit(&world, "2", "elsewhere").await;
    // nothing overtakes the dead relay's rows within their aggregate
    world.expect_ids("outflow:order", &["elsewhere"]).await;
    world.expect_ids("outflow:order", &["elsewhere", "a", "b", "c"]).await;
    until_all_published(&world).await;
    running.stop().await;
}

#[tokio::test]
async fn between_publication_and_mark_the_entries_come_again_with_the_same_ids() {
    let world = world().await;
    emit(&world, "1", "a").await;
    emit(&world, "1", "b").await;
    let mut killed = Relay::start(&world, "killed", LEASE, "polling::published=pause");
    until_entries(&world, 2).await;
    killed.kill();
    let running = world.poll(polling("heir"));
    world.expect_ids("outflow:order", &["a", "b", "a", "b"]).await;
    emit(&world, "1", "c").await;
    world.expect_ids("outflow:order", &["a", "b", "a", "b", "c"]).await;
    until_all_published(&world).await;
    running.stop().await;
}

#[tokio::test]
async fn after_the_mark_nothing_comes_again() {
    let world = world().await;
    emit(&world, "1", "a").await;
    let mut killed = Relay::start(&world, "killed", LEASE, "polling::marked=pause");
    until_all_published(&world).await;
    killed.kill();
    let running = world.poll(polling("heir"));
    emit(&world, "1", "b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_between_publication_and_mark_repeats_nothing() {
    let world = world().await;
    emit(&world, "1", "a").await;
    let _relay = Relay::start(&world, "r", LEASE, "polling::published=1*sleep(1500)->off");
    until_entries(&world, 1).await;
    world
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE pid <> pg_backend_pid() AND datname = current_database()",
        )
        .await;
    until_count(&world, "SELECT count(*) FROM outflow.outbox WHERE published_at IS NULL", 1).await;
    emit(&world, "1", "b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    until_all_published(&world).await;
}

#[tokio::test]
async fn a_relay_that_slept_through_its_lease_repeats_and_does_no_other_harm() {
    let world = world().await;
    emit(&world, "1", "a").await;
    emit(&world, "1", "b").await;
    let lease = Duration::from_millis(500);
    let _sleeper = Relay::start(&world, "s", lease, "polling::published=1*sleep(3000)->off");
    until_entries(&world, 2).await;
    let heir = world.poll(polling("heir"));
    world.expect_ids("outflow:order", &["a", "b", "a", "b"]).await;
    until_all_published(&world).await;
    heir.stop().await;
    // only the sleeper is left: it wakes up to rows that are no longer its own, and goes on
    emit(&world, "1", "c").await;
    world.expect_ids("outflow:order", &["a", "b", "a", "b", "c"]).await;
    until_all_published(&world).await;
}
