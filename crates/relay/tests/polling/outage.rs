//! Servers that are away.

use std::time::Duration;

use outflow_sandbox::{Fsync, Postgres, Redis};

use crate::child::Relay;
use crate::support::World;
use crate::world::{emit, polling, until_all_published, until_count, world};

#[tokio::test]
async fn c91_an_outage_of_redis_is_waited_for_with_the_claims_renewed() {
    let redis = Redis::builder().appendonly(Fsync::Always);
    let world = World::with(Postgres::builder(), redis).await;
    world.allow_polling().await;
    let mut settings = polling("r");
    settings.lease = Duration::from_secs(1);
    let running = world.poll(settings);
    emit(&world, "1", "a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.redis.kill().await.unwrap();
    emit(&world, "1", "b").await;
    running.waiting_for("redis").await;
    let claimed = "SELECT count(*) FROM outflow.outbox \
                   WHERE event_id = 'b' AND claimed_until > now()";
    until_count(&world, claimed, 1).await;
    // it is the same claim beyond two leases: nobody else gets the row meanwhile
    let first = "SELECT claimed_by FROM outflow.outbox WHERE event_id = 'b'";
    let claimant: String = world.sql.query_one(first, &[]).await.unwrap().get(0);
    let renewed = "SELECT count(*) FROM outflow.outbox WHERE event_id = 'b' \
                   AND claimed_until > created_at + '3 seconds'::interval";
    until_count(&world, renewed, 1).await;
    let after: String = world.sql.query_one(first, &[]).await.unwrap().get(0);
    assert_eq!(claimant, after);
    world.redis.start_again().await.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    emit(&world, "1", "c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    until_all_published(&world).await;
    running.stop().await;
}

#[tokio::test]
async fn c45_postgresql_that_goes_away_and_comes_back_is_waited_for() {
    let mut world = world().await;
    let running = world.poll(polling("r"));
    emit(&world, "1", "a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.pg.kill().await.unwrap();
    running.waiting_for("").await;
    world.pg.start_again().await.unwrap();
    world.sql = world.pg.connect_to(&world.database.name).await.unwrap();
    emit(&world, "1", "b").await;
    // what was marked without waiting for the disk may be lost with the server, and comes again
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    while world.ids("outflow:order").await.last().map(String::as_str) != Some("b") {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn an_orderly_stop_leaves_its_rows_to_others_at_once() {
    let world = world().await;
    let running = world.poll(polling("r"));
    emit(&world, "1", "a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.redis.kill().await.unwrap();
    emit(&world, "1", "b").await;
    running.waiting_for("redis").await;
    world.logs.expect_warn("stopped before everything was marked");
    running.stop().await;
    let claimed = "SELECT count(*) FROM outflow.outbox \
                   WHERE published_at IS NULL AND claimed_until IS NOT NULL";
    until_count(&world, claimed, 0).await;
    world.redis.start_again().await.unwrap();
    let _heir = Relay::start(&world, "heir", Duration::from_secs(30), "");
    until_all_published(&world).await;
}
