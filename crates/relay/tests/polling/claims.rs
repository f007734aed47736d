//! Who may take what, and when.

use std::time::Duration;

use outflow_relay::polling::{WakeUp, backlog};
use tokio::time::Instant;

use crate::support::{PATIENCE, World};
use crate::world::{emit, polling, until_all_published, until_count, world};

const CLAIMED_BY_ANOTHER: &str = "UPDATE outflow.outbox SET claimed_by = 'another/1', claimed_until = now() + '1 hour' \
     WHERE event_id = 'a1'";

#[tokio::test]
async fn rows_are_published_in_order_and_marked() {
    let world = world().await;
    emit(&world, "1", "a").await;
    let running = world.poll(polling("r"));
    world.expect_ids("outflow:order", &["a"]).await;
    emit(&world, "1", "b").await;
    emit(&world, "2", "c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    until_all_published(&world).await;
    assert_eq!(running.status.borrow().published, 3);
    running.stop().await;
    let entry = &world.entries("outflow:order").await[0];
    assert_eq!(entry.get("position"), None, "a poller does not know commits");
    assert_eq!(entry.get("claimed_by"), None, "its own columns are nobody's business");
}

#[tokio::test]
async fn c87_a_late_commit_is_late_and_not_lost() {
    let world = world().await;
    let late = world.pg.connect_to(&world.database.name).await.unwrap();
    late.batch_execute("BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'late')")
        .await
        .unwrap();
    let running = world.poll(polling("r"));
    emit(&world, "1", "early").await;
    world.expect_ids("outflow:order", &["early"]).await;
    until_all_published(&world).await;
    late.batch_execute("COMMIT").await.unwrap();
    world.expect_ids("outflow:order", &["early", "late"]).await;
    running.stop().await;
}

#[tokio::test]
async fn an_aggregate_that_another_relay_holds_is_left_alone_until_the_lease_has_run_out() {
    let world = world().await;
    emit(&world, "a", "a1").await;
    world.execute(CLAIMED_BY_ANOTHER).await;
    emit(&world, "a", "a2").await;
    emit(&world, "b", "b1").await;
    let running = world.poll(polling("r"));
    world.expect_ids("outflow:order", &["b1"]).await;
    emit(&world, "a", "a3").await;
    emit(&world, "b", "b2").await;
    world.expect_ids("outflow:order", &["b1", "b2"]).await;
    world.execute("UPDATE outflow.outbox SET claimed_until = now() WHERE event_id = 'a1'").await;
    world.expect_ids("outflow:order", &["b1", "b2", "a1", "a2", "a3"]).await;
    running.stop().await;
}

#[tokio::test]
async fn nothing_is_taken_from_behind_a_locked_row() {
    let world = world().await;
    emit(&world, "a", "a1").await;
    let other = world.pg.connect_to(&world.database.name).await.unwrap();
    other
        .batch_execute("BEGIN; SELECT FROM outflow.outbox WHERE event_id = 'a1' FOR UPDATE")
        .await
        .unwrap();
    emit(&world, "a", "a2").await;
    emit(&world, "b", "b1").await;
    let running = world.poll(polling("r"));
    world.expect_ids("outflow:order", &["b1"]).await;
    emit(&world, "b", "b2").await;
    world.expect_ids("outflow:order", &["b1", "b2"]).await;
    other.batch_execute("ROLLBACK").await.unwrap();
    world.expect_ids("outflow:order", &["b1", "b2", "a1", "a2"]).await;
    running.stop().await;
}

#[tokio::test]
async fn a_claim_is_bounded_by_bytes_too() {
    let mut world = world().await;
    world.config.sink.batch_bytes = 200_000;
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', \
               jsonb_build_object('x', repeat('y', 90000)), i::text) \
             FROM generate_series(1, 20) i",
        )
        .await;
    let scenario = fail::FailScenario::setup();
    fail::cfg("polling::claimed", "panic").unwrap();
    let running = world.poll(polling("r"));
    let ended = tokio::time::timeout(PATIENCE, running.task).await.unwrap();
    assert!(ended.unwrap_err().is_panic());
    // the claim stands, as it does after a kill: three payloads reach the limit
    let claimed = "SELECT count(*) FROM outflow.outbox WHERE claimed_until > now()";
    until_count(&world, claimed, 3).await;
    world.execute("UPDATE outflow.outbox SET claimed_until = now()").await;
    scenario.teardown();
    let running = world.poll(polling("r"));
    let expected: Vec<String> = (1..=20).map(|i| i.to_string()).collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    world.expect_ids("outflow:order", &expected).await;
    running.stop().await;
}

#[tokio::test]
async fn a_row_that_is_no_event_is_set_aside_and_marked() {
    let mut world = world().await;
    world.logs.expect_warn("set aside as a dead letter");
    world.config.source.max_payload = 100;
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', to_jsonb(repeat('x', 200)), 'large'), \
             outflow.emit('order', '1', 'T', '{}', 'small')",
        )
        .await;
    let running = world.poll(polling("r"));
    world.expect_ids("outflow:order", &["small"]).await;
    until_all_published(&world).await;
    running.stop().await;
    let letters = world.entries("outflow:dead-letters:{outflow}").await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].get("event_id"), Some("large"));
    assert!(letters[0].get("reason").unwrap().contains("max_payload"));
}

#[tokio::test]
async fn a_notification_wakes_it_long_before_its_interval() {
    let world = world().await;
    let mut settings = polling("r");
    settings.wake_up = WakeUp::Notify;
    settings.max_interval = Duration::from_secs(300);
    let refused = world.poll(settings.clone()).failure().await.to_string();
    assert!(refused.contains("CREATE TRIGGER wake_relay"), "{refused}");
    world
        .execute(
            "CREATE TRIGGER wake_relay AFTER INSERT ON outflow.outbox \
             FOR EACH STATEMENT EXECUTE FUNCTION outflow.wake_relay()",
        )
        .await;
    emit(&world, "1", "before").await;
    let running = world.poll(settings);
    world.expect_ids("outflow:order", &["before"]).await;
    until_all_published(&world).await;
    let since = Instant::now();
    emit(&world, "1", "a").await;
    world.expect_ids("outflow:order", &["before", "a"]).await;
    emit(&world, "1", "b").await;
    world.expect_ids("outflow:order", &["before", "a", "b"]).await;
    assert!(since.elapsed() < Duration::from_secs(100), "it has waited for its interval");
    running.stop().await;
}

#[tokio::test]
async fn published_rows_are_deleted_when_they_are_old_and_others_never() {
    let world = world().await;
    emit(&world, "a", "old").await;
    emit(&world, "a", "recent").await;
    emit(&world, "b", "held").await;
    world
        .execute(
            "UPDATE outflow.outbox SET published_at = now() - '2 hours'::interval \
               WHERE event_id = 'old'; \
             UPDATE outflow.outbox SET published_at = now() WHERE event_id = 'recent'; \
             UPDATE outflow.outbox SET created_at = now() - '1 year'::interval, \
               claimed_until = now() + '1 hour' WHERE event_id = 'held'",
        )
        .await;
    let mut settings = polling("r");
    settings.retention = Some(Duration::from_secs(3600));
    let running = world.poll(settings);
    until_count(&world, "SELECT count(*) FROM outflow.outbox WHERE event_id = 'old'", 0).await;
    emit(&world, "a", "new").await;
    world.expect_ids("outflow:order", &["new"]).await;
    running.stop().await;
    let left = world.sql.query("SELECT event_id FROM outflow.outbox ORDER BY id", &[]).await;
    let left: Vec<String> = left.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["recent", "held", "new"]);
}

#[tokio::test]
async fn the_backlog_tells_what_waits_and_who_is_at_it() {
    let world = World::start().await;
    let config = polling("r");
    let look = || backlog(&world.sql, &world.config.source, &config);
    assert_eq!(look().await.unwrap(), None, "no columns");
    world.allow_polling().await;
    let nothing = look().await.unwrap().unwrap();
    assert_eq!((nothing.unpublished, nothing.oldest_seconds), (0, None));
    assert_eq!(nothing.last_marked_seconds, None);

    for id in ["a1", "a2", "a3", "a4"] {
        emit(&world, "a", id).await;
    }
    world.execute(CLAIMED_BY_ANOTHER).await;
    world
        .execute(
            "UPDATE outflow.outbox SET claimed_by = 'gone/1', claimed_until = now() - '1 min'::interval \
             WHERE event_id = 'a2'; \
             UPDATE outflow.outbox SET published_at = now() - '1 hour'::interval WHERE event_id = 'a3'; \
             UPDATE outflow.outbox SET created_at = now() - '5 min'::interval WHERE event_id = 'a4'",
        )
        .await;
    let found = look().await.unwrap().unwrap();
    assert_eq!((found.unpublished, found.claimed, found.lapsed, found.relays), (3, 1, 1, 1));
    assert!((300.0..400.0).contains(&found.oldest_seconds.unwrap()), "{found:?}");
    assert!((3600.0..3700.0).contains(&found.last_marked_seconds.unwrap()), "{found:?}");
}
