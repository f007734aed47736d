//! Offset, slot and server that do not fit together, on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test"
)]

mod source;

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;

use outflow_event::{Epoch, Lsn};
use outflow_pgoutput::{FeedbackOptions, StartOptions};
use outflow_relay::offset::{Offset, OffsetStore as _};
use outflow_relay::resume::{self, Decision, Refusal, Wait};
use outflow_sandbox::{Postgres, Shutdown};
use source::{Broker, MemoryStore, PATIENCE, Source, until};

/// A source whose connector has published `a` and stopped in order.
async fn stopped() -> (Source, MemoryStore, Offset) {
    stopped_on(Postgres::builder()).await
}

async fn stopped_on(builder: outflow_sandbox::PostgresBuilder) -> (Source, MemoryStore, Offset) {
    let source = Source::with(builder).await;
    let mut store = MemoryStore::default();
    let mut offset = source.snapshot(&mut store, &Broker::default(), 10).await.unwrap();
    source.emit("a").await;
    let (position, _) = source.streamed_ids(offset.end_lsn).await.remove(0);
    offset.position = Some(position);
    offset.end_lsn = confirm(&source, offset.end_lsn).await;
    store.save(&offset).await.unwrap();
    (source, store, offset)
}

/// Confirms everything up to now to the slot, as a connector does that has stored it.
async fn confirm(source: &Source, start: Lsn) -> Lsn {
    let end = source.lsn("SELECT pg_current_wal_lsn()").await;
    let options = StartOptions { start, ..StartOptions::new("outflow", "outflow") };
    let link = source.link().await;
    let mut stream = link.start_replication(options, FeedbackOptions::default()).await.unwrap();
    while stream.received() < end {
        tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
    }
    let received = stream.received();
    stream.confirm(received).unwrap();
    stream.stop(Duration::from_secs(5)).await.unwrap();
    confirmed(source).await
}

async fn confirmed(source: &Source) -> Lsn {
    source.lsn("SELECT confirmed_flush_lsn FROM pg_replication_slots").await
}

fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_connector_that_stopped_in_order_goes_on_where_it_stopped() {
    let (source, _, offset) = stopped().await;
    source.emit("b").await;
    let Decision::Resume { from, fork: None } = source.decide(Some(&offset)).await else {
        panic!()
    };
    assert_eq!(from.resume_point(), offset.resume_point());
    let streamed = source.streamed_ids(from.end_lsn).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn c36_a_slot_in_use_is_waited_for() {
    let (source, _, offset) = stopped().await;
    let options = StartOptions::new("outflow", "outflow");
    let link = source.link().await;
    let pid = link.process_id();
    let stream = link.start_replication(options, FeedbackOptions::default()).await.unwrap();
    let Decision::Wait(wait) = source.decide(Some(&offset)).await else { panic!() };
    assert!(matches!(&wait, Wait::SlotActive { pid: found, .. } if *found == pid), "{wait}");
    stream.stop(Duration::from_secs(5)).await.unwrap();
    until("the slot is free", || async {
        matches!(source.decide(Some(&offset)).await, Decision::Resume { .. })
    })
    .await;
}

#[tokio::test]
async fn c38_an_invalidated_slot_is_refused_with_the_gap() {
    let builder = Postgres::builder()
        .setting("max_slot_wal_keep_size", "16MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "32MB");
    let (source, _, offset) = stopped_on(builder).await;
    source.emit("x").await;
    for _ in 0..6 {
        source
            .run("SELECT pg_logical_emit_message(false, 'fill', 'x'); SELECT pg_switch_wal()")
            .await;
    }
    source.run("CHECKPOINT").await;
    until("the slot is lost", || async {
        source.run("SELECT pg_switch_wal(); CHECKPOINT").await;
        source.texts("SELECT wal_status FROM pg_replication_slots").await == ["lost"]
    })
    .await;
    let refusal = refusal(source.decide(Some(&offset)).await);
    let text = refusal.to_string();
    assert!(matches!(refusal, Refusal::SlotLost { .. }), "{text}");
    assert!(text.contains(&offset.end_lsn.to_string()) && text.contains("MiB of log"), "{text}");
    assert!(text.contains("`outflow "), "{text}");
}

#[tokio::test]
async fn c39_a_slot_that_was_dropped_or_created_again_is_refused() {
    let (source, _, offset) = stopped().await;
    source.emit("gap").await;
    source.run("SELECT pg_drop_replication_slot('outflow')").await;
    let missing = refusal(source.decide(Some(&offset)).await);
    assert!(matches!(missing, Refusal::SlotMissing { .. }), "{missing}");
    assert!(missing.to_string().contains("`outflow` does not exist"), "{missing}");

    source.run("SELECT pg_create_logical_replication_slot('outflow', 'pgoutput')").await;
    source.emit("b").await;
    let ahead = refusal(source.decide(Some(&offset)).await);
    let text = ahead.to_string();
    assert!(matches!(ahead, Refusal::SlotAhead { .. }), "{text}");
    let slot = confirmed(&source).await;
    assert!(text.contains(&slot.to_string()), "{text}");
    assert!(text.contains(&offset.end_lsn.to_string()), "{text}");
}

#[tokio::test]
async fn whoever_looks_from_outside_is_told_of_a_refusal_unless_a_rewind_point_mends_it() {
    let (source, _, offset) = stopped().await;
    let refusal = async || resume::refusal(&source.config, Some(&offset)).await.unwrap();
    assert_eq!(refusal().await, None, "it would stream");
    source
        .run("SELECT pg_copy_logical_replication_slot('outflow', 'outflow_rewind_1', false)")
        .await;
    source.emit("gap").await;
    source.run("SELECT pg_drop_replication_slot('outflow')").await;
    assert_eq!(refusal().await, None, "the slot is put back to its rewind point");
    source.run("SELECT pg_drop_replication_slot('outflow_rewind_1')").await;
    let missing = refusal().await;
    assert!(matches!(missing, Some(Refusal::SlotMissing { .. })), "{missing:?}");
}

#[tokio::test]
async fn c40_another_cluster_behind_the_same_name_is_refused() {
    let (source, _, offset) = stopped().await;
    source.pg.stop(Shutdown::Fast, Duration::from_secs(20)).await.unwrap();
    let data = source.pg.data_dir();
    let old = data.with_file_name("old");
    std::fs::rename(&data, &old).unwrap();
    as_owner(
        &old,
        &source.pg.tool("initdb"),
        &["-A", "trust", "-U", "postgres", "-N", "-D"],
        &data,
    );
    for file in ["postgresql.conf", "pg_hba.conf"] {
        std::fs::copy(old.join(file), data.join(file)).unwrap();
    }
    source.pg.start_again().await.unwrap();
    let sql = source.pg.connect().await.unwrap();
    let database = source.config.connect.database();
    sql.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let source = Source { sql: source.session().await, ..source };
    source.run("SELECT pg_create_logical_replication_slot('outflow', 'pgoutput')").await;

    let own = source.facts(None).await.server.system_identifier;
    assert_ne!(offset.system_identifier, own);
    let refusal = refusal(source.decide(Some(&offset)).await);
    let text = refusal.to_string();
    assert!(matches!(refusal, Refusal::OtherCluster { .. }), "{text}");
    assert!(text.contains(&offset.system_identifier) && text.contains(&own), "{text}");
}

#[tokio::test]
async fn c49_c50_an_offset_beyond_the_log_is_refused_and_the_slot_left_alone() {
    let (source, _, offset) = stopped().await;
    let before = confirmed(&source).await;
    let ahead = Offset { end_lsn: "FFF/0".parse().unwrap(), ..offset.clone() };
    let refusal = refusal(source.decide(Some(&ahead)).await);
    let text = refusal.to_string();
    assert!(matches!(refusal, Refusal::AheadOfServer { .. }), "{text}");
    assert!(text.contains("FFF/0") && text.contains("TiB"), "{text}");
    assert_eq!(confirmed(&source).await, before);
    source.emit("b").await;
    let streamed = source.streamed_ids(offset.end_lsn).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn c53_a_slot_without_an_offset_is_taken_up_where_it_stands() {
    let (source, _, offset) = stopped().await;
    source.emit("b").await;
    let Decision::Adopt { from } = source.decide(None).await else { panic!() };
    assert_eq!(from.end_lsn, offset.end_lsn);
    let streamed = source.streamed_ids(from.end_lsn).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn slots_of_another_kind_are_refused() {
    let source = Source::start().await;
    for (create, complaint) in [
        ("SELECT pg_create_physical_replication_slot('outflow')", "physical"),
        ("SELECT pg_create_logical_replication_slot('outflow', 'test_decoding')", "test_decoding"),
        (
            "SELECT pg_create_logical_replication_slot('outflow', 'pgoutput', false, true)",
            "two_phase",
        ),
    ] {
        // test_decoding is not installed everywhere
        if source.sql.batch_execute(create).await.is_err() {
            continue;
        }
        let refusal = refusal(source.decide(None).await);
        assert!(refusal.to_string().contains(complaint), "{refusal}");
        source.run("SELECT pg_drop_replication_slot('outflow')").await;
    }
    let elsewhere = source.pg.fresh_database().await.unwrap();
    let sql = source.pg.connect_to(&elsewhere.name).await.unwrap();
    sql.batch_execute("SELECT pg_create_logical_replication_slot('outflow', 'pgoutput')")
        .await
        .unwrap();
    let refusal = refusal(source.decide(None).await);
    assert!(refusal.to_string().contains(&elsewhere.name), "{refusal}");
}

#[tokio::test]
async fn c55_a_partly_published_transaction_is_resumed_after_its_published_part() {
    let (source, _, offset) = stopped().await;
    source.run("BEGIN").await;
    for id in 0..5 {
        source.emit(&format!("t{id}")).await;
    }
    source.run("COMMIT").await;
    let third = source.streamed_ids(offset.end_lsn).await.remove(2).0;
    let within = Offset { position: Some(third), ..offset };
    let Decision::Resume { from, .. } = source.decide(Some(&within)).await else { panic!() };
    let point = from.resume_point();
    assert_eq!((point.lsn, point.published), (third.commit_lsn, 3));
    let rest: Vec<_> = source
        .streamed_ids(from.end_lsn)
        .await
        .into_iter()
        .filter(|(at, _)| (at.commit_lsn, at.index) >= (point.lsn, point.published))
        .map(|(_, id)| id)
        .collect();
    assert_eq!(rest, ["t3", "t4"]);
}

/// Runs a tool as the owner of a data folder.
fn as_owner(data: &Path, tool: &Path, args: &[&str], target: &Path) {
    let owner = std::fs::metadata(data).unwrap();
    let output = std::process::Command::new(tool)
        .args(args)
        .arg(target)
        .current_dir("/")
        .uid(owner.uid())
        .gid(owner.gid())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {output:?}", tool.display());
}

/// Makes the server go through a promotion in place: it becomes a standby of nothing and is
/// promoted. Its slots stay, as with a standby that keeps them (PostgreSQL 17, Patroni).
async fn promote(source: Source) -> Source {
    let source = demote(source).await;
    source.run("SELECT pg_promote(true, 30)").await;
    source
}

/// Makes the server a standby of nothing.
async fn demote(source: Source) -> Source {
    source.pg.stop(Shutdown::Fast, Duration::from_secs(20)).await.unwrap();
    let data = source.pg.data_dir();
    as_owner(&data, Path::new("touch"), &["--"], &data.join("standby.signal"));
    source.pg.start_again().await.unwrap();
    Source { sql: source.session().await, ..source }
}

#[tokio::test]
async fn c43_a_standby_is_waited_for() {
    let (source, _, offset) = stopped().await;
    let source = demote(source).await;
    let decision = source.decide(Some(&offset)).await;
    if source.pg.version() < 16 {
        assert!(matches!(decision, Decision::Wait(Wait::Standby { .. })), "{decision:?}");
    } else {
        assert!(matches!(decision, Decision::Resume { .. }), "{decision:?}");
    }
}

#[tokio::test]
async fn a_promotion_above_what_is_published_keeps_the_epoch() {
    let (source, _, offset) = stopped().await;
    source.emit("b").await;
    let source = promote(source).await;
    source.emit("c").await;
    let facts = source.facts(Some(&offset)).await;
    assert_eq!(facts.server.timeline, 2);
    assert_eq!(facts.history.len(), 1);
    let Decision::Resume { from, fork: None } = source.decide(Some(&offset)).await else {
        panic!()
    };
    assert_eq!((from.timeline, from.epoch), (2, Epoch(0)));
    let streamed = source.streamed_ids(from.end_lsn).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["b", "c"]);
    // the first timeline is over
    let old = Offset { timeline: 3, ..offset };
    assert!(matches!(refusal(source.decide(Some(&old)).await), Refusal::TimelineBehind { .. }));
}

#[tokio::test]
async fn c41_published_events_that_a_promotion_lost_raise_the_epoch() {
    let (source, _, offset) = stopped().await;
    // a copy of the cluster that does not have what comes now, and is promoted in its place
    source.run("CHECKPOINT").await;
    source.pg.stop(Shutdown::Fast, Duration::from_secs(20)).await.unwrap();
    let data = source.pg.data_dir();
    let copy = data.with_file_name("copy");
    as_owner(&data, Path::new("cp"), &["-a", data.to_str().unwrap()], &copy);
    source.pg.start_again().await.unwrap();
    let source = Source { sql: source.session().await, ..source };
    source.emit("lost").await;
    let (position, _) = source.streamed_ids(offset.end_lsn).await.remove(0);
    let end_lsn = source.lsn("SELECT pg_current_wal_lsn()").await;
    let published = Offset { position: Some(position), end_lsn, ..offset.clone() };

    source.pg.kill().await.unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy, &data).unwrap();
    source.pg.start_again().await.unwrap();
    let source = Source { sql: source.session().await, ..source };
    let source = promote(source).await;
    source.emit("kept").await;

    let Decision::Resume { from, fork: Some(fork) } = source.decide(Some(&published)).await else {
        panic!("{:?}", source.decide(Some(&published)).await)
    };
    assert_eq!(from.epoch, Epoch(1));
    assert_eq!(fork.last, Some(position));
    assert!(from.end_lsn <= published.end_lsn && from.end_lsn >= offset.end_lsn);
    assert!(from.resume_point() > published.resume_point());
    assert!(fork.to_string().contains(&position.to_string()), "{fork}");
    let streamed = source.streamed_ids(from.end_lsn).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["kept"]);
}
