//! Projections that are files of SQL.

use crate::support::{Bed, seen};
use outflow_inbox::{Error, Retry, SqlProjection};

#[tokio::test]
async fn several_statements_see_the_same_events_and_each_other() {
    let mut bed = Bed::new().await;
    bed.sql
        .batch_execute("CREATE TABLE total (aggregate_id text PRIMARY KEY, n bigint, sum numeric)")
        .await
        .unwrap();
    bed.add_many(1..=100, 4).await;
    let projection = SqlProjection::parse(
        "-- every event; and a sum\n\
         INSERT INTO seen (event_id, aggregate_id, v)\n\
         SELECT event_id, aggregate_id, payload ->> 'v' FROM events ORDER BY ordinal;\n\
         WITH sums AS (SELECT aggregate_id, count(*) AS n, sum((payload ->> 'v')::numeric) FROM events GROUP BY 1)\n\
         INSERT INTO total AS t SELECT * FROM sums ORDER BY 1\n\
         ON CONFLICT (aggregate_id) DO UPDATE SET n = t.n + excluded.n, sum = t.sum + excluded.sum;\n\
         UPDATE total SET n = n WHERE aggregate_id IN (SELECT aggregate_id FROM events) AND n <> (\n\
           SELECT count(*) FROM seen WHERE seen.aggregate_id = total.aggregate_id);\n\
         (SELECT 1 FROM events);",
    )
    .unwrap();
    bed.run_until(bed.options(), projection, |counts| counts.acknowledged == 100).await;
    bed.assert_exactly_once(100).await;
    let sum: String = bed.value("SELECT sum(sum)::text FROM total", &[]).await;
    assert_eq!(sum, "5050");
    assert_eq!(bed.count("total WHERE n = 25").await, 4);
}

#[tokio::test]
async fn a_projection_that_the_database_refuses_ends_the_start_with_its_line() {
    let bed = Bed::new().await;
    for (sql, line, text) in [
        ("SELECT 1 FROM events;\n\nINSERT INTO seen\n  SELECT nothing FROM events", 4, "nothing"),
        ("WITH x AS (\n SELECT a FROM events)\nSELECT * FROM x", 2, "a"),
        ("WITH x AS (\n SELECT 1)\n\nSELECT * FRM x", 4, "FRM"),
        ("\n\nSELECT * FROM missing", 3, "missing"),
    ] {
        let running = bed.start(bed.options(), SqlProjection::parse(sql).unwrap());
        let error = running.end().await.unwrap_err();
        assert!(matches!(error, Error::Projection(_)) && error.retry() == Retry::Fatal);
        let message = error.to_string();
        assert!(message.starts_with(&format!("projection, line {line}: ")), "{message}");
        assert!(message.contains(text), "{message}");
    }
}

#[tokio::test]
async fn c82_a_refused_event_stops_the_consumer_with_its_reason_and_nothing_is_skipped() {
    let mut bed = Bed::new().await;
    bed.sql.batch_execute("ALTER TABLE seen ADD CONSTRAINT no_two CHECK (v <> '2')").await.unwrap();
    bed.log.expect_warn("cannot be applied");
    bed.add_many(1..=3, 1).await;
    let mut running = bed.start(bed.options(), seen());
    running.until_waiting_for("no_two").await;
    let waiting = bed.log.matching("a batch of 3 events (e1 .. e3) cannot be applied");
    assert!(waiting[0].contains("projection, line 1"), "{waiting:?}");
    assert_eq!(bed.count("outflow.inbox").await, 0);
    assert_eq!(bed.pending().await, 3);
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_two").await.unwrap();
    running.until(|counts| counts.acknowledged == 3).await;
    running.until_status(|status| status.state == outflow_inbox::State::Running).await;
    assert!(running.stop().await.counts.retries > 0);
    bed.assert_exactly_once(3).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c22_a_projection_that_cannot_read_a_payload_says_which_events() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("cannot be applied");
    bed.add("e1", "1", br#"{"v":"abc"}"#).await;
    let sum = SqlProjection::parse(
        "INSERT INTO seen (event_id)\nSELECT event_id FROM events WHERE (payload ->> 'v')::int > 0",
    )
    .unwrap();
    let mut running = bed.start(bed.options(), sum);
    running.until_waiting_for("event e1 cannot be applied: projection, line 1").await;
    assert!(running.stop().await.clean);
    assert_eq!(bed.count("outflow.inbox").await, 0);
}

#[tokio::test]
async fn a_deferred_constraint_is_the_projections_failure() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("cannot be applied");
    bed.sql
        .batch_execute(
            "ALTER TABLE seen ADD CONSTRAINT once UNIQUE (v) DEFERRABLE INITIALLY DEFERRED; \
             INSERT INTO seen (v) VALUES ('1')",
        )
        .await
        .unwrap();
    bed.add_many(1..=1, 1).await;
    let mut running = bed.start(bed.options(), seen());
    running.until_waiting_for("once").await;
    bed.sql.batch_execute("DELETE FROM seen").await.unwrap();
    running.until(|counts| counts.acknowledged == 1).await;
    running.stop().await;
    bed.assert_exactly_once(1).await;
}
