//! Which payloads are equal, and what happens to those that `jsonb` cannot hold.

use crate::support::Bed;
use outflow_inbox::SqlProjection;

/// Touches no payload.
fn ids() -> SqlProjection {
    SqlProjection::parse("INSERT INTO seen (event_id) SELECT event_id FROM events ORDER BY ordinal")
        .unwrap()
}

#[tokio::test]
async fn c66_payloads_are_compared_as_jsonb() {
    let pairs: [(&[u8], &[u8], bool); 12] = [
        (br#"{"a":1,"b":[1,2]}"#, b"{ \"b\" : [1, 2],\n\"a\" : 1 }", true),
        (br#"{"a":1.0}"#, br#"{"a":1}"#, true),
        (br#"{"a":1e2}"#, br#"{"a":100}"#, true),
        (br#"{"a":"\u00e9"}"#, "{\"a\":\"\u{e9}\"}".as_bytes(), true),
        (br#"{"a":1,"a":2}"#, br#"{"a":2}"#, true),
        // c24: equal as doubles, different as numbers
        (br#"{"a":9007199254740993}"#, br#"{"a":9007199254740992}"#, false),
        (br#"{"a":18446744073709551616}"#, br#"{"a":18446744073709551617}"#, false),
        (br#"{"a":[1,2]}"#, br#"{"a":[2,1]}"#, false),
        (b"null", b"{}", false),
        // c22, c23: by bytes
        (br#"{"a":"x\u0000y"}"#, br#"{"a":"x\u0000y"}"#, true),
        (br#"{"a":"x\u0000y"}"#, br#"{"a": "x\u0000y"}"#, false),
        (br#"{"a":"\ud800"}"#, br#"{"a":"\ud801"}"#, false),
    ];
    let mut bed = Bed::new().await;
    bed.log.expect_warn("conflict: a known event id arrived with another payload");
    for (n, (first, second, _)) in pairs.iter().enumerate() {
        bed.add(&format!("e{n}"), "1", first).await;
        bed.add(&format!("e{n}"), "1", second).await;
    }
    bed.run_until(bed.options(), ids(), |counts| counts.acknowledged == 24).await;
    for (n, (first, second, equal)) in pairs.iter().enumerate() {
        let conflicts = bed.count(&format!("outflow.conflict WHERE event_id = 'e{n}'")).await;
        let (first, second) = (String::from_utf8_lossy(first), String::from_utf8_lossy(second));
        assert_eq!(conflicts == 0, *equal, "{first} and {second}");
    }
}

#[tokio::test]
async fn c27_no_payload_is_not_null_and_not_empty() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("conflict: a known event id arrived with another payload");
    let without: Vec<String> = [
        "XADD",
        &bed.stream.clone(),
        "*",
        "event_id",
        "e",
        "aggregate_type",
        "order",
        "aggregate_id",
        "1",
        "event_type",
        "T",
    ]
    .map(str::to_owned)
    .to_vec();
    let without: Vec<&str> = without.iter().map(String::as_str).collect();
    bed.redis_command(&without).await;
    bed.redis_command(&without).await;
    bed.add("e", "1", b"null").await;
    bed.add("e", "1", b"").await;
    let summary = bed.run_until(bed.options(), ids(), |counts| counts.acknowledged == 4).await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (1, 1));
    assert_eq!(summary.counts.conflicts, 2);
}

#[tokio::test]
async fn c22_c23_c24_payloads_that_jsonb_cannot_hold_are_applied_by_their_bytes() {
    let raw: [&[u8]; 7] = [
        br#"{"a":"x\u0000y"}"#,
        br#"{"a":"\ud800"}"#,
        br#"{"n":1e200000}"#,
        b"not json",
        b"",
        b"\x00\xff\xfe binary",
        b"text with \x00",
    ];
    let big = br#"{"n":9007199254740993,"u":18446744073709551616,"m":1e400,"d":0.10}"#;
    let mut bed = Bed::new().await;
    for (n, payload) in raw.iter().enumerate() {
        bed.add(&format!("r{n}"), "1", payload).await;
        bed.add(&format!("ok{n}"), "2", big).await;
        bed.add(&format!("r{n}"), "1", payload).await;
    }
    let summary = bed.run_until(bed.options(), ids(), |counts| counts.acknowledged == 21).await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (14, 7));
    assert_eq!((summary.counts.retries, summary.counts.malformed), (0, 0));
    for (n, payload) in raw.iter().enumerate() {
        let stored: Vec<u8> = bed
            .value(
                "SELECT payload_raw FROM outflow.inbox WHERE event_id = $1 AND payload IS NULL",
                &[&format!("r{n}")],
            )
            .await;
        assert_eq!(stored, *payload);
    }
    let number: String =
        bed.value("SELECT payload ->> 'n' FROM outflow.inbox WHERE event_id = 'ok0'", &[]).await;
    assert_eq!(number, "9007199254740993");
    let scale: String =
        bed.value("SELECT payload ->> 'd' FROM outflow.inbox WHERE event_id = 'ok0'", &[]).await;
    assert_eq!(scale, "0.10");
}

#[tokio::test]
async fn a_payload_that_only_this_server_refuses_is_found_and_kept_by_its_bytes() {
    let mut bed = Bed::new().await;
    let database = bed.database.name.clone();
    bed.sql
        .batch_execute(&format!("ALTER DATABASE \"{database}\" SET max_stack_depth = '100kB'"))
        .await
        .unwrap();
    // within the limit that holds for every server, beyond what this one can parse
    let deep = format!("{}{}", "[".repeat(990), "]".repeat(990));
    bed.add("e1", "1", b"{}").await;
    bed.add("e2", "1", deep.as_bytes()).await;
    bed.add("e3", "1", b"{}").await;
    bed.add("e2", "1", deep.as_bytes()).await;
    let summary = bed.run_until(bed.options(), ids(), |counts| counts.acknowledged == 4).await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (3, 1));
    assert_eq!(bed.count("outflow.inbox WHERE payload_raw IS NOT NULL").await, 1);
}
