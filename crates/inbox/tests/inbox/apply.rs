//! The happy path, duplicates and conflicts.

use crate::support::{Bed, PROJECTION, seen};
use outflow_inbox::{ConsumerOptions, SqlProjection};

#[tokio::test]
async fn events_are_applied_in_order_and_acknowledged() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=300, 7).await;
    let mut running = bed.start(bed.options(), seen());
    running.until(|counts| counts.applied == 300).await;
    bed.add_many(301..=310, 7).await;
    running.until(|counts| counts.acknowledged == 310).await;
    running.until_status(|status| status.lag_entries == Some(0)).await;
    let summary = running.stop().await;
    assert!(summary.clean);
    assert_eq!((summary.counts.duplicates, summary.counts.conflicts), (0, 0));
    assert_eq!(summary.counts.retries, 0);
    bed.assert_exactly_once(310).await;
    bed.assert_order_within_aggregates().await;
    let last: String =
        bed.value("SELECT entry_id FROM outflow.inbox WHERE event_id = 'e310'", &[]).await;
    assert_eq!(bed.position().await, (last.clone(), last));
}

#[tokio::test]
async fn everything_about_an_event_is_stored_and_shown_to_the_projection() {
    let mut bed = Bed::new().await;
    bed.sql
        .batch_execute(
            "CREATE TABLE copy (ordinal bigint, event_id text, aggregate_type text, aggregate_id text, \
             seq bigint, event_type text, payload jsonb, payload_text text, payload_raw bytea, \
             headers jsonb, created_at text, \"position\" text, commit_time timestamptz, stream text, \
             entry_id text, extra jsonb, is_replacement boolean, replaced_payload jsonb)",
        )
        .await
        .unwrap();
    let fields = [
        "event_id",
        "bus-1",
        "aggregate_type",
        "bus",
        "aggregate_id",
        "7",
        "event_type",
        "Left",
        "seq",
        "-5",
        "payload",
        r#"{"a" : 0.10}"#,
        "headers",
        r#"{"trace":"t"}"#,
        "created_at",
        "2024-05-01 12:00:00+00",
        "position",
        "0/16B3748:3",
        "commit_time",
        "2024-05-01T12:00:00.123456Z",
        "tenant",
        "x",
    ];
    let mut command = vec!["XADD", bed.stream.as_str(), "5-3"];
    command.extend(fields);
    let command: Vec<String> = command.into_iter().map(str::to_owned).collect();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    bed.redis_command(&command).await;
    let copy = SqlProjection::parse("INSERT INTO copy SELECT * FROM events").unwrap();
    bed.run_until(bed.options(), copy, |counts| counts.acknowledged == 1).await;

    let shown: String = bed.value("SELECT (c.*)::text FROM copy c", &[]).await;
    assert_eq!(
        shown,
        format!(
            r#"(1,bus-1,bus,7,-5,Left,"{{""a"": 0.10}}","{{""a"" : 0.10}}",,"{{""trace"": ""t""}}","2024-05-01 12:00:00+00",0/16B3748:3,"2024-05-01 12:00:00.123456+00",{},5-3,"{{""tenant"": ""x""}}",f,)"#,
            bed.stream
        )
    );
    let stored: bool = bed
        .value(
            "SELECT (consumer_id, event_id, aggregate_type, aggregate_id, seq, event_type, payload, \
             payload_raw, \"position\", stream, entry_id) IS NOT DISTINCT FROM ('accounting', 'bus-1', 'bus', \
             '7', -5::bigint, 'Left', '{\"a\": 0.1}'::jsonb, NULL::bytea, '0/16B3748:3', $1::text, '5-3') \
             FROM outflow.inbox",
            &[&bed.stream],
        )
        .await;
    assert!(stored);
}

#[tokio::test]
async fn c83_acknowledged_entries_that_come_back_are_duplicates() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=200, 3).await;
    let mut running = bed.start(bed.options(), seen());
    running.until(|counts| counts.acknowledged == 200).await;
    let before = bed.checksum().await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "SETID", &stream, "accounting", "0"]).await;
    running.until(|counts| counts.acknowledged == 400).await;
    let summary = running.stop().await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (200, 200));
    assert_eq!(bed.checksum().await, before);
    bed.assert_exactly_once(200).await;
}

#[tokio::test]
async fn c66_c81_a_duplicate_and_a_conflict_do_not_hold_up_their_batch() {
    let mut bed = Bed::new().await;
    bed.add("e4", "1", br#"{"v": 4}"#).await;
    let applied = bed.add("e7", "1", br#"{"v": 7}"#).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 2).await;

    bed.log.expect_warn("conflict: a known event id arrived with another payload");
    let mut refused = String::new();
    for n in 1..=10 {
        let payload = if n == 7 { 70 } else { n };
        let id = bed.add(&format!("e{n}"), "1", format!(r#"{{"v":{payload}}}"#).as_bytes()).await;
        if n == 7 {
            refused = id;
        }
    }
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 10).await;
    let counts = summary.counts;
    assert_eq!((counts.applied, counts.duplicates, counts.conflicts), (8, 1, 1));
    assert_eq!((counts.batches, counts.retries), (1, 0));
    bed.assert_exactly_once(10).await;
    assert_eq!(bed.count("seen WHERE v = '70'").await, 0);
    let row = bed
        .sql
        .query_one(
            "SELECT event_id, stream, entry_id, payload::text, applied_entry_id, applied_payload::text, \
             resolved_at IS NULL FROM outflow.conflict",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "e7");
    assert_eq!(row.get::<_, &str>(1), bed.stream);
    assert_eq!(row.get::<_, &str>(2), refused);
    assert_eq!(row.get::<_, &str>(3), r#"{"v": 70}"#);
    assert_eq!(row.get::<_, &str>(4), applied);
    assert_eq!(row.get::<_, &str>(5), r#"{"v": 7}"#);
    assert!(row.get::<_, bool>(6));

    // the same delivery once more is not another conflict
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "SETID", &stream, "accounting", "0"]).await;
    let again = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 12).await;
    assert_eq!((again.counts.duplicates, again.counts.conflicts), (11, 1));
    assert_eq!(bed.count("outflow.conflict").await, 1);
}

#[tokio::test]
async fn c66_an_id_that_stands_twice_in_one_batch_is_applied_once() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("conflict: a known event id arrived with another payload");
    for (id, payload) in
        [("b", "1"), ("a", r#"{"v":1}"#), ("a", r#"{ "v": 1.0 }"#), ("a", r#"{"v":2}"#), ("c", "1")]
    {
        bed.add(id, "1", payload.as_bytes()).await;
    }
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 5).await;
    let counts = summary.counts;
    assert_eq!((counts.batches, counts.applied), (1, 3));
    assert_eq!((counts.duplicates, counts.conflicts), (1, 1));
    let order: Vec<String> =
        bed.value("SELECT array_agg(event_id ORDER BY n) FROM seen", &[]).await;
    assert_eq!(order, ["b", "a", "c"]);
    assert_eq!(bed.value::<String>("SELECT v FROM seen WHERE event_id = 'a'", &[]).await, "1");
}

#[tokio::test]
async fn consumers_do_not_share_an_inbox_and_workers_do() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=10, 1).await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 10).await;
    let other = ConsumerOptions { consumer_id: "billing".to_owned(), ..bed.options() };
    let summary = bed.run_until(other, seen(), |counts| counts.acknowledged == 10).await;
    assert_eq!(summary.counts.applied, 10);
    let worker = ConsumerOptions { worker: "worker-2".to_owned(), ..bed.options() };
    bed.add_many(5..=11, 1).await;
    let summary = bed.run_until(worker, seen(), |counts| counts.acknowledged == 7).await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (1, 6));
}

#[tokio::test]
async fn several_streams_make_one_batch() {
    let mut bed = Bed::new().await;
    let streams: Vec<String> = (0..3).map(|n| format!("{}:{n}", bed.stream)).collect();
    for n in 0..60_usize {
        let payload = format!(r#"{{"v":{n}}}"#);
        let id = format!("e{n}");
        bed.add_to(&streams[n % 3], &id, &(n % 3).to_string(), payload.as_bytes()).await;
    }
    let options = ConsumerOptions { streams: streams.clone(), ..bed.options() };
    let summary = bed.run_until(options, seen(), |counts| counts.acknowledged == 60).await;
    assert_eq!((summary.counts.applied, summary.counts.batches), (60, 1));
    bed.assert_order_within_aggregates().await;
    let positions: Vec<String> =
        bed.value("SELECT array_agg(stream ORDER BY stream) FROM outflow.position", &[]).await;
    assert_eq!(positions, streams);
    let behind = bed.count("outflow.position WHERE entry_id <> resume_id").await;
    assert_eq!(behind, 0);
}

#[tokio::test]
async fn the_demo_sums_turnover_per_consumer_and_currency() {
    let mut bed = Bed::new().await;
    let mut expected = 0_i64;
    for n in 1..=100_i64 {
        // beyond 2^53, and as a string every other time
        let amount = 9_007_199_254_740_993 + n;
        let amount = if n % 2 == 0 { format!("\"{amount}\"") } else { amount.to_string() };
        let currency = if n % 4 == 0 { "USD" } else { "EUR" };
        if currency == "EUR" {
            expected += 9_007_199_254_740_993 + n;
        }
        let payload = format!(
            r#"{{"journal_id":"j-{n}","consumer":"c-17","currency":"{currency}","amount":{amount}}}"#
        );
        redis::cmd("XADD")
            .arg(&bed.stream)
            .arg("*")
            .arg(&[("event_id", format!("j-{n}")), ("aggregate_type", "journal".to_owned())])
            .arg(&[("aggregate_id", "c-17"), ("event_type", "Posted"), ("payload", &payload)])
            .exec_async(&mut bed.redis)
            .await
            .unwrap();
    }
    let projection = SqlProjection::parse(PROJECTION).unwrap();
    bed.run_until(bed.options(), projection, |counts| counts.acknowledged == 100).await;
    let euro: bool = bed
        .value(
            "SELECT amount = $1::int8 AND journals = 75 FROM turnover WHERE consumer = 'c-17' AND currency = 'EUR'",
            &[&expected],
        )
        .await;
    assert!(euro);
    assert_eq!(bed.count("turnover").await, 2);
}
