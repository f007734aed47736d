//! What the inbox forgets can never come again.

use std::time::Duration;

use outflow_inbox::retention::{HOLDS_KEY, Report, Retention, RetentionOptions};

use crate::support::{Bed, seen};

impl Bed {
    fn retention(&self) -> Retention {
        let options = RetentionOptions {
            inbox: Some(Duration::ZERO),
            settled: Some(Duration::ZERO),
            interval: Duration::from_secs(3600),
            batch: 10,
            connectors: vec![self.database.name.clone()],
        };
        Retention::new(self.options().validate().unwrap(), options, self.connect())
    }

    async fn retain(&self) -> Report {
        self.retention().run_once(false, &mut |_, _| {}).await.unwrap()
    }

    /// As the connector's retention says it: the outbox has no row that is older.
    async fn replay_floor(&mut self, rows_since: &str) {
        let key = format!("outflow:replay-floor:{}", self.database.name);
        let floor = format!(r#"{{"rows_since":"{rows_since}","at":"{rows_since}"}}"#);
        self.redis_command(&["SET", &key, &floor]).await;
    }

    /// Applied, acknowledged, and the position stored up to the last one.
    async fn apply_all(&mut self, events: u64) {
        self.add_many(1..=events, 3).await;
        self.run_until(self.options(), seen(), |counts| counts.acknowledged == events).await;
    }
}

const FAR: &str = "2999-01-01T00:00:00Z";

#[tokio::test]
async fn inbox_rows_stay_while_their_events_can_come_again() {
    let mut bed = Bed::new().await;
    bed.apply_all(50).await;
    let stream = bed.stream.clone();
    // the outbox may have rows that are as old: they may be published again
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "20"]).await;
    let report = bed.retain().await;
    assert!(
        report.inbox.as_ref().unwrap().held_by.as_deref().unwrap().contains("retention.outbox")
    );
    bed.replay_floor("2001-01-01T00:00:00Z").await;
    assert_eq!(bed.retain().await.inbox.unwrap().rows, 0);
    // entries that are still in the stream may be delivered again
    bed.replay_floor(FAR).await;
    let dry = bed.retention().run_once(true, &mut |_, _| {}).await.unwrap();
    assert_eq!((dry.inbox.unwrap().rows, bed.count("outflow.inbox").await), (30, 50));
    let report = bed.retain().await;
    assert_eq!((report.inbox.unwrap().rows, bed.count("outflow.inbox").await), (30, 20));
    assert_eq!(report.floors[0].held_by, "what comes next is still in the stream");

    // everything that the stream still has comes again, and has no second effect
    bed.redis_command(&["XGROUP", "SETID", &stream, "accounting", "0"]).await;
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 20).await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (0, 20));
    assert_eq!(bed.count("seen").await, 50);
}

#[tokio::test]
async fn entries_in_work_and_open_dead_letters_hold_the_inbox_back() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("not an event, set aside in outflow.dead_letter");
    bed.add_many(1..=5, 1).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XADD", &stream, "*", "foo", "bar"]).await;
    bed.add_many(6..=10, 1).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 11).await;
    bed.replay_floor(FAR).await;
    // at another worker; trimmed beneath it by somebody else
    bed.add_many(11..=12, 1).await;
    bed.read_and_die("worker-9", 2).await;
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "0"]).await;
    let report = bed.retain().await;
    assert!(report.floors[0].held_by.contains("dead letter"), "{report:?}");
    assert_eq!((report.inbox.unwrap().rows, bed.count("outflow.inbox").await), (5, 5));
    let key = format!("accounting {stream}");
    let hold: Option<String> =
        redis::cmd("HGET").arg(HOLDS_KEY).arg(&key).query_async(&mut bed.redis).await.unwrap();
    assert!(hold.unwrap().contains("is open"));

    bed.sql.batch_execute("UPDATE outflow.dead_letter SET resolved_at = now()").await.unwrap();
    let report = bed.retain().await;
    // the settled dead letter goes with them; the entries in work lie above all that was applied
    assert_eq!((report.inbox.unwrap().rows, report.settled.unwrap().rows), (5, 1));
    assert_eq!(report.floors[0].held_by, "the stored position lies there");
    let hold: Option<String> =
        redis::cmd("HGET").arg(HOLDS_KEY).arg(&key).query_async(&mut bed.redis).await.unwrap();
    assert_eq!(hold, None);
}

#[tokio::test]
async fn a_conflict_that_waits_for_a_decision_keeps_the_row_that_it_may_replace() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("conflict: a known event id");
    bed.add_many(1..=3, 1).await;
    bed.add("e2", "1", br#"{"v": 100}"#).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 4).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "0"]).await;
    bed.replay_floor(FAR).await;
    assert_eq!(bed.retain().await.inbox.unwrap().rows, 2);
    bed.sql.batch_execute("UPDATE outflow.conflict SET resolved_at = now()").await.unwrap();
    assert_eq!(bed.retain().await.inbox.unwrap().rows, 1);
}

#[tokio::test]
async fn another_consumer_and_another_stream_are_left_alone() {
    let mut bed = Bed::new().await;
    bed.apply_all(10).await;
    let stream = bed.stream.clone();
    bed.sql
        .batch_execute(
            "INSERT INTO outflow.inbox SELECT 'billing', event_id, aggregate_type, aggregate_id, seq, event_type, \
             payload, payload_raw, position, stream, entry_id, applied_at FROM outflow.inbox; \
             UPDATE outflow.inbox SET stream = 'elsewhere' WHERE consumer_id = 'accounting' AND event_id = 'e1'",
        )
        .await
        .unwrap();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "0"]).await;
    bed.replay_floor(FAR).await;
    assert_eq!(bed.retain().await.inbox.unwrap().rows, 9);
    assert_eq!(bed.count("outflow.inbox WHERE consumer_id = 'billing'").await, 10);
    assert_eq!(bed.count("outflow.inbox WHERE stream = 'elsewhere'").await, 1);
}

#[tokio::test]
async fn a_worker_may_delete_only_with_the_role_for_it() {
    let mut bed = Bed::new().await;
    bed.apply_all(3).await;
    bed.replay_floor(FAR).await;
    let worker = format!("{}_worker", bed.database.name);
    let role = format!("CREATE ROLE \"{worker}\" LOGIN IN ROLE outflow_consumer");
    bed.sql.batch_execute(&role).await.unwrap();
    let connect = outflow_inbox::connect_no_tls(&bed.postgres.url_as(&worker, &bed.database.name));
    let options = RetentionOptions {
        inbox: Some(Duration::ZERO),
        settled: None,
        interval: Duration::from_secs(3600),
        batch: 10,
        connectors: vec![bed.database.name.clone()],
    };
    let retention = Retention::new(bed.options().validate().unwrap(), options, connect);
    let error = retention.run_once(false, &mut |_, _| {}).await.unwrap_err().to_string();
    assert!(error.contains("grant outflow_retention"), "{error}");
    bed.sql.batch_execute(&format!("GRANT outflow_retention TO \"{worker}\"")).await.unwrap();
    retention.run_once(false, &mut |_, _| {}).await.unwrap();
}
