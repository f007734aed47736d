//! Redis behind sentinels and as a cluster.

use std::collections::BTreeMap;

use outflow_broker::{Slot, Target};
use outflow_event::StreamNaming;
use outflow_sandbox::{Fsync, Postgres, Redis, RedisCluster};
use redis::RedisResult;
use redis::aio::ConnectionLike;
use tokio::time::Instant;

use crate::support::{PATIENCE, World};

type Record = (String, Vec<(String, String)>);

/// Aggregate id and event id of every entry, in order.
async fn entries(
    redis: &mut impl ConnectionLike,
    stream: &str,
) -> RedisResult<Vec<(String, String)>> {
    let records: Vec<Record> =
        redis::cmd("XRANGE").arg(stream).arg("-").arg("+").query_async(redis).await?;
    let field = |fields: &[(String, String)], name: &str| {
        fields.iter().find(|(field, _)| field == name).unwrap().1.clone()
    };
    Ok(records
        .iter()
        .map(|(_, fields)| (field(fields, "aggregate_id"), field(fields, "event_id")))
        .collect())
}

async fn until_ids(redis: &Redis, stream: &str, expected: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // a replica that is promoted lets go of its connections
        let mut connection = redis.connect().await.unwrap();
        let entries = entries(&mut connection, stream).await.unwrap_or_default();
        let ids: Vec<_> = entries.iter().map(|(_, id)| id.as_str()).collect();
        if ids == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{stream} holds {ids:?}, expected {expected:?}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn behind_sentinels_the_connector_follows_the_primary() {
    let with_password = || Redis::builder().password("p@ss");
    let mut world = World::with(Postgres::builder(), with_password()).await;
    let replica = with_password().start().await.unwrap();
    replica.replica_of(&world.redis).await.unwrap();
    let sentinel = Redis::builder().sentinel_of("main", &world.redis, 1).start().await.unwrap();
    let url = format!("redis+sentinel://:p%40ss@127.0.0.1:{}/main", sentinel.port());
    world.config.sink.redis = url.parse().unwrap();
    let running = world.connector().await;
    world.emit("a").await;
    until_ids(&replica, "outflow:order", &["a"]).await;
    world.redis.kill().await.unwrap();
    world.emit("b").await;
    running.waiting_for("redis").await;
    until_ids(&replica, "outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn a_redis_that_loads_its_data_is_waited_for() {
    let redis = Redis::builder().on_disk().setting("key-load-delay", "1000");
    let redis = redis.setting("loading-process-events-interval-bytes", "1024");
    let world = World::with(Postgres::builder(), redis.setting("save", "3600 1")).await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    let mut redis = world.redis.connect().await.unwrap();
    let fill = "for i = 1, 3000 do redis.call('SET', 'key' .. i, '') end";
    redis::cmd("EVAL").arg(fill).arg(0).exec_async(&mut redis).await.unwrap();
    redis::cmd("SAVE").exec_async(&mut redis).await.unwrap();
    world.redis.kill().await.unwrap();
    world.emit("b").await;
    let (started, ()) = tokio::join!(world.redis.start_again(), running.waiting_for("LOADING"));
    started.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

/// A cluster, and a world whose connector writes to it.
struct Spread {
    world: World,
    cluster: RedisCluster,
    target: Target,
    naming: StreamNaming,
}

impl Spread {
    /// `None` where Redis is too old for the sandbox's clusters.
    async fn start() -> Option<Self> {
        let mut world = World::start().await;
        if world.redis.version().starts_with("6.") {
            return None;
        }
        let node = Redis::builder().appendonly(Fsync::Always);
        let cluster = RedisCluster::builder().node(node).start().await.unwrap();
        let hosts: Vec<_> =
            cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let target: Target = format!("redis+cluster://{}", hosts.join(",")).parse().unwrap();
        let naming = StreamNaming::new("outflow:", 8);
        world.config.sink.redis = target.clone();
        world.config.sink.naming = naming.clone();
        Some(Self { world, cluster, target, naming })
    }

    async fn emit(&self, numbers: std::ops::RangeInclusive<u32>) {
        let (first, last) = (numbers.start(), numbers.end());
        self.world
            .execute(&format!(
                "SELECT outflow.emit('order', (i % 20)::text, 'T', '{{}}', i::text)
                 FROM generate_series({first}, {last}) i"
            ))
            .await;
    }

    /// Waits until there are `count` entries, then checks that each event is there once and that
    /// the aggregates' order is kept.
    async fn expect(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let seen = loop {
            // a node that is down does not answer
            let seen = self.read().await.unwrap_or_default();
            if seen.len() >= count {
                break seen;
            }
            assert!(Instant::now() < deadline, "{} of {count} entries", seen.len());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        let mut by_aggregate = BTreeMap::<_, Vec<u32>>::new();
        for (aggregate, event) in seen {
            by_aggregate.entry(aggregate).or_default().push(event.parse().unwrap());
        }
        for (aggregate, events) in &by_aggregate {
            assert!(events.is_sorted_by(|a, b| a < b), "aggregate {aggregate}: {events:?}");
        }
        assert_eq!(by_aggregate.values().map(Vec::len).sum::<usize>(), count);
    }

    async fn read(&self) -> RedisResult<Vec<(String, String)>> {
        let mut connection = self.target.connect(PATIENCE, PATIENCE).await?;
        let mut seen = Vec::new();
        for key in self.naming.keys("order") {
            seen.extend(entries(&mut connection, &key).await?);
        }
        Ok(seen)
    }

    /// Moves the slot of `key` to another node, as `redis-cli --cluster reshard` does.
    async fn reshard(&self, key: &str) {
        let slot: u16 = {
            let mut any = self.cluster.nodes()[0].connect().await.unwrap();
            redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut any).await.unwrap()
        };
        let mut nodes = Vec::new();
        for node in self.cluster.nodes() {
            let mut connection = node.connect().await.unwrap();
            let id: String =
                redis::cmd("CLUSTER").arg("MYID").query_async(&mut connection).await.unwrap();
            let keys: RedisResult<bool> =
                redis::cmd("EXISTS").arg(key).query_async(&mut connection).await;
            nodes.push((node.port(), id, connection, keys == Ok(true)));
        }
        let from = nodes.iter().position(|(.., has)| *has).unwrap();
        let to = (from + 1) % nodes.len();
        let (from_id, to_id, to_port) = (nodes[from].1.clone(), nodes[to].1.clone(), nodes[to].0);
        let set = |what: &str, id: &str| {
            redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(what).arg(id).take()
        };
        set("IMPORTING", &from_id).exec_async(&mut nodes[to].2).await.unwrap();
        set("MIGRATING", &to_id).exec_async(&mut nodes[from].2).await.unwrap();
        let mut keys = redis::cmd("CLUSTER");
        keys.arg("GETKEYSINSLOT").arg(slot).arg(10);
        let keys: Vec<String> = keys.query_async(&mut nodes[from].2).await.unwrap();
        for key in keys {
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(to_port).arg(key).arg(0).arg(5000);
            migrate.exec_async(&mut nodes[from].2).await.unwrap();
        }
        for node in [to, from] {
            set("NODE", &to_id).exec_async(&mut nodes[node].2).await.unwrap();
        }
    }
}

#[tokio::test]
async fn c68_in_a_cluster_every_stream_is_written_on_its_node() {
    let Some(spread) = Spread::start().await else { return };
    let slots: std::collections::HashSet<_> =
        spread.naming.keys("order").iter().map(Slot::for_key).collect();
    assert!(slots.len() > 1, "the streams must be spread for this test to say anything");
    let running = spread.world.connector().await;
    spread.emit(1..=500).await;
    spread.expect(500).await;
    running.crash().await;
    spread.emit(501..=1000).await;
    let running = spread.world.connector().await;
    spread.expect(1000).await;
    running.stop().await;
    // the stored offset covers it all
    let running = spread.world.connector().await;
    spread.emit(1001..=1001).await;
    spread.expect(1001).await;
    assert_eq!(running.status.borrow().published, 1);
    running.stop().await;
}

#[tokio::test]
async fn a_node_of_a_cluster_that_is_down_is_waited_for() {
    let Some(spread) = Spread::start().await else { return };
    let running = spread.world.connector().await;
    spread.emit(1..=100).await;
    spread.expect(100).await;
    spread.cluster.nodes()[1].kill().await.unwrap();
    // some of the batch's transactions succeed, others do not
    spread.emit(101..=200).await;
    running.waiting_for("redis").await;
    spread.cluster.nodes()[1].start_again().await.unwrap();
    spread.expect(200).await;
    running.stop().await;
}

#[tokio::test]
async fn c68_a_slot_of_a_cluster_may_move_while_events_flow() {
    let Some(spread) = Spread::start().await else { return };
    let running = spread.world.connector().await;
    spread.emit(1..=100).await;
    spread.expect(100).await;
    let keys = spread.naming.keys("order");
    let ((), ()) = tokio::join!(spread.reshard(&keys[0]), async {
        for first in (101..1101).step_by(20) {
            spread.emit(first..=first + 19).await;
        }
    });
    spread.expect(1100).await;
    running.stop().await;
}
