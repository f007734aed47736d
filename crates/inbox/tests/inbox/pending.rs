//! Pending entries: one's own, vanished ones, many of them; and entries that are no events.

use std::time::Duration;

use crate::support::{Bed, seen};
use outflow_inbox::ConsumerOptions;

async fn group(bed: &mut Bed) {
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "CREATE", &stream, "accounting", "0", "MKSTREAM"]).await;
}

#[tokio::test]
async fn c72_own_pending_entries_come_before_new_ones() {
    let mut bed = Bed::new().await;
    group(&mut bed).await;
    bed.add_many(1..=50, 1).await;
    bed.read_and_die("worker-1", 30).await;
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 50).await;
    assert_eq!((summary.counts.applied, summary.counts.claimed), (50, 0));
    bed.assert_exactly_once(50).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c72_pending_entries_of_another_worker_are_taken_over() {
    let mut bed = Bed::new().await;
    group(&mut bed).await;
    bed.add_many(1..=300, 5).await;
    bed.read_and_die("worker-9", 250).await;
    let options = ConsumerOptions {
        claim_interval: Duration::from_millis(10),
        claim_min_idle: Duration::from_millis(1),
        batch: 40,
        ..bed.options()
    };
    let summary = bed.run_until(options, seen(), |counts| counts.applied == 300).await;
    assert!(summary.counts.claimed >= 250, "{summary:?}");
    bed.assert_exactly_once(300).await;
}

#[tokio::test]
async fn c71_entries_that_were_trimmed_while_pending_are_reported_and_let_go() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("entries were trimmed or deleted while they were pending");
    group(&mut bed).await;
    bed.add_many(1..=3, 1).await;
    bed.read_and_die("worker-1", 3).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "1"]).await;
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.applied == 1).await;
    assert_eq!(summary.counts.lost, 2);
    assert_eq!(bed.pending().await, 0);
    assert_eq!(bed.log.matching("trimmed or deleted").len(), 1);
}

#[tokio::test]
async fn c71_entries_that_were_trimmed_at_another_worker_are_reported() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("entries were trimmed or deleted while they were pending");
    group(&mut bed).await;
    bed.add_many(1..=3, 1).await;
    bed.read_and_die("worker-9", 3).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XTRIM", &stream, "MAXLEN", "1"]).await;
    let options = ConsumerOptions {
        claim_interval: Duration::from_millis(10),
        claim_min_idle: Duration::from_millis(1),
        ..bed.options()
    };
    let summary =
        bed.run_until(options, seen(), |counts| counts.applied == 1 && counts.lost == 2).await;
    assert!(summary.clean);
    assert_eq!(bed.pending().await, 0);
}

#[tokio::test]
async fn c85_a_long_pending_list_is_read_in_pages() {
    let mut bed = Bed::new().await;
    group(&mut bed).await;
    let large = format!(r#"{{"v":"{}"}}"#, "x".repeat(18_000));
    let mut pipe = redis::pipe();
    for n in 0..2_000 {
        pipe.cmd("XADD")
            .arg(&bed.stream)
            .arg("*")
            .arg(&[("event_id", format!("e{n}").as_str()), ("aggregate_type", "order")])
            .arg(&[("aggregate_id", "1"), ("event_type", "T"), ("payload", &large)])
            .ignore();
    }
    pipe.exec_async(&mut bed.redis).await.unwrap();
    bed.read_and_die("worker-1", 2_000).await;
    let options = ConsumerOptions { batch_bytes: 1 << 20, ..bed.options() };
    let summary = bed.run_until(options, seen(), |counts| counts.acknowledged == 2_000).await;
    // 36 MB in pages of about one
    assert!(summary.counts.batches >= 30, "{summary:?}");
    bed.assert_exactly_once(2_000).await;
}

#[tokio::test]
async fn c78_entries_that_are_no_events_are_set_aside_with_their_bytes() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("not an event, set aside in outflow.dead_letter");
    let stream = bed.stream.clone();
    let good = ["aggregate_type", "order", "aggregate_id", "1", "event_type", "T"];
    let long = "x".repeat(3_000);
    let malformed: [(&[&str], &str); 7] = [
        (&["foo", "bar"], "field `event_id` is missing"),
        (&["event_id", "", good[0], good[1], good[2], good[3], good[4], good[5]], "`event_id`"),
        (&["event_id", "a", "event_id", "b"], "field `event_id` appears twice"),
        (&["event_id", "a\0b", good[0], good[1], good[2], good[3], good[4], good[5]], "NUL"),
        (&["event_id", &long, good[0], good[1], good[2], good[3], good[4], good[5]], "3000 bytes"),
        (
            &["event_id", "a", good[0], good[1], good[2], good[3], good[4], good[5], "seq", "x"],
            "`seq`",
        ),
        (
            &["event_id", "a", good[0], good[1], good[2], good[3], good[4], good[5], "seq", "1\0x"],
            "`1 x`",
        ),
    ];
    for (fields, _) in &malformed {
        let mut command = vec!["XADD", &stream, "*"];
        command.extend_from_slice(fields);
        bed.redis_command(&command).await;
    }
    redis::cmd("XADD")
        .arg(&stream)
        .arg("*")
        .arg("event_id")
        .arg(b"\xff\x00")
        .exec_async(&mut bed.redis)
        .await
        .unwrap();
    // a payload that is no JSON is no reason to refuse an event
    bed.add("not-a-uuid", "1", b"{").await;
    bed.add_many(1..=3, 1).await;
    let summary = bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 12).await;
    assert_eq!((summary.counts.applied, summary.counts.malformed), (4, 8));
    let rows = bed
        .sql
        .query(
            "SELECT reason, raw_fields, event_id FROM outflow.dead_letter ORDER BY dead_letter_id",
            &[],
        )
        .await
        .unwrap();
    for ((fields, reason), row) in malformed.iter().zip(&rows) {
        assert!(row.get::<_, &str>(0).contains(reason), "{}", row.get::<_, &str>(0));
        let raw: Vec<Vec<u8>> = row.get(1);
        assert!(raw.iter().map(Vec::as_slice).eq(fields.iter().map(|field| field.as_bytes())));
        assert_eq!(row.get::<_, Option<&str>>(2), None);
    }
    assert_eq!(rows[7].get::<_, Vec<Vec<u8>>>(1)[1], b"\xff\x00");
    assert_eq!(rows.len(), 8);
    assert_eq!(bed.pending().await, 0);
}
