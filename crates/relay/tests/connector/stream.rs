//! Events on their way from the outbox to the stream.

use crate::support::World;

#[tokio::test]
async fn an_event_arrives_with_its_fields() {
    let world = World::start().await;
    let running = world.connector().await;
    world
        .execute(
            "SELECT outflow.emit('order', '42', 'Placed', '{\"d\": 0.10}', 'bus-1', 7, '{\"a\": 1}')",
        )
        .await;
    world.expect_ids("outflow:order", &["bus-1"]).await;
    let entry = world.entries("outflow:order").await.remove(0);
    assert_eq!(entry.get("aggregate_type"), Some("order"));
    assert_eq!(entry.get("aggregate_id"), Some("42"));
    assert_eq!(entry.get("event_type"), Some("Placed"));
    assert_eq!(entry.get("seq"), Some("7"));
    assert_eq!(entry.get("payload"), Some("{\"d\": 0.10}"));
    assert_eq!(entry.get("headers"), Some("{\"a\": 1}"));
    let (epoch, position) = entry.id.to_position();
    assert_eq!(epoch.0, 0);
    assert_eq!(entry.get("position"), Some(position.to_string().as_str()));
    running.stop().await;
}

#[tokio::test]
async fn c52_a_restart_sends_nothing_again() {
    let world = World::start().await;
    for round in 1..=5 {
        let running = world.connector().await;
        if round == 1 {
            world.emit("a").await;
        }
        world.expect_ids("outflow:order", &["a"]).await;
        running.stop().await;
    }
    assert_eq!(world.ids("outflow:order").await, ["a"]);
}
