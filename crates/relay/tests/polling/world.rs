//! What the tests of the polling relay share.

use std::collections::HashMap;
use std::time::Duration;

use outflow_relay::PollingConfig;
use outflow_relay::polling::{ClaimColumns, WakeUp};
use tokio::time::Instant;

use crate::support::{PATIENCE, RawEntry, World};

/// Servers and an outbox that may be polled.
pub async fn world() -> World {
    let world = World::start().await;
    world.allow_polling().await;
    world
}

/// Quick to look, slow to take over.
pub fn polling(relay: &str) -> PollingConfig {
    PollingConfig {
        relay: relay.to_owned(),
        lease: Duration::from_secs(30),
        interval: Duration::from_millis(5),
        max_interval: Duration::from_millis(50),
        wake_up: WakeUp::Interval,
        retention: None,
        columns: ClaimColumns::default(),
    }
}

/// Writes an event of `order/<aggregate>`.
pub async fn emit(world: &World, aggregate: &str, event_id: &str) {
    world
        .execute(&format!("SELECT outflow.emit('order', '{aggregate}', 'T', '{{}}', '{event_id}')"))
        .await;
}

/// Waits until a query that returns one number returns `wanted`.
pub async fn until_count(world: &World, query: &str, wanted: i64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let count: i64 = world.sql.query_one(query, &[]).await.unwrap().get(0);
        if count == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{query}: {count}, expected {wanted}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until nothing is left to publish.
pub async fn until_all_published(world: &World) {
    until_count(world, "SELECT count(*) FROM outflow.outbox WHERE published_at IS NULL", 0).await;
}

/// Fails unless the first delivery of each event follows the order of `seq` in its aggregate, and
/// every `seq` from 1 to `each` is there. Returns the number of entries that were repeated.
pub fn check_first_deliveries(entries: &[RawEntry], aggregates: usize, each: u64) -> usize {
    let mut last: HashMap<String, u64> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut repeated = 0;
    for entry in entries {
        if !seen.insert(entry.get("event_id").unwrap().to_owned()) {
            repeated += 1;
            continue;
        }
        let aggregate = entry.get("aggregate_id").unwrap();
        let seq: u64 = entry.get("seq").unwrap().parse().unwrap();
        let before = last.insert(aggregate.to_owned(), seq).unwrap_or(0);
        assert_eq!(seq, before + 1, "aggregate {aggregate}: {seq} was first seen after {before}");
    }
    assert_eq!(last.len(), aggregates);
    assert!(last.values().all(|last| *last == each), "events are missing: {last:?}");
    repeated
}
