//! Retention never removes what somebody still needs, and says who it is.

use std::time::Duration;

use outflow_relay::retention::{HOLDS_KEY, Progress, Report, Retention, RetentionConfig};
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use crate::support::{PATIENCE, World};

/// An entry's id, then names and values.
type Entry = (String, Vec<String>);

const STREAM: &str = "outflow:order";

/// Everything that is older than nothing at all.
fn everything() -> RetentionConfig {
    RetentionConfig {
        outbox: Some(Duration::ZERO),
        streams: Some(Duration::ZERO),
        interval: Duration::from_secs(3600),
        batch: 7,
        consumers: Vec::new(),
    }
}

struct Bed {
    world: World,
    redis: MultiplexedConnection,
}

impl Bed {
    /// A connector that has published `events` events and goes on.
    async fn with(events: usize) -> (Self, crate::support::Running) {
        let world = World::start().await;
        let running = world.connector().await;
        world
            .execute(&format!(
                "SELECT outflow.emit('order', '1', 'T', '{{}}', 'e' || i) FROM generate_series(1, {events}) i"
            ))
            .await;
        let ids: Vec<String> = (1..=events).map(|i| format!("e{i}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        world.expect_ids(STREAM, &ids).await;
        let redis = world.redis.connect().await.unwrap();
        (Self { world, redis }, running)
    }

    async fn redis(&mut self, command: &[&str]) -> redis::Value {
        let mut cmd = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| {
            cmd.arg(argument);
        });
        cmd.query_async(&mut self.redis).await.unwrap()
    }

    /// The group reads `count` entries and acknowledges the first `acknowledged` of them.
    async fn consume(&mut self, group: &str, count: usize, acknowledged: usize) -> Vec<String> {
        let _: redis::RedisResult<()> = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg(STREAM)
            .arg(group)
            .arg("0")
            .exec_async(&mut self.redis)
            .await;
        let read: Vec<(String, Vec<Entry>)> = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg(group)
            .arg("w")
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(STREAM)
            .arg(">")
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let ids: Vec<String> = read.into_iter().flat_map(|(_, e)| e).map(|(id, _)| id).collect();
        if acknowledged > 0 {
            let mut ack = redis::cmd("XACK");
            ack.arg(STREAM).arg(group).arg(&ids[..acknowledged]);
            ack.exec_async(&mut self.redis).await.unwrap();
        }
        ids
    }

    async fn run(&self, config: RetentionConfig) -> Report {
        Retention::new(self.world.config.clone(), config)
            .run_once(false, &mut Progress::none())
            .await
            .unwrap()
    }

    /// Runs until the outbox is not held back any more.
    async fn run_until_passed(&self, config: RetentionConfig) -> Report {
        let mut retention = Retention::new(self.world.config.clone(), config);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let report = retention.run_once(false, &mut Progress::none()).await.unwrap();
            let held_by = report.outbox.as_ref().and_then(|outbox| outbox.held_by.clone());
            if held_by.is_none() {
                return report;
            }
            assert!(Instant::now() < deadline, "{held_by:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn rows(&self) -> i64 {
        let row =
            self.world.sql.query_one("SELECT count(*) FROM outflow.outbox", &[]).await.unwrap();
        row.get(0)
    }

    async fn entries(&self) -> usize {
        self.world.entries(STREAM).await.len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c70_a_stream_is_trimmed_up_to_the_slowest_group_pending_entries_included() {
    let (mut bed, running) = Bed::with(50).await;
    let only_streams = || RetentionConfig { outbox: None, ..everything() };
    let held = bed.run(only_streams()).await;
    assert_eq!((held.streams[0].removed, held.streams[0].entries), (0, 50));
    assert!(held.streams[0].held_by.as_deref().unwrap().contains("no consumer has a group"));

    bed.consume("fast", 50, 50).await;
    // the slow one holds on to its 21st entry, and has acknowledged none behind it
    bed.consume("slow", 30, 20).await;
    let report = bed.run(only_streams()).await;
    assert_eq!((report.streams[0].removed, report.streams[0].entries), (20, 30));
    assert!(report.streams[0].held_by.as_deref().unwrap().contains("`slow`"), "{report:?}");
    assert_eq!(bed.entries().await, 30);

    // what nobody has read yet stays as well: the group that comes later sees all of it
    bed.redis(&["XGROUP", "CREATE", STREAM, "new", "0"]).await;
    bed.redis(&["XGROUP", "DESTROY", STREAM, "slow"]).await;
    assert_eq!(bed.run(only_streams()).await.streams[0].removed, 0);
    bed.redis(&["XGROUP", "DESTROY", STREAM, "new"]).await;
    let expected =
        RetentionConfig { consumers: vec!["fast".into(), "slow".into()], ..only_streams() };
    let held = bed.run(expected).await;
    assert!(held.streams[0].held_by.as_deref().unwrap().contains("`slow` (retention.consumers)"));
    assert_eq!(bed.run(only_streams()).await.streams[0].removed, 30);
    // the stream still knows its last id
    bed.world.emit("later").await;
    bed.world.expect_ids(STREAM, &["later"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn age_and_open_dead_letters_hold_entries_and_rows_back() {
    let (mut bed, running) = Bed::with(20).await;
    let ids = bed.consume("books", 20, 20).await;
    let hour = Some(Duration::from_secs(3600));
    let young = RetentionConfig { outbox: hour, streams: hour, ..everything() };
    let report = bed.run_until_passed(young).await;
    assert_eq!((report.streams[0].removed, report.outbox.unwrap().removed), (0, 0));
    assert!(report.streams[0].held_by.as_deref().unwrap().contains("younger than"));

    let hold = serde_json::json!({
        "consumer": "books", "stream": STREAM, "entry_id": ids[4], "reason": "dead letter 7 is open",
    });
    bed.redis(&["HSET", HOLDS_KEY, "books outflow:order", &hold.to_string()]).await;
    let report = bed.run_until_passed(everything()).await;
    assert_eq!((report.streams[0].removed, report.streams[0].entries), (4, 16));
    assert_eq!(
        report.streams[0].held_by.as_deref(),
        Some("consumer `books`: dead letter 7 is open")
    );
    // rows that were created before the one that the dead letter is about
    assert_eq!((report.outbox.unwrap().removed, bed.rows().await), (4, 16));

    // an entry that is gone cannot tell how old its row is: nothing of the outbox goes
    bed.redis(&["XDEL", STREAM, &ids[4]]).await;
    let held = Retention::new(bed.world.config.clone(), everything());
    let mut held = held;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let report = held.run_once(true, &mut Progress::none()).await.unwrap();
        let why = report.outbox.unwrap().held_by.unwrap();
        if why.contains("dead letter 7 is open, and its entry") {
            break;
        }
        assert!(Instant::now() < deadline, "{why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(bed.rows().await, 16);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c96_outbox_rows_stay_until_they_are_published_and_applied() {
    let (mut bed, running) = Bed::with(30).await;
    bed.consume("books", 30, 29).await;
    let only_rows = || RetentionConfig { streams: None, ..everything() };
    let mut retention = Retention::new(bed.world.config.clone(), only_rows());
    let mut held_by = String::new();
    let deadline = Instant::now() + PATIENCE;
    while !held_by.contains("`books` has acknowledged") {
        assert!(Instant::now() < deadline, "{held_by}");
        let report = retention.run_once(false, &mut Progress::none()).await.unwrap();
        held_by = report.outbox.unwrap().held_by.unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(bed.rows().await, 30);

    // a transaction that began before the mark commits after it: its old row is not in the stream yet
    let mut late = bed.world.pg.connect_to(&bed.world.database.name).await.unwrap();
    let transaction = late.transaction().await.unwrap();
    transaction
        .batch_execute("SELECT outflow.emit('order', '2', 'T', '{}', 'late')")
        .await
        .unwrap();
    let last = bed.consume("books", 1, 0).await;
    assert!(last.is_empty());
    bed.redis(&["XGROUP", "SETID", STREAM, "books", "0"]).await;
    bed.consume("books", 30, 30).await;
    let report = bed.run_until_passed(only_rows()).await;
    assert_eq!((report.outbox.unwrap().removed, bed.rows().await), (30, 0));
    assert_eq!(bed.run(everything()).await.streams[0].removed, 30);
    running.stop().await;
    transaction.commit().await.unwrap();
    assert_eq!(bed.rows().await, 1);
    // the connector is stopped: the log has it, and only the log
    let held = bed.run(everything()).await.outbox.unwrap().held_by.unwrap();
    assert!(held.contains("the connector has published up to"), "{held}");
    assert_eq!(bed.rows().await, 1);
    let running = bed.world.connector().await;
    bed.world.expect_ids(STREAM, &["late"]).await;
    running.stop().await;

    let floor: String = redis::cmd("GET")
        .arg("outflow:replay-floor:outflow")
        .query_async(&mut bed.redis)
        .await
        .unwrap();
    assert!(floor.contains("rows_since"), "{floor}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_between_two_steps_has_removed_less_and_nothing_else() {
    let (mut bed, running) = Bed::with(40).await;
    bed.consume("books", 40, 25).await;
    let scenario = fail::FailScenario::setup();
    fail::cfg("relay::retention_between_batches", "1*off->1*panic->off").unwrap();
    let (config, only_streams) =
        (bed.world.config.clone(), RetentionConfig { outbox: None, ..everything() });
    let crashed = tokio::spawn(async move {
        Retention::new(config, only_streams).run_once(false, &mut Progress::none()).await
    });
    assert!(crashed.await.unwrap_err().is_panic());
    assert_eq!(bed.entries().await, 40 - 14);
    scenario.teardown();
    let report = bed.run(RetentionConfig { outbox: None, ..everything() }).await;
    assert_eq!((report.streams[0].removed, bed.entries().await), (25 - 14, 15));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_partitions_are_dropped_and_others_lose_their_rows() {
    let mut world = World::start().await;
    // by time, with a partition that is over, one that is not, and a default one
    world
        .execute(
            "DROP PUBLICATION outflow; ALTER TABLE outflow.outbox RENAME TO outbox_before;
             CREATE TABLE outflow.outbox (LIKE outflow.outbox_before INCLUDING DEFAULTS INCLUDING IDENTITY)
                 PARTITION BY RANGE (created_at);
             CREATE TABLE outflow.outbox_old PARTITION OF outflow.outbox FOR VALUES FROM (MINVALUE) TO ('2026-01-01');
             CREATE TABLE outflow.outbox_now PARTITION OF outflow.outbox FOR VALUES FROM ('2026-01-01') TO (MAXVALUE);
             CREATE PUBLICATION outflow FOR TABLE outflow.outbox
                 WITH (publish = 'insert', publish_via_partition_root = true)",
        )
        .await;
    world.config.source.order_by = vec!["created_at".into(), "event_id".into()];
    let running = world.connector().await;
    world
        .execute(
            "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, created_at)
             SELECT 'old' || i, 'order', '1', 'T', '2025-06-01' FROM generate_series(1, 5) i;
             INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, created_at)
             SELECT 'new' || i, 'order', '1', 'T', '2026-01-02' FROM generate_series(1, 5) i",
        )
        .await;
    let ids: Vec<String> =
        ["old", "new"].iter().flat_map(|kind| (1..=5).map(move |i| format!("{kind}{i}"))).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    world.expect_ids(STREAM, &ids).await;
    let redis = world.redis.connect().await.unwrap();
    let mut bed = Bed { world, redis };
    bed.consume("books", 10, 10).await;
    let report = bed.run_until_passed(RetentionConfig { streams: None, ..everything() }).await;
    let outbox = report.outbox.unwrap();
    assert_eq!(outbox.partitions_dropped, ["outflow.outbox_old"], "{outbox:?}");
    assert_eq!((outbox.removed, bed.rows().await), (5, 0));
    let left = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outflow.outbox'::regclass";
    let left: i64 = bed.world.sql.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, 1);
    running.stop().await;
}
