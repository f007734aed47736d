//! What the broker may answer, and what must not be lost or doubled over it.

use std::time::Duration;

use outflow_relay::Retry;
use outflow_relay::config::{Durability, OffsetStoreKind};
use outflow_sandbox::{Fsync, Postgres, Proxy, Redis};

use crate::support::{PATIENCE, World};

#[tokio::test]
async fn redis_down_at_start_and_while_running() {
    let world = World::start().await;
    world.redis.kill().await.unwrap();
    let running = world.spawn();
    running.waiting_for("redis").await;
    world.redis.start_again().await.unwrap();
    running.streaming().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.stop().await;
}

#[tokio::test]
async fn redis_killed_with_events_on_the_way_loses_and_doubles_nothing() {
    let redis = Redis::builder().appendonly(Fsync::Always);
    let world = World::with(Postgres::builder(), redis).await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.redis.kill().await.unwrap();
    world.emit("b").await;
    running.waiting_for("redis").await;
    world.emit("c").await;
    world.redis.start_again().await.unwrap();
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c58_a_full_redis_is_waited_for_and_holds_the_offset() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world.redis.config_set("maxmemory-policy", "noeviction").await.unwrap();
    world.redis.config_set("maxmemory", "1").await.unwrap();
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', '{}', i::text) FROM generate_series(1, 50) i",
        )
        .await;
    running.waiting_for("OOM").await;
    assert_eq!(world.ids("outflow:order").await, ["a"], "a refused batch leaves nothing behind");
    world.redis.config_set("maxmemory", "0").await.unwrap();
    let expected: Vec<String> =
        std::iter::once("a".to_owned()).chain((1..=50).map(|i| i.to_string())).collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    world.expect_ids("outflow:order", &expected).await;
    running.stop().await;
}

#[tokio::test]
async fn c59_a_primary_that_became_a_replica_is_waited_for() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    let other = Redis::builder().start().await.unwrap();
    // no sync: the replica keeps its data and answers READONLY
    world.redis.config_set("replica-serve-stale-data", "yes").await.unwrap();
    other.kill().await.unwrap();
    let mut redis = world.redis.connect().await.unwrap();
    let (host, port) = ("127.0.0.1", other.port().to_string());
    redis::cmd("REPLICAOF").arg(host).arg(&port).exec_async(&mut redis).await.unwrap();
    world.emit("b").await;
    running.waiting_for("READONLY").await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut redis).await.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c60_a_redis_that_cannot_write_its_disk_is_waited_for() {
    let world = World::start().await;
    let running = world.connector().await;
    let mut redis = world.redis.connect().await.unwrap();
    let folder = world.redis.dir().to_owned();
    world.redis.config_set("save", "3600 1").await.unwrap();
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    // a folder of that name cannot be replaced by a file
    std::fs::create_dir(folder.join("dump.rdb")).unwrap();
    std::fs::write(folder.join("dump.rdb/full"), "").unwrap();
    redis::cmd("BGSAVE").exec_async(&mut redis).await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let info: String =
            redis::cmd("INFO").arg("persistence").query_async(&mut redis).await.unwrap();
        if info.contains("rdb_last_bgsave_status:err") {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{info}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.emit("b").await;
    running.waiting_for("MISCONF").await;
    world.redis.config_set("stop-writes-on-bgsave-error", "no").await.unwrap();
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c54_c67_a_key_of_another_type_holds_the_offset_until_it_is_gone() {
    let world = World::start().await;
    let running = world.connector().await;
    let mut redis = world.redis.connect().await.unwrap();
    redis::cmd("SET").arg("outflow:slow").arg("x").exec_async(&mut redis).await.unwrap();
    world
        .execute(
            "BEGIN; SELECT outflow.emit('slow', '1', 'T', '{}', 'slow');
             SELECT outflow.emit('fast', '1', 'T', '{}', i::text) FROM generate_series(1, 3) i;
             COMMIT",
        )
        .await;
    running.waiting_for("WRONGTYPE").await;
    running.crash().await;
    redis::cmd("DEL").arg("outflow:slow").exec_async(&mut redis).await.unwrap();
    let running = world.connector().await;
    world.expect_ids("outflow:slow", &["slow"]).await;
    world.expect_ids("outflow:fast", &["1", "2", "3"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c63_a_reply_that_is_lost_does_not_double_the_entries() {
    let mut world = World::start().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", world.redis.port())).start().await.unwrap();
    world.config.sink.redis = format!("redis://{}", proxy.address()).parse().unwrap();
    world.config.sink.timeout = Duration::from_millis(500);
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    proxy.swallow_replies();
    world.emit("b").await;
    // executed, but never acknowledged
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.waiting_for("redis").await;
    proxy.cut();
    proxy.resume();
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c69_a_stream_that_something_else_wrote_to_is_refused() {
    let world = World::start().await;
    let running = world.connector().await;
    let mut redis = world.redis.connect().await.unwrap();
    redis::cmd("XADD")
        .arg("outflow:order")
        .arg("99999999999999-0")
        .arg("x")
        .arg("y")
        .exec_async(&mut redis)
        .await
        .unwrap();
    world.emit("a").await;
    running.waiting_for("refuses id").await;
    running.crash().await;
    // at the next start too, and the process ends only where a person reads it
    redis::cmd("DEL").arg("outflow:order").exec_async(&mut redis).await.unwrap();
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c37_a_connector_that_was_overtaken_cannot_double_or_turn_back() {
    let mut world = World::start().await;
    let proxy = Proxy::to(format!("127.0.0.1:{}", world.redis.port())).start().await.unwrap();
    let direct = world.config.clone();
    world.config.sink.redis = format!("redis://{}", proxy.address()).parse().unwrap();
    let zombie = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    // its requests hang, with b on the way
    proxy.pause();
    world.emit("b").await;
    // the slot changes hands
    world.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots").await;
    let successor = world.spawn_with(direct);
    successor.streaming().await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    proxy.resume();
    zombie.waiting_for("in use by process").await;
    world.emit("d").await;
    world.expect_ids("outflow:order", &["a", "b", "c", "d"]).await;
    successor.stop().await;
    // and now it is the zombie's turn again
    zombie.streaming().await;
    world.emit("e").await;
    world.expect_ids("outflow:order", &["a", "b", "c", "d", "e"]).await;
    zombie.stop().await;
}

#[tokio::test]
async fn the_offset_may_be_kept_in_postgresql() {
    let mut world = World::start().await;
    world.config.offset.store = OffsetStoreKind::Postgres;
    for ids in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
        let running = world.connector().await;
        world.emit(ids.last().unwrap()).await;
        world.expect_ids("outflow:order", ids).await;
        running.crash().await;
    }
    let running = world.connector().await;
    world.emit("d").await;
    world.expect_ids("outflow:order", &["a", "b", "c", "d"]).await;
    running.stop().await;
}

#[tokio::test]
async fn durability_waits_for_replicas_without_sending_again() {
    let mut world = World::start().await;
    world.config.sink.durability = Durability::Replicas(1);
    world.config.sink.timeout = Duration::from_secs(1);
    let replica = Redis::builder().start().await.unwrap();
    replica.replica_of(&world.redis).await.unwrap();
    let running = world.connector().await;
    world.emit("a").await;
    running.until("a is durable", |status| status.published == 1).await;
    replica.sigstop().unwrap();
    world.emit("b").await;
    running.waiting_for("sink.durability").await;
    assert_eq!(world.ids("outflow:order").await, ["a", "b"]);
    replica.sigcont().unwrap();
    running.streaming().await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn wrong_credentials_end_the_connector_with_advice() {
    let redis = Redis::builder().password("right");
    let mut world = World::with(Postgres::builder(), redis).await;
    let address = format!("redis://:wrong@127.0.0.1:{}", world.redis.port());
    world.config.sink.redis = address.parse().unwrap();
    let error = world.spawn().failure().await;
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("check user and password in sink.url"), "{error}");
    assert!(!error.to_string().contains("wrong@"), "{error}");
}

const RIGHTS: &str = "+xadd +xrange +xrevrange +xinfo +type +exists +eval +multi +exec";

/// Has the connector use a user of Redis with these rights only.
async fn restrict(world: &mut World, rights: &str) {
    let mut redis = world.redis.connect().await.unwrap();
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("relay").arg("on").arg(">pw").arg("~outflow:*");
    for right in rights.split_whitespace() {
        user.arg(right);
    }
    user.exec_async(&mut redis).await.unwrap();
    let address = format!("redis://relay:pw@127.0.0.1:{}", world.redis.port());
    world.config.sink.redis = address.parse().unwrap();
}

/// Redis does the commands behind a refused MULTI one by one.
#[tokio::test]
async fn nothing_is_written_without_the_right_to_a_transaction() {
    for missing in ["+multi", "+exec"] {
        let mut world = World::start().await;
        restrict(&mut world, &RIGHTS.replace(missing, "")).await;
        world.emit("a").await;
        let error = world.spawn().failure().await;
        assert_eq!(error.retry(), Retry::Fatal);
        assert!(error.to_string().contains(RIGHTS), "{error}");
        world.expect_ids("outflow:order", &[]).await;
        restrict(&mut world, RIGHTS).await;
        let running = world.connector().await;
        world.expect_ids("outflow:order", &["a"]).await;
        running.stop().await;
    }
}

#[tokio::test]
async fn the_rights_that_the_advice_names_are_enough() {
    let mut world = World::start().await;
    restrict(&mut world, RIGHTS).await;
    for ids in [&["a"][..], &["a", "b"]] {
        let running = world.connector().await;
        world.emit(ids.last().unwrap()).await;
        world.expect_ids("outflow:order", ids).await;
        running.stop().await;
    }
    let mut redis = world.redis.connect().await.unwrap();
    redis::cmd("ACL")
        .arg("SETUSER")
        .arg("relay")
        .arg("-xadd")
        .exec_async(&mut redis)
        .await
        .unwrap();
    world.emit("c").await;
    let running = world.spawn();
    running.waiting_for(RIGHTS).await;
    running.crash().await;
}
