//! Several relays at once, and processes that are killed.

use std::time::Duration;

use crate::child::Relay;
use crate::support::World;
use crate::world::{check_first_deliveries, polling, until_all_published, world};

const AGGREGATES: usize = 20;
const EACH: u64 = 250;
const LEASE: Duration = Duration::from_millis(700);

/// Four connections write, each to aggregates of its own, so that the order of commits within an
/// aggregate is the order of its `seq`.
async fn write(world: &World) -> Vec<tokio::task::JoinHandle<()>> {
    let mut writing = Vec::new();
    for writer in 0..4 {
        let client = world.pg.connect_to(&world.database.name).await.unwrap();
        writing.push(tokio::spawn(async move {
            for seq in 1..=EACH {
                let sql = format!(
                    "SELECT outflow.emit('order', a::text, 'T', '{{}}', a || '-{seq}', {seq}) \
                     FROM generate_series({writer}, {AGGREGATES} - 1, 4) a"
                );
                client.batch_execute(&sql).await.unwrap();
            }
        }));
    }
    writing
}

async fn check(world: &World) -> usize {
    until_all_published(world).await;
    check_first_deliveries(&world.entries("outflow:order").await, AGGREGATES, EACH)
}

#[tokio::test(flavor = "multi_thread")]
async fn four_relays_share_the_work_without_a_double_and_in_order() {
    let world = world().await;
    let relays: Vec<_> = (0..4).map(|i| world.poll(polling(&format!("r{i}")))).collect();
    for writing in write(&world).await {
        writing.await.unwrap();
    }
    assert_eq!(check(&world).await, 0, "nobody died, so nothing comes twice");
    let mut published = 0;
    for relay in relays {
        published += relay.status.borrow().published;
        relay.stop().await;
    }
    assert_eq!(published, AGGREGATES as u64 * EACH);
}

#[tokio::test(flavor = "multi_thread")]
async fn c88_relays_that_are_killed_lose_nothing_and_keep_the_order_of_each_aggregate() {
    let world = world().await;
    let start = |number: usize| Relay::start(&world, &format!("r{number}"), LEASE, "");
    let mut relays: Vec<Relay> = (0..3).map(start).collect();
    let writing = write(&world).await;
    // a sequence without a pattern, the same in every run
    let mut pause = 3;
    for round in 0..12 {
        pause = (pause * 31 + 7) % 97;
        tokio::time::sleep(Duration::from_millis(60 + 2 * pause)).await;
        let victim = round % relays.len();
        relays[victim].kill();
        relays[victim] = start(3 + round);
    }
    for writing in writing {
        writing.await.unwrap();
    }
    check(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_aggregate_and_three_relays_stay_in_order() {
    let world = world().await;
    world
        .execute(
            "SELECT outflow.emit('order', 'hot', 'T', '{}', i::text, i) \
             FROM generate_series(1, 2000) i",
        )
        .await;
    let mut relays: Vec<Relay> =
        (0..3).map(|i| Relay::start(&world, &format!("r{i}"), LEASE, "")).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    relays[0].kill();
    until_all_published(&world).await;
    check_first_deliveries(&world.entries("outflow:order").await, 1, 2000);
}
