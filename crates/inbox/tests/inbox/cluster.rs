//! Streams that are spread over the nodes of a cluster.

use std::time::Duration;

use outflow_broker::{Connection, Target};
use outflow_event::StreamNaming;
use outflow_inbox::ConsumerOptions;
use outflow_sandbox::{Redis, RedisCluster};

use crate::support::{Bed, seen};

const PATIENCE: Duration = Duration::from_secs(30);

async fn add(
    redis: &mut Connection,
    naming: &StreamNaming,
    numbers: std::ops::RangeInclusive<u32>,
) {
    let keys = naming.keys("order");
    for n in numbers {
        let aggregate = (n % 20).to_string();
        let key = &keys[naming.partition(aggregate.as_bytes()) as usize];
        let mut add = redis::cmd("XADD");
        add.arg(key).arg("*").arg("event_id").arg(format!("e{n}")).arg("aggregate_type");
        add.arg("order").arg("aggregate_id").arg(aggregate).arg("event_type").arg("T");
        add.arg("payload").arg(format!(r#"{{"v": {n}}}"#));
        add.exec_async(redis).await.unwrap();
    }
}

#[tokio::test]
async fn c68_streams_of_many_slots_are_read_in_order_and_acknowledged() {
    let bed = Bed::new().await;
    if Redis::builder().start().await.unwrap().version().starts_with("6.") {
        return; // the sandbox's clusters need Redis 7
    }
    let cluster = RedisCluster::builder().start().await.unwrap();
    let target: Target =
        format!("redis+cluster://127.0.0.1:{}", cluster.nodes()[0].port()).parse().unwrap();
    let naming = StreamNaming::new("spread:", 8);
    let mut redis = target.connect(PATIENCE, PATIENCE).await.unwrap();
    let options = || ConsumerOptions {
        redis: target.clone(),
        streams: naming.keys("order"),
        ..bed.options()
    };
    add(&mut redis, &naming, 1..=300).await;
    let mut running = bed.start(options(), seen());
    running.until(|counts| counts.applied == 300).await;
    // an entry that is malformed is looked up where it stands
    bed.log.expect_warn("not an event");
    let key = &naming.keys("order")[3];
    redis::cmd("XADD").arg(key).arg("*").arg("a").arg("b").exec_async(&mut redis).await.unwrap();
    running.until(|counts| counts.malformed == 1).await;
    running.crash().await;

    add(&mut redis, &naming, 301..=600).await;
    let mut running = bed.start(options(), seen());
    running.until(|counts| counts.applied >= 300).await;
    bed.until_true("SELECT count(*) = 600 FROM seen").await;
    running.stop().await;
    bed.assert_order_within_aggregates().await;
    for key in naming.keys("order") {
        let pending: (u64, redis::Value, redis::Value, redis::Value) = redis::cmd("XPENDING")
            .arg(&key)
            .arg("accounting")
            .query_async(&mut redis)
            .await
            .unwrap();
        assert_eq!(pending.0, 0, "{key}");
    }
}
