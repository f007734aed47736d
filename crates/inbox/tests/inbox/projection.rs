//! Projections that are files of SQL.

use crate::support::Bed;
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
