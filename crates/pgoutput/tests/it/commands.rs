//! Commands before the stream: identity, slots, queries.

use outflow_pgoutput::{
    CreateSlotOptions, Error, FeedbackOptions, ReplicationClient, Retry, Snapshot, StartOptions,
};
use outflow_sandbox::Postgres;

use crate::support::{Bench, PUBLICATION, SLOT, eventually, options};

fn code(error: &Error) -> &str {
    error.sqlstate().map_or("none", |state| state.code())
}

#[tokio::test]
async fn the_server_tells_who_it_is() {
    let bench = Bench::start().await;
    let mut client = bench.client().await;
    let system = client.identify_system().await.unwrap();
    let expected = bench.value("SELECT system_identifier FROM pg_control_system()").await;
    assert_eq!(Some(system.system_identifier), expected);
    assert_eq!((system.timeline, system.database.as_deref()), (1, Some("postgres")));
    assert!(system.flush_lsn <= bench.tip().await);
    assert_eq!(client.server_major(), bench.pg.version());
    assert_eq!(client.timeline_history(1).await.unwrap(), []);
    let error = client.timeline_history(99).await.unwrap_err();
    assert!(matches!(error, Error::Server(_)), "{error}");
    assert!(client.process_id() > 0);
    assert!(client.host().contains("127.0.0.1"));
}

#[tokio::test]
async fn queries_give_rows_and_errors_leave_the_session_usable() {
    let bench = Bench::start().await;
    let mut client = bench.client().await;
    let rows = client.simple_query("SELECT 1, NULL, 'ä'; SELECT 2").await.unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].get(0), rows[0].get(1), rows[0].get(2)), (Some("1"), None, Some("ä")));
    let error = client.simple_query("SELECT 1/0").await.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("22012", Retry::Fatal));
    assert_eq!(client.simple_query("").await.unwrap(), []);
    assert_eq!(client.simple_query("SELECT 3").await.unwrap()[0].get(0), Some("3"));
}

#[tokio::test]
async fn slots_are_created_inspected_and_dropped() {
    let bench = Bench::start().await;
    let mut client = bench.client().await;
    let created = client.create_slot("second_1", CreateSlotOptions::default()).await.unwrap();
    assert_eq!((created.name.as_str(), created.snapshot_name), ("second_1", None));
    let slot = client.slot("second_1").await.unwrap().unwrap();
    assert_eq!(slot.plugin.as_deref(), Some("pgoutput"));
    assert_eq!((slot.slot_type.as_str(), slot.database.as_deref()), ("logical", Some("postgres")));
    assert_eq!(slot.confirmed_flush_lsn, Some(created.consistent_point));
    assert!(slot.restart_lsn.unwrap() <= created.consistent_point);
    assert_eq!((slot.active, slot.active_pid, slot.temporary), (false, None, false));
    assert_eq!(slot.wal_status.as_deref(), Some("reserved"));
    assert_eq!((slot.invalidation_reason, slot.two_phase, slot.failover), (None, false, false));

    let error = client.create_slot("second_1", CreateSlotOptions::default()).await.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("42710", Retry::Fatal));
    client.drop_slot("second_1", false).await.unwrap();
    assert_eq!(client.slot("second_1").await.unwrap(), None);
    let error = client.drop_slot("second_1", false).await.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("42704", Retry::Fatal));
    let error = client.create_slot("Bad\"name", CreateSlotOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::SlotName { .. }), "{error}");
    assert_eq!(client.slot("it's \\ not there").await.unwrap(), None);
}

#[tokio::test]
async fn a_temporary_slot_goes_with_its_link() {
    let bench = Bench::start().await;
    let mut client = bench.client().await;
    let options = CreateSlotOptions { temporary: true, ..CreateSlotOptions::default() };
    client.create_slot("passing", options).await.unwrap();
    let slot = client.slot("passing").await.unwrap().unwrap();
    assert!(slot.temporary && slot.active);
    assert_eq!(slot.active_pid, Some(client.process_id()));
    drop(client);
    let mut other = bench.client().await;
    while other.slot("passing").await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn failover_slots_need_17() {
    let bench = Bench::start().await;
    let mut client = bench.client().await;
    let options = CreateSlotOptions { failover: true, ..CreateSlotOptions::default() };
    let result = client.create_slot("kept", options).await;
    if bench.pg.version() < 17 {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { needs: 17, .. }), "{error}");
        let error = client.set_failover("kept", true).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { needs: 17, .. }), "{error}");
    } else {
        result.unwrap();
        assert!(client.slot("kept").await.unwrap().unwrap().failover);
        for failover in [false, true] {
            client.set_failover("kept", failover).await.unwrap();
            assert_eq!(client.slot("kept").await.unwrap().unwrap().failover, failover);
        }
        let error = client.set_failover("gone", true).await.unwrap_err();
        assert_eq!(code(&error), "42704", "{error}");
    }
}

#[tokio::test]
async fn the_exported_snapshot_shows_what_the_slot_will_not_send() {
    let bench = Bench::start().await;
    bench.emit(1).await;
    let mut client = bench.client().await;
    let options = CreateSlotOptions { snapshot: Snapshot::Export, ..CreateSlotOptions::default() };
    let created = client.create_slot("snap", options).await.unwrap();
    bench.emit(2).await;
    let reader = bench.pg.connect().await.unwrap();
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{}'",
        created.snapshot_name.unwrap()
    );
    reader.batch_execute(&sql).await.unwrap();
    let count: i64 = reader.query_one("SELECT count(*) FROM outbox", &[]).await.unwrap().get(0);
    assert_eq!(count, 1);
    let start = StartOptions::new("snap", PUBLICATION);
    let stream = client.start_replication(start, FeedbackOptions::default()).await.unwrap();
    let mut stream = crate::support::Reader::new(stream);
    assert_eq!(stream.transaction().await.ids(), [2]);
    stream.stop().await;
}

#[tokio::test]
async fn a_snapshot_can_be_used_on_the_link_itself() {
    let bench = Bench::start().await;
    bench.emit(1).await;
    let mut client = bench.client().await;
    client.simple_query("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let options = CreateSlotOptions { snapshot: Snapshot::Use, ..CreateSlotOptions::default() };
    client.create_slot("used", options).await.unwrap();
    bench.emit(2).await;
    let rows = client.simple_query("SELECT count(*) FROM outbox").await.unwrap();
    assert_eq!(rows[0].get(0), Some("1"));
    client.simple_query("COMMIT").await.unwrap();
}

#[tokio::test]
async fn c36_a_slot_in_use_is_worth_another_try() {
    let bench = Bench::start().await;
    let holder = bench.reader().await;
    let client = bench.client().await;
    let start = StartOptions::new(SLOT, PUBLICATION);
    let error = client.start_replication(start, FeedbackOptions::default()).await.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("55006", Retry::Transient));
    assert!(error.to_string().contains("active_pid"), "{error}");
    let slot = bench.client().await.slot(SLOT).await.unwrap().unwrap();
    assert!(slot.active && slot.active_pid.is_some());
    let error = bench.client().await.drop_slot(SLOT, false).await.unwrap_err();
    assert_eq!(code(&error), "55006");
    holder.stop().await;
    // free at once, and dropping can wait for it
    bench.client().await.drop_slot(SLOT, true).await.unwrap();
}

#[tokio::test]
async fn c38_an_invalidated_slot_is_fatal() {
    let bench = Bench::with(Postgres::builder().setting("max_slot_wal_keep_size", "1MB")).await;
    bench.emit(1).await;
    for _ in 0..3 {
        bench.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 17 << 20))").await;
        bench.execute("SELECT pg_switch_wal(); CHECKPOINT").await;
    }
    let slot = bench.client().await.slot(SLOT).await.unwrap().unwrap();
    assert_eq!(slot.wal_status.as_deref(), Some("lost"));
    assert_eq!(slot.restart_lsn, None);
    assert_eq!(slot.invalidation_reason.as_deref(), Some("wal_removed"));
    let start = StartOptions::new(SLOT, PUBLICATION);
    let result = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let error = result.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("55000", Retry::Fatal));
}

#[tokio::test]
async fn a_missing_slot_is_fatal() {
    let bench = Bench::start().await;
    let start = StartOptions::new("nowhere", PUBLICATION);
    let result = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let error = result.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("42704", Retry::Fatal));
    assert!(error.to_string().contains("nowhere"), "{error}");
}

/// Why a link is refused, once the session before it has really ended: its place among the walsenders
/// becomes free some time after it has left pg_stat_activity.
async fn refused(url: &str) -> Error {
    loop {
        let error = ReplicationClient::connect(&options(url)).await.err().unwrap();
        if code(&error) != "53300" {
            return error;
        }
    }
}

#[tokio::test]
async fn c45_refusals_are_classified() {
    let bench = Bench::with(Postgres::builder().setting("max_wal_senders", "1")).await;
    bench.execute("CREATE ROLE plain LOGIN").await;
    let free = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'";
        bench.value(sql).await.as_deref() == Some("0")
    };
    eventually("the only walsender is free", free).await;
    let holder = bench.client().await;
    let error = ReplicationClient::connect(&bench.options()).await.err().unwrap();
    assert_eq!((code(&error), error.retry()), ("53300", Retry::Transient));
    drop(holder);
    let error = refused(&bench.pg.url_as("plain", "postgres")).await;
    assert_eq!((code(&error), error.retry()), ("42501", Retry::Fatal));
    assert!(error.to_string().contains("replication"), "{error}");
    let error = refused(&bench.pg.url_for("nowhere")).await;
    assert_eq!((code(&error), error.retry()), ("3D000", Retry::Fatal));
    let error = options(&bench.pg.url_as("nobody", "postgres")).connect_sql().await.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("28000", Retry::Fatal));
}

#[tokio::test]
async fn wal_level_is_named_when_it_is_too_low() {
    let pg = Postgres::builder().setting("wal_level", "replica").start().await.unwrap();
    let mut client = ReplicationClient::connect(&options(&pg.url())).await.unwrap();
    let error = client.create_slot("x", CreateSlotOptions::default()).await.unwrap_err();
    assert_eq!((code(&error), error.retry()), ("55000", Retry::Fatal));
    assert!(error.to_string().contains("wal_level"), "{error}");
}
