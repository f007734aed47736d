//! The initial snapshot: what it holds, where it meets the stream, and how it survives crashes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test"
)]

mod source;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outflow_relay::Error;
use outflow_relay::config::{Column, ColumnNames, SnapshotMode, TableName};
use outflow_relay::offset::{Offset, OffsetStore as _};
use outflow_relay::resume::{Decision, Wait};
use outflow_relay::snapshot::{Bootstrap, SnapshotReader, bootstrap, outbox_rows};
use outflow_sandbox::{Postgres, Shutdown, logs::Capture};
use source::{Broker, MemoryStore, Source, text, until};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

/// All that the outbox holds, as a set.
async fn outbox(source: &Source) -> BTreeSet<String> {
    source.texts("SELECT event_id FROM outflow.outbox").await.into_iter().collect()
}

/// Asserts that snapshot and stream together are the outbox, nothing missing and nothing twice.
async fn assert_exact(source: &Source, broker: &Broker, offset: &Offset) {
    let in_snapshot = broker.ids();
    for (position, id) in source.streamed_ids(offset.end_lsn).await {
        broker.publish(position, id);
    }
    let all = broker.ids();
    let set: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "{} of the snapshot doubled", in_snapshot.len());
    let committed = outbox(source).await;
    let missing: Vec<_> = committed.difference(&set).collect();
    let phantom: Vec<_> = set.difference(&committed).collect();
    assert!(missing.is_empty() && phantom.is_empty(), "missing {missing:?}, phantom {phantom:?}");
}

async fn emit(client: &Client, id: &str) {
    client
        .execute("SELECT outflow.emit('order', '1', 'T', '{}', $1)", &[&id])
        .await
        .unwrap_or_else(|error| panic!("{id}: {error:?}"));
}

/// Writes transactions of every shape until told to stop.
async fn write(client: Client, name: usize, stop: Arc<AtomicBool>) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let id = |part: &str| format!("{name}-{round}-{part}");
        client.batch_execute("BEGIN").await.unwrap();
        emit(&client, &id("plain")).await;
        client.batch_execute("SAVEPOINT a").await.unwrap();
        emit(&client, &id("released")).await;
        client.batch_execute("SAVEPOINT b").await.unwrap();
        emit(&client, &id("nested")).await;
        client.batch_execute("RELEASE b; RELEASE a; SAVEPOINT c").await.unwrap();
        emit(&client, &id("undone")).await;
        client.batch_execute("ROLLBACK TO c").await.unwrap();
        // some stay open for a while, so that they reach over the seam
        tokio::time::sleep(Duration::from_millis(u64::try_from(round * 7 % 30).unwrap())).await;
        let end = if round % 5 == 4 { "ROLLBACK" } else { "COMMIT" };
        client.batch_execute(end).await.unwrap();
        round += 1;
    }
}

#[tokio::test]
async fn snapshot_and_stream_meet_without_gap_or_double_under_writers() {
    let source = Source::start().await;
    for round in 0..3 {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for name in 0..4 {
            let client = source.session().await;
            writers.push(tokio::spawn(write(client, round * 10 + name, stop.clone())));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (mut store, broker) = (MemoryStore::default(), Broker::default());
        let offset = source.snapshot(&mut store, &broker, 7).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.unwrap();
        }
        assert!(!broker.ids().is_empty());
        assert_exact(&source, &broker, &offset).await;
        source.run("SELECT pg_drop_replication_slot('outflow')").await;
    }
}

/// Whether some session waits for the transaction of this session to end.
async fn is_waited_for(source: &Source, client: &Client) -> bool {
    let xid: String =
        client.query_one("SELECT pg_current_xact_id()::xid::text", &[]).await.unwrap().get(0);
    let sql = format!(
        "SELECT pid::text FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted \
         AND transactionid::text = '{xid}'"
    );
    !source.texts(&sql).await.is_empty()
}

#[tokio::test]
async fn transactions_that_are_open_across_the_slot_creation_are_streamed_whole() {
    let source = Source::start().await;
    source.emit("old").await;
    let sessions = [source.session().await, source.session().await, source.session().await];
    let [before, between, across] = &sessions;
    before.batch_execute("BEGIN; SAVEPOINT s").await.unwrap();
    emit(before, "before").await;

    let store = MemoryStore::default();
    let (mut own, source) = (store.clone(), Arc::new(source));
    let begun = tokio::spawn({
        let source = Arc::clone(&source);
        async move { source.begin(&mut own).await.map(|(offset, _)| offset) }
    });
    until("the slot waits for the first", || is_waited_for(&source, before)).await;
    between.batch_execute("BEGIN").await.unwrap();
    emit(between, "between").await;
    before.batch_execute("COMMIT").await.unwrap();
    until("the slot waits for the second", || is_waited_for(&source, between)).await;
    across.batch_execute("BEGIN; SAVEPOINT s").await.unwrap();
    emit(across, "across in a savepoint").await;
    across.batch_execute("RELEASE s; SAVEPOINT t").await.unwrap();
    emit(across, "across and undone").await;
    across.batch_execute("ROLLBACK TO t; SAVEPOINT u").await.unwrap();
    between.batch_execute("COMMIT").await.unwrap();
    begun.await.unwrap().unwrap();

    // the slot is there, the transaction is still open: nothing of it is in the snapshot
    emit(across, "across after the slot").await;
    across.batch_execute("COMMIT").await.unwrap();
    source.emit("new").await;
    let broker = Broker::default();
    let offset = source.snapshot(&mut store.clone(), &broker, 2).await.unwrap();
    let mut snapshot = broker.ids();
    snapshot.sort();
    assert_eq!(snapshot, ["before", "between", "old"]);
    assert_exact(&source, &broker, &offset).await;
    let streamed: Vec<String> =
        source.streamed_ids(offset.end_lsn).await.into_iter().map(|(_, id)| id).collect();
    assert_eq!(streamed, ["across in a savepoint", "across after the slot", "new"]);
}

#[tokio::test]
async fn a_snapshot_after_aborted_transactions_is_readable() {
    // PostgreSQL gives it an xmin above its xmax, which the text form may not have
    let source = Source::start().await;
    let open = source.session().await;
    open.batch_execute("BEGIN").await.unwrap();
    emit(&open, "old").await;
    let store = MemoryStore::default();
    let (mut own, source) = (store.clone(), Arc::new(source));
    let begun = tokio::spawn({
        let source = Arc::clone(&source);
        async move { source.begin(&mut own).await.map(|(offset, _)| offset) }
    });
    until("the slot waits", || is_waited_for(&source, &open)).await;
    source.run("BEGIN; SELECT outflow.emit('order', '1', 'T', '{}', 'undone'); ROLLBACK").await;
    source.run("BEGIN; SELECT pg_current_xact_id(); ROLLBACK").await;
    open.batch_execute("COMMIT").await.unwrap();
    begun.await.unwrap().unwrap();
    let broker = Broker::default();
    let offset = source.snapshot(&mut store.clone(), &broker, 10).await.unwrap();
    assert_eq!(broker.ids(), ["old"]);
    assert_exact(&source, &broker, &offset).await;
}

#[tokio::test]
async fn a_crash_between_any_two_steps_changes_nothing() {
    let source = Source::start().await;
    for id in 0..10 {
        source.emit(&format!("old-{id}")).await;
    }
    // planned, begun, four pages, complete: at every one a crash, before and after it took effect
    for (at, took_effect) in (0..7).flat_map(|at| [(at, false), (at, true)]) {
        let (store, broker) = (MemoryStore::default(), Broker::default());
        store.crash_at(at, took_effect);
        let mut last = Err(Error::SinkUnavailable("not yet".into()));
        for attempt in 0..2 {
            last = source.snapshot(&mut store.clone(), &broker, 3).await;
            source.emit(&format!("new-{at}-{took_effect}-{attempt}")).await;
        }
        assert!(!store.crash_pending(), "no {at}-th save");
        let offset = last.unwrap_or_else(|error| panic!("after a crash at {at}: {error}"));
        assert_exact(&source, &broker, &offset).await;
        source.run("SELECT pg_drop_replication_slot('outflow')").await;
    }
}

#[tokio::test]
async fn a_slot_that_a_crashed_attempt_left_is_dropped() {
    let source = Source::start().await;
    source.emit("a").await;
    let store = MemoryStore::default();
    // the slot is created, the offset with its snapshot is not stored any more
    store.crash_at(1, false);
    assert!(source.begin(&mut store.clone()).await.is_err());
    let planned = store.stored().unwrap();
    assert_eq!(planned.snapshot.as_ref().unwrap().visible, "");
    let decision = source.decide(Some(&planned)).await;
    assert!(matches!(decision, Decision::Bootstrap { drop_slot: true, .. }), "{decision:?}");
    let before = source.lsn("SELECT confirmed_flush_lsn FROM pg_replication_slots").await;
    source.emit("b").await;
    let broker = Broker::default();
    let offset = source.snapshot(&mut store.clone(), &broker, 10).await.unwrap();
    assert!(offset.end_lsn > before);
    assert_eq!(broker.ids(), ["a", "b"]);
    assert_exact(&source, &broker, &offset).await;
}

#[tokio::test]
async fn without_a_snapshot_only_what_is_new_is_streamed() {
    let mut source = Source::start().await;
    source.config.snapshot = SnapshotMode::Never;
    source.emit("old").await;
    let mut store = MemoryStore::default();
    let (offset, reader) = source.begin(&mut store).await.unwrap();
    assert!(reader.is_none() && offset.snapshot.is_none());
    assert_eq!(store.load().await.unwrap(), Some(offset.clone()));
    source.emit("new").await;
    let streamed = source.streamed_ids(offset.end_lsn).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["new"]);
}

#[tokio::test]
async fn a_second_connector_waits_for_the_snapshot_of_the_first() {
    let source = Source::start().await;
    source.emit("a").await;
    let store = MemoryStore::default();
    let (offset, reader) = source.begin(&mut store.clone()).await.unwrap();
    let second = source.begin(&mut store.clone()).await.unwrap_err();
    assert!(matches!(second, Error::NotYet(Wait::OtherSnapshot { .. })), "{second}");

    // a connector that has decided on an offset that is no longer the stored one
    let facts = source.facts(None).await;
    let plan = Bootstrap {
        source: &source.config,
        facts: &facts,
        stored: None,
        drop_slot: false,
        epoch: offset.epoch,
        stop: &CancellationToken::new(),
    };
    drop(reader);
    let (mut link, sql) = (source.link().await, source.session().await);
    until("the first connector's session has ended", || async {
        source.texts("SELECT pid::text FROM pg_locks WHERE locktype = 'advisory'").await.is_empty()
    })
    .await;
    let late = bootstrap(plan, &mut link, &sql, &mut store.clone(), &mut |_| {}).await.unwrap_err();
    assert!(matches!(late, Error::NotYet(Wait::OffsetChanged { .. })), "{late}");
    assert_eq!(store.stored(), Some(offset));
    drop(sql);
    until("its session has ended too", || async {
        source.texts("SELECT pid::text FROM pg_locks WHERE locktype = 'advisory'").await.is_empty()
    })
    .await;
    let broker = Broker::default();
    source.snapshot(&mut store.clone(), &broker, 10).await.unwrap();
    assert_eq!(broker.ids(), ["a"]);
}

#[tokio::test]
async fn a_slot_that_waits_for_an_old_transaction_says_for_which() {
    let source = Source::start().await;
    let old = source.session().await;
    old.batch_execute("BEGIN").await.unwrap();
    emit(&old, "open").await;
    let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let facts = source.facts(None).await;
    let plan = Bootstrap {
        source: &source.config,
        facts: &facts,
        stored: None,
        drop_slot: false,
        epoch: outflow_event::Epoch(0),
        stop: &CancellationToken::new(),
    };
    let (mut link, sql) = (source.link().await, source.session().await);
    let mut store = MemoryStore::default();
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = |reason: String| drop(told.send(reason));
    let (offset, reason) =
        tokio::join!(bootstrap(plan, &mut link, &sql, &mut store, &mut waiting), async {
            let reason = hears.recv().await.unwrap();
            old.batch_execute("COMMIT").await.unwrap();
            reason
        });
    assert!(reason.contains(&format!("process {pid} of postgres")), "{reason}");
    assert!(offset.unwrap().unwrap().snapshot.is_some());
}

/// Reads a whole snapshot and returns the given column of every row.
async fn read(source: &Source, column: &str, page: usize) -> (Vec<Option<String>>, String) {
    let mut store = MemoryStore::default();
    let (offset, reader) = source.begin(&mut store).await.unwrap();
    let mut reader = reader.unwrap();
    let order = reader.order();
    let at = reader.columns().iter().position(|name| name == column).unwrap();
    let (mut progress, mut values) = (offset.snapshot.unwrap(), Vec::new());
    loop {
        let rows = reader.next_page(page, 1 << 20).await.unwrap();
        let Some(last) = rows.last() else { return (values, order) };
        values.extend(rows.iter().map(|row| text(row.columns[at].as_ref())));
        // every page by a reader of its own, as after a crash
        progress.last_key.clone_from(&last.key);
        drop(reader);
        until("the reader's session has ended", || async {
            let sql = "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory'";
            source.texts(sql).await.is_empty()
        })
        .await;
        let client = source.session().await;
        reader = SnapshotReader::open(client, &source.config, &progress).await.unwrap();
    }
}

#[tokio::test]
async fn rows_come_in_the_order_of_an_integer_key() {
    let source = Source::start().await;
    // numbers, not texts: 9 before 10
    source
        .run(
            "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type) \
              SELECT 'e' || n, 'order', '1', 'T' FROM generate_series(1, 12) n",
        )
        .await;
    let (ids, order) = read(&source, "event_id", 5).await;
    assert_eq!(order, "id");
    let expected: Vec<_> = (1..=12).map(|n| Some(format!("e{n}"))).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn a_configured_order_is_completed_by_the_key() {
    let mut source = Source::start().await;
    source.config.order_by = vec!["seq".into()];
    source
        .run(
            "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, seq) \
              SELECT 'e' || n, 'order', '1', 'T', 7 - n % 3 FROM generate_series(1, 9) n",
        )
        .await;
    let (ids, order) = read(&source, "event_id", 2).await;
    assert_eq!(order, "seq, id");
    let expected = ["e2", "e5", "e8", "e1", "e4", "e7", "e3", "e6", "e9"];
    assert_eq!(ids.into_iter().flatten().collect::<Vec<_>>(), expected);

    source.run("SELECT pg_drop_replication_slot('outflow')").await;
    source.run("UPDATE outflow.outbox SET seq = NULL WHERE event_id = 'e4'").await;
    let error = source.begin(&mut MemoryStore::default()).await.unwrap_err().to_string();
    assert!(error.contains("`seq`") && error.contains("NULL"), "{error}");
    source.run("SELECT pg_drop_replication_slot('outflow')").await;
    source.config.order_by = vec!["sequence".into()];
    let error = source.begin(&mut MemoryStore::default()).await.unwrap_err().to_string();
    assert!(error.contains("source.order_by") && error.contains("`sequence`"), "{error}");
}

/// A table as Debezium's outbox event router expects it.
async fn debezium(builder: outflow_sandbox::PostgresBuilder) -> Source {
    let mut source = Source::bare(builder).await;
    source
        .run(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, \
               aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb); \
             CREATE PUBLICATION outflow FOR TABLE outbox WITH (publish = 'insert')",
        )
        .await;
    source.config.table = TableName { schema: "public".into(), name: "outbox".into() };
    source.config.columns = ColumnNames {
        event_id: "id".into(),
        aggregate_type: "aggregatetype".into(),
        aggregate_id: "aggregateid".into(),
        event_type: "type".into(),
        seq: Column::None,
        headers: Column::None,
        created_at: Column::None,
        omit: Vec::new(),
        ..ColumnNames::default()
    };
    source
}

#[tokio::test]
async fn a_debezium_table_is_read_by_its_uuid() {
    let source = debezium(Postgres::builder()).await;
    source
        .run(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', '1', 'T', '{\"n\": 1.10}' \
              FROM generate_series(1, 20)",
        )
        .await;
    let (ids, order) = read(&source, "id", 6).await;
    assert_eq!(order, "id");
    let expected = source.texts("SELECT id::text FROM outbox ORDER BY id").await;
    assert_eq!(ids.into_iter().flatten().collect::<Vec<_>>(), expected);
    assert_eq!(outbox_rows(&source.sql, &source.config.table).await.unwrap().to_string(), "20");
}

#[tokio::test]
async fn without_a_primary_key_the_event_id_must_tell_rows_apart() {
    let mut source = debezium(Postgres::builder()).await;
    source.config.columns.created_at = Column::IfPresent("created_at".into());
    source
        .run(
            "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP NOT NULL, \
                ALTER id TYPE text, \
                ADD created_at timestamptz NOT NULL DEFAULT '2020-01-01 00:00:00.000001+01'; \
              INSERT INTO outbox VALUES ('b''\\', 'o', '1', 'T'), ('a\"', 'o', '1', 'T'), \
                ('', 'o', '1', 'T'), (E'c\\n', 'o', '1', 'T')",
        )
        .await;
    let (ids, order) = read(&source, "id", 1).await;
    assert_eq!(order, "created_at, id");
    let expected = source.texts("SELECT id FROM outbox ORDER BY id").await;
    assert_eq!(ids.into_iter().flatten().collect::<Vec<_>>(), expected);

    for (row, complaint) in [("NULL", "NULL"), ("'a\"'", "more than once")] {
        source.run("SELECT pg_drop_replication_slot('outflow')").await;
        source.run(&format!("INSERT INTO outbox VALUES ({row}, 'o', '1', 'T')")).await;
        let error = source.begin(&mut MemoryStore::default()).await.unwrap_err().to_string();
        assert!(error.contains("`id`") && error.contains(complaint), "{error}");
        source.run("DELETE FROM outbox WHERE ctid = (SELECT max(ctid) FROM outbox)").await;
    }
}

#[tokio::test]
async fn values_have_the_same_text_in_snapshot_and_stream() {
    let source = Source::start().await;
    // settings that change the text of values, and values that a cast to text would change
    source
        .run(
            "ALTER ROLE postgres SET bytea_output = 'escape'; \
             ALTER ROLE postgres SET DateStyle = 'SQL, DMY'; \
             ALTER ROLE postgres SET IntervalStyle = 'sql_standard'; \
             ALTER ROLE postgres SET TimeZone = 'Asia/Kathmandu'; \
             ALTER ROLE postgres SET extra_float_digits = -3; \
             CREATE TYPE mood AS ENUM ('sad', 'glad'); \
             CREATE DOMAIN short AS varchar(5); \
             ALTER TABLE outflow.outbox ADD yes bool, ADD padded char(6), ADD address inet, \
               ADD raw bytea, ADD at timestamptz, ADD took interval, ADD ratio float8, \
               ADD exact numeric, ADD list text[], ADD feeling mood, ADD word short, \
               ADD nothing text, ADD gone int, ADD doubled text \
               GENERATED ALWAYS AS (event_id || event_id) STORED; \
             ALTER TABLE outflow.outbox DROP gone",
        )
        .await;
    let insert = |id: &str| {
        format!(
            "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, \
               payload, created_at, yes, padded, address, raw, at, took, ratio, exact, list, \
               feeling, word) \
             VALUES ('{id}', 'o', '', 'T', '{{\"n\": 9007199254740993, \"d\": 0.10}}', \
               '2024-02-03 04:05:06.789+00', true, 'ab', '10.0.0.1', '\\xdeadbeef00', \
               '1999-12-31 23:59:59.5+00', '1 day 02:03:04', 0.1::float8 + 0.2::float8, 1.10, \
               ARRAY['a', NULL, 'b \"c\"'], 'glad', 'x')"
        )
    };
    source.run(&insert("old")).await;
    let mut store = MemoryStore::default();
    let (offset, reader) = source.begin(&mut store).await.unwrap();
    let mut reader = reader.unwrap();
    let row = reader.next_page(10, 1 << 20).await.unwrap().remove(0);
    let snapshot: Vec<_> = row.columns.iter().map(|value| text(value.as_ref())).collect();
    assert!(!reader.columns().contains(&"doubled".to_owned()));
    source.run(&insert("new")).await;
    let start = offset.after_snapshot().unwrap().end_lsn;
    let streamed = source.stream(start).await.remove(0).1;
    let names = reader.columns();
    assert_eq!(snapshot.len(), streamed.len());
    for ((name, old), new) in names.iter().zip(snapshot).zip(streamed) {
        if !["id", "event_id"].contains(&name.as_str()) {
            assert_eq!(old, new, "{name}");
        }
    }
}

#[tokio::test]
async fn a_column_list_holds_for_the_snapshot_too() {
    let source = Source::start().await;
    source
        .run(
            "ALTER PUBLICATION outflow SET TABLE outflow.outbox \
                (event_id, aggregate_type, aggregate_id, event_type, payload)",
        )
        .await;
    source.emit("a").await;
    let (_, reader) = source.begin(&mut MemoryStore::default()).await.unwrap();
    let mut reader = reader.unwrap();
    let listed = ["event_id", "aggregate_type", "aggregate_id", "event_type", "payload"];
    assert_eq!(reader.columns(), listed);
    let rows = reader.next_page(10, 1 << 20).await.unwrap();
    assert_eq!(rows[0].columns.len(), 5);
    // the order needs no column of the list
    assert_eq!(rows[0].key, ["1"]);
}

#[tokio::test]
async fn a_page_ends_where_its_bytes_end() {
    let source = Source::start().await;
    source
        .run(
            "INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, \
                payload) SELECT 'e' || n, 'o', '1', 'T', to_jsonb(repeat('x', 100000)) \
              FROM generate_series(1, 30) n",
        )
        .await;
    let (_, reader) = source.begin(&mut MemoryStore::default()).await.unwrap();
    let mut reader = reader.unwrap();
    let mut sizes = Vec::new();
    loop {
        let rows = reader.next_page(1000, 350_000).await.unwrap();
        if rows.is_empty() {
            break;
        }
        sizes.push(rows.len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), 30);
    assert!(sizes.iter().all(|size| *size <= 4), "{sizes:?}");
    assert!(reader.next_page(1000, 1).await.unwrap().is_empty());
}

#[tokio::test]
async fn c15_a_partitioned_outbox_is_read_through_its_root() {
    let mut source = debezium(Postgres::builder()).await;
    source
        .run(
            "DROP TABLE outbox; \
             CREATE TABLE outbox (id int, aggregatetype text NOT NULL, aggregateid text NOT NULL, \
               type text NOT NULL, payload jsonb, PRIMARY KEY (id)) PARTITION BY RANGE (id); \
             CREATE TABLE low PARTITION OF outbox FOR VALUES FROM (0) TO (10); \
             CREATE TABLE high PARTITION OF outbox FOR VALUES FROM (10) TO (100); \
             DROP PUBLICATION outflow; CREATE PUBLICATION outflow FOR TABLE outbox \
               WITH (publish = 'insert', publish_via_partition_root = true); \
             INSERT INTO outbox SELECT n, 'o', '1', 'T' FROM generate_series(1, 20) n",
        )
        .await;
    source.config.order_by = vec!["id".into()];
    let (ids, _) = read(&source, "id", 3).await;
    assert_eq!(ids, (1..=20).map(|n| Some(n.to_string())).collect::<Vec<_>>());
}

#[tokio::test]
async fn transaction_ids_beyond_32_bits_are_told_apart() {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    let source = Source::start().await;
    source.emit("epoch 0").await;
    source.pg.stop(Shutdown::Fast, Duration::from_secs(20)).await.unwrap();
    let data = source.pg.data_dir();
    let owner = std::fs::metadata(&data).unwrap();
    let reset = std::process::Command::new(source.pg.tool("pg_resetwal"))
        .args(["--epoch=5", "--pgdata"])
        .arg(&data)
        .current_dir("/")
        .uid(owner.uid())
        .gid(owner.gid())
        .output()
        .unwrap();
    assert!(reset.status.success(), "{reset:?}");
    source.pg.start_again().await.unwrap();
    let source = Source { sql: source.session().await, ..source };
    source.emit("epoch 5").await;
    let store = MemoryStore::default();
    source.begin(&mut store.clone()).await.unwrap();
    let visible = store.stored().unwrap().snapshot.unwrap().visible;
    let xmin: u64 = visible.split(':').next().unwrap().parse().unwrap();
    assert!(xmin > 5 << 32, "{visible}");
    source.emit("after the slot").await;
    let broker = Broker::default();
    let offset = source.snapshot(&mut store.clone(), &broker, 10).await.unwrap();
    assert_eq!(broker.ids(), ["epoch 0", "epoch 5"]);
    assert_exact(&source, &broker, &offset).await;
}

#[tokio::test]
async fn rows_that_change_while_the_snapshot_runs_are_reported() {
    let logs = Capture::install();
    logs.expect_warn("rows of the outbox were updated or deleted");
    let source = Source::start().await;
    source.emit("a").await;
    source.emit("b").await;
    let (_, reader) = source.begin(&mut MemoryStore::default()).await.unwrap();
    let mut reader = reader.unwrap();
    let other = source.session().await;
    other.batch_execute("DELETE FROM outflow.outbox WHERE event_id = 'b'").await.unwrap();
    // statistics are reported when a session ends, at the latest
    drop(other);
    until("the delete is counted", || async {
        !source
            .texts("SELECT n_tup_del::text FROM pg_stat_user_tables WHERE n_tup_del > 0")
            .await
            .is_empty()
    })
    .await;
    let rows = reader.next_page(10, 1 << 20).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert!(reader.next_page(10, 1 << 20).await.unwrap().is_empty());
    assert_eq!(logs.matching("about 1 rows of the outbox").len(), 1);
}
