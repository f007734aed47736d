//! What the log may bring: every case is one that has stopped or corrupted a connector somewhere.

use outflow_relay::config::SnapshotMode;

use crate::support::World;

#[tokio::test]
async fn c01_truncate_of_the_outbox_is_passed_over() {
    let world = World::start().await;
    world.logs.expect_warn("carries more than inserts");
    world.logs.expect_warn("TRUNCATE on the outbox is ignored");
    let running = world.connector().await;
    world.emit("a").await;
    world
        .execute("ALTER PUBLICATION outflow SET (publish = 'insert, update, delete, truncate')")
        .await;
    world.emit("b").await;
    world.execute("TRUNCATE outflow.outbox").await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c02_enum_domain_and_origin_change_nothing() {
    let world = World::start().await;
    world
        .execute(
            "CREATE TYPE prio AS ENUM ('lo', 'hi');
             CREATE DOMAIN tenant AS text CHECK (value <> '');
             ALTER TABLE outflow.outbox ADD prio prio DEFAULT 'lo', ADD tenant tenant DEFAULT 'x'",
        )
        .await;
    let running = world.connector().await;
    world.emit("a").await;
    world
        .execute(
            "SELECT pg_replication_origin_create('o');
             SELECT pg_replication_origin_session_setup('o')",
        )
        .await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    let entry = world.entries("outflow:order").await.remove(0);
    assert_eq!((entry.get("prio"), entry.get("tenant")), (Some("lo"), Some("x")));
    running.stop().await;
}

#[tokio::test]
async fn c03_logical_messages_inside_and_outside_of_transactions() {
    let world = World::start().await;
    world.logs.expect_warn("messages outside of a transaction are not events");
    let running = world.connector().await;
    world
        .execute(
            "BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'a');
             SELECT pg_logical_emit_message(false, 'hb', 'x');
             SELECT pg_logical_emit_message(true, 'hb', 'y');
             SELECT outflow.emit_message('order', '1', 'T', '{\"d\": 0.10}', 'b');
             COMMIT;
             SELECT pg_logical_emit_message(false, 'outflow', 'not an event')",
        )
        .await;
    world.emit("c").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    assert_eq!(world.entries("outflow:order").await[1].get("payload"), Some("{\"d\": 0.10}"));
    running.stop().await;
}

#[tokio::test]
async fn c04_a_row_that_is_deleted_in_its_own_transaction_is_published() {
    let world = World::start().await;
    let running = world.connector().await;
    world
        .execute(
            "BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'a');
             DELETE FROM outflow.outbox; COMMIT",
        )
        .await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c05_a_clean_up_of_many_rows_is_passed_over() {
    let mut world = World::start().await;
    world.logs.expect_warn("carries more than inserts");
    world.logs.expect_warn("DELETE on the outbox is ignored");
    world.config.source.snapshot = SnapshotMode::Never;
    world
        .execute(
            "ALTER PUBLICATION outflow SET (publish = 'insert, delete');
             INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type)
             SELECT 'old-' || i, 'order', '1', 'T' FROM generate_series(1, 20000) AS i",
        )
        .await;
    let running = world.connector().await;
    world.execute("DELETE FROM outflow.outbox").await;
    world.emit("z").await;
    world.expect_ids("outflow:order", &["z"]).await;
    let said = world.logs.matching("DELETE on the outbox is ignored");
    assert_eq!(said.len(), 1, "once, and not for every row: {said:?}");
    running.stop().await;
}

#[tokio::test]
async fn c06_an_update_never_makes_a_hollow_entry() {
    let world = World::start().await;
    world.logs.expect_warn("carries more than inserts");
    world.logs.expect_warn("UPDATE on the outbox is ignored");
    world.execute("ALTER PUBLICATION outflow SET (publish = 'insert, update, delete')").await;
    let running = world.connector().await;
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', (SELECT jsonb_agg(md5(i::text)) \
             FROM generate_series(1, 4000) i), 'a');
             UPDATE outflow.outbox SET event_type = 'T2'",
        )
        .await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c08_rows_of_one_copy_are_told_apart() {
    let world = World::start().await;
    let running = world.connector().await;
    world
        .execute(
            "COPY outflow.outbox (event_id, aggregate_type, aggregate_id, event_type) \
             FROM PROGRAM 'printf \"a\\torder\\t1\\tT\\nb\\torder\\t1\\tT\\nc\\torder\\t1\\tT\\n\"'",
        )
        .await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c09_the_first_event_after_an_idle_restart_arrives() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    running.stop().await;
    world.emit("b").await;
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c10_an_early_row_that_commits_late_arrives_in_commit_order() {
    let world = World::start().await;
    let running = world.connector().await;
    let early = world.pg.connect_to(&world.database.name).await.unwrap();
    early.batch_execute("BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 't1')").await.unwrap();
    world.emit("t2").await;
    world.expect_ids("outflow:order", &["t2"]).await;
    running.crash().await;
    early.batch_execute("COMMIT").await.unwrap();
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["t2", "t1"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c13_columns_change_in_the_middle_of_a_transaction() {
    let world = World::start().await;
    let running = world.connector().await;
    world
        .execute(
            "BEGIN; SELECT outflow.emit('order', '1', 'T', '{\"n\": 1}', 'a');
             ALTER TABLE outflow.outbox ADD x int DEFAULT 5;
             SELECT outflow.emit('order', '1', 'T', '{\"n\": 2}', 'b');
             ALTER TABLE outflow.outbox DROP x;
             SELECT outflow.emit('order', '1', 'T', '{\"n\": 3}', 'c');
             ALTER TABLE outflow.outbox RENAME payload TO body;
             INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, body)
                 VALUES ('d', 'order', '1', 'T', '{\"n\": 4}');
             COMMIT",
        )
        .await;
    running.waiting_for("`payload`").await;
    world.expect_ids("outflow:order", &["a", "b", "c"]).await;
    let entries = world.entries("outflow:order").await;
    let fields: Vec<_> = entries.iter().map(|e| (e.get("payload"), e.get("x"))).collect();
    assert_eq!(
        fields,
        [(Some("{\"n\": 1}"), None), (Some("{\"n\": 2}"), Some("5")), (Some("{\"n\": 3}"), None),]
    );
    running.shutdown.cancel();
    running.task.await.unwrap().unwrap();

    // the old name is gone from the log for good: the mapping has to follow
    let mut world = world;
    world.config.source.columns.payload = "body".into();
    let running = world.connector().await;
    world.expect_ids("outflow:order", &["a", "b", "c", "d"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c21_settings_of_the_role_do_not_reach_the_stream() {
    let world = World::start().await;
    world
        .execute(
            "ALTER TABLE outflow.outbox ADD raw bytea DEFAULT '\\x00ff', ADD ratio float8 \
             DEFAULT 0.1::float8 + 0.2::float8, ADD due timestamptz \
             DEFAULT '2026-03-04 05:06:07+00', ADD span interval DEFAULT '1 day 2 hours';
             ALTER ROLE CURRENT_USER SET bytea_output = 'escape';
             ALTER ROLE CURRENT_USER SET datestyle = 'SQL, DMY';
             ALTER ROLE CURRENT_USER SET intervalstyle = 'iso_8601';
             ALTER ROLE CURRENT_USER SET extra_float_digits = -3;
             ALTER ROLE CURRENT_USER SET timezone = 'Asia/Kathmandu'",
        )
        .await;
    // one row through the snapshot, one through the log
    world.emit("a").await;
    let running = world.connector().await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    for entry in world.entries("outflow:order").await {
        assert_eq!(entry.get("raw"), Some("\\x00ff"));
        assert_eq!(entry.get("ratio"), Some("0.30000000000000004"));
        assert_eq!(entry.get("due"), Some("2026-03-04 05:06:07+00"));
        assert_eq!(entry.get("span"), Some("1 day 02:00:00"));
    }
    running.stop().await;
}

#[tokio::test]
async fn c22_c23_c24_payloads_arrive_byte_for_byte() {
    let world = World::start().await;
    world.execute("ALTER TABLE outflow.outbox ALTER payload TYPE json").await;
    let payloads = [
        r#"{"a":"x\u0000y"}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"n":9007199254740993,"u":18446744073709551616,"m":1e400,"d":0.10}"#,
        " {\"b\" :1, \"a\":1,\"b\":2 } ",
        "null",
        "\"\"",
    ];
    let running = world.connector().await;
    for (id, payload) in payloads.iter().enumerate() {
        let sql = "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, \
                   payload) VALUES ($1, 'order', '1', 'T', $2::text::json)";
        world.sql.execute(sql, &[&id.to_string(), payload]).await.unwrap();
    }
    world.expect_ids("outflow:order", &["0", "1", "2", "3", "4", "5"]).await;
    let entries = world.entries("outflow:order").await;
    let arrived: Vec<_> = entries.iter().map(|entry| entry.get("payload").unwrap()).collect();
    assert_eq!(arrived, payloads);
    running.stop().await;
}

#[tokio::test]
async fn c26_infinity_and_nan_are_text() {
    let world = World::start().await;
    world.execute("ALTER TABLE outflow.outbox ADD amount numeric DEFAULT 'NaN'").await;
    let running = world.connector().await;
    world
        .execute(
            "INSERT INTO outflow.outbox \
                 (event_id, aggregate_type, aggregate_id, event_type, created_at)
             VALUES ('a', 'order', '1', 'T', 'infinity'), ('b', 'order', '1', 'T', '-infinity'),
                    ('c', 'order', '1', 'T', '294276-12-31'), ('d', 'order', '1', 'T', \
                     '0044-03-15 BC')",
        )
        .await;
    world.expect_ids("outflow:order", &["a", "b", "c", "d"]).await;
    let entries = world.entries("outflow:order").await;
    assert_eq!(entries[0].get("created_at"), Some("infinity"));
    assert_eq!(entries[1].get("created_at"), Some("-infinity"));
    assert_eq!(entries[0].get("amount"), Some("NaN"));
    running.stop().await;
}

#[tokio::test]
async fn what_is_rolled_back_never_arrives() {
    let world = World::start().await;
    let running = world.connector().await;
    world
        .execute(
            "BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'gone'); ROLLBACK;
             BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'a');
             SAVEPOINT s; SELECT outflow.emit('order', '1', 'T', '{}', 'gone too');
             SELECT outflow.emit_message('order', '1', 'T', '{}', 'gone as well');
             ROLLBACK TO s; SELECT outflow.emit('order', '1', 'T', '{}', 'b'); COMMIT",
        )
        .await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn c30_a_table_that_is_rewritten_publishes_nothing_again() {
    let world = World::start().await;
    let running = world.connector().await;
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    world
        .execute(
            "ALTER TABLE outflow.outbox ALTER payload TYPE jsonb \
             USING payload || '{\"fixed\": true}'",
        )
        .await;
    world.emit("b").await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    // whoever mends payloads that way sees the row change, and no entry
    let sql = "SELECT payload::text FROM outflow.outbox WHERE event_id = 'a'";
    let row: String = world.sql.query_one(sql, &[]).await.unwrap().get(0);
    assert!(row.contains("fixed"), "{row}");
    let entries = world.entries("outflow:order").await;
    assert_eq!((entries[0].get("payload"), entries[1].get("payload")), (Some("{}"), Some("{}")));
    running.stop().await;
}

#[tokio::test]
async fn c47_a_long_transaction_beside_many_changes_of_the_catalog_arrives() {
    let world = World::start().await;
    let running = world.connector().await;
    let long = world.pg.connect_to(&world.database.name).await.unwrap();
    long.batch_execute("BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'long')")
        .await
        .unwrap();
    world
        .execute(
            "DO $$ BEGIN FOR i IN 1..1000 LOOP
                 CREATE TEMP TABLE t (); DROP TABLE t; COMMIT;
             END LOOP; END $$",
        )
        .await;
    world.emit("short").await;
    world.expect_ids("outflow:order", &["short"]).await;
    long.batch_execute("COMMIT").await.unwrap();
    world.expect_ids("outflow:order", &["short", "long"]).await;
    running.stop().await;
}

#[tokio::test]
async fn payloads_of_every_size_and_one_above_the_limit() {
    let mut world = World::start().await;
    world.logs.expect_warn("set aside as a dead letter");
    world.execute("ALTER TABLE outflow.outbox ALTER payload TYPE text").await;
    world.config.source.max_payload = 1 << 20;
    let running = world.connector().await;
    world
        .execute(
            "INSERT INTO outflow.outbox \
                 (event_id, aggregate_type, aggregate_id, event_type, payload)
             VALUES ('empty', 'order', '1', 'T', ''),
                    ('null', 'order', '1', 'T', NULL),
                    ('limit', 'order', '1', 'T', repeat('x', 1 << 20)),
                    ('above', 'order', '1', 'T', repeat('x', (1 << 20) + 1)),
                    ('after', 'order', '1', 'T', '1')",
        )
        .await;
    world.expect_ids("outflow:order", &["empty", "null", "limit", "after"]).await;
    let entries = world.entries("outflow:order").await;
    assert_eq!(entries[0].get("payload"), Some(""));
    assert_eq!(entries[1].get("payload"), None);
    assert_eq!(entries[2].get("payload").map(str::len), Some(1 << 20));
    let dead = world.entries("outflow:dead-letters:{outflow}").await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].get("event_id"), Some("above"));
    assert_eq!(
        dead[0].get("reason"),
        Some("the payload has 1048577 bytes, source.max_payload is 1048576")
    );
    running.stop().await;
}

#[tokio::test]
async fn a_row_without_its_aggregate_is_set_aside_and_the_stream_goes_on() {
    let world = World::start().await;
    world.logs.expect_warn("set aside as a dead letter");
    world.logs.expect_warn("may be NULL");
    world.execute("ALTER TABLE outflow.outbox ALTER aggregate_id DROP NOT NULL").await;
    let running = world.connector().await;
    world
        .execute(
            "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type)
             VALUES ('a', 'order', '1', 'T'), ('x', 'order', NULL, 'T'), ('b', 'order', '1', 'T')",
        )
        .await;
    world.expect_ids("outflow:order", &["a", "b"]).await;
    let dead = world.entries("outflow:dead-letters:{outflow}").await;
    assert_eq!(dead[0].get("reason"), Some("`aggregate_id` is NULL or empty"));
    assert_eq!(dead[0].get("column.event_type"), Some("T"));
    running.stop().await;
}

#[tokio::test]
async fn a_debezium_table_works_by_configuration_alone() {
    let mut world = World::start().await;
    world.logs.expect_warn("in which order its rows were inserted");
    world
        .execute(
            "CREATE TABLE events (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid \
             text NOT NULL, type text NOT NULL, payload jsonb, tenant text);
             CREATE PUBLICATION events FOR TABLE events WITH (publish = 'insert');
             INSERT INTO events VALUES ('00000000-0000-0000-0000-000000000001', 'order', '1', \
             'Placed', '{}', 'acme')",
        )
        .await;
    let source = &mut world.config.source;
    source.table.schema = "public".into();
    source.table.name = "events".into();
    source.publication = "events".into();
    source.columns.event_id = "id".into();
    source.columns.aggregate_type = "aggregatetype".into();
    source.columns.aggregate_id = "aggregateid".into();
    source.columns.event_type = "type".into();
    let running = world.connector().await;
    world
        .execute(
            "INSERT INTO events VALUES ('00000000-0000-0000-0000-000000000002', 'order', '1', \
             'Paid', '{}', NULL)",
        )
        .await;
    let ids = ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"];
    world.expect_ids("outflow:order", &ids).await;
    let entries = world.entries("outflow:order").await;
    assert_eq!(
        (entries[0].get("event_type"), entries[0].get("tenant")),
        (Some("Placed"), Some("acme"))
    );
    assert_eq!((entries[1].get("event_type"), entries[1].get("tenant")), (Some("Paid"), None));
    running.stop().await;
}

#[tokio::test]
async fn partitions_spread_aggregates_and_keep_each_in_order() {
    let mut world = World::start().await;
    world.config.sink.naming = outflow_event::StreamNaming::new("p:", 4);
    let running = world.connector().await;
    world
        .execute(
            "SELECT outflow.emit('order', (i % 10)::text, 'T', '{}', i::text, i) \
             FROM generate_series(1, 200) i",
        )
        .await;
    let keys = world.config.sink.naming.keys("order");
    let mut seen = 0;
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    while seen < 200 {
        assert!(tokio::time::Instant::now() < deadline, "{seen} of 200 arrived");
        seen = 0;
        for key in &keys {
            seen += world.ids(key).await.len();
        }
    }
    let mut used = 0;
    for key in &keys {
        let entries = world.entries(key).await;
        used += usize::from(!entries.is_empty());
        for id in 0..10 {
            let id = id.to_string();
            let seqs: Vec<i64> = entries
                .iter()
                .filter(|entry| entry.get("aggregate_id") == Some(&id))
                .map(|entry| entry.get("seq").unwrap().parse().unwrap())
                .collect();
            assert!(seqs.is_sorted() && (seqs.is_empty() || seqs.len() == 20), "{key}: {seqs:?}");
        }
    }
    assert!(used > 1, "ten aggregates use more than one of four partitions");
    running.stop().await;
}
