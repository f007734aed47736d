use super::*;

fn decode(id: EntryId, fields: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Entry, Malformed> {
    super::decode(id, fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())))
}
use proptest::prelude::*;

fn pairs(fields: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
}

fn encoded(event: &EventRef<'_>, origin: Option<Origin<'_>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields = Vec::new();
    encode(event, origin, |name, value| fields.push((name.to_vec(), value.to_vec())));
    fields
}

const MINIMAL: [(&str, &str); 4] = [
    ("event_id", "bus-1"),
    ("aggregate_type", "order"),
    ("aggregate_id", "42"),
    ("event_type", "Placed"),
];

#[test]
fn fields_stand_in_a_fixed_order() {
    let event = EventRef {
        event_id: b"bus-1",
        aggregate_type: b"order",
        aggregate_id: b"42",
        event_type: b"Placed",
        seq: Some(b"7"),
        payload: Some(br#"{"d": 0.10}"#),
        headers: None,
        created_at: Some(b"2026-01-02 03:04:05+00"),
        extra: &[(b"tenant", b"acme")],
    };
    let origin =
        Origin { position: b"0/16B3748:3", commit_time: Some(b"2026-01-02T03:04:05.000006Z") };
    assert_eq!(
        encoded(&event, Some(origin)),
        pairs(&[
            ("event_id", "bus-1"),
            ("aggregate_type", "order"),
            ("aggregate_id", "42"),
            ("event_type", "Placed"),
            ("seq", "7"),
            ("payload", r#"{"d": 0.10}"#),
            ("created_at", "2026-01-02 03:04:05+00"),
            ("position", "0/16B3748:3"),
            ("commit_time", "2026-01-02T03:04:05.000006Z"),
            ("tenant", "acme"),
        ])
    );
}

#[test]
fn c27_null_empty_and_json_null_stay_apart() {
    for (payload, expected) in [
        (None, None),
        (Some(&b""[..]), Some(b"".to_vec())),
        (Some(&b"null"[..]), Some(b"null".to_vec())),
        (Some(&b"{}"[..]), Some(b"{}".to_vec())),
    ] {
        let event = EventRef {
            event_id: b"e",
            aggregate_type: b"t",
            aggregate_id: b"",
            event_type: b"",
            seq: None,
            payload,
            headers: None,
            created_at: None,
            extra: &[],
        };
        let entry = decode(EntryId::ZERO, encoded(&event, None)).unwrap();
        assert_eq!(entry.event.payload, expected);
    }
}

#[test]
fn c78_foreign_and_malformed_entries_name_the_field() {
    let with = |extra: &[(&str, &str)]| {
        let mut fields = pairs(&MINIMAL);
        fields.extend(pairs(extra));
        decode(EntryId::ZERO, fields)
    };
    assert!(with(&[]).is_ok());
    assert_eq!(
        decode(EntryId::ZERO, pairs(&[("foo", "bar")])),
        Err(Malformed::Missing("event_id"))
    );
    assert_eq!(with(&[("event_id", "2")]), Err(Malformed::Twice("event_id".into())));
    assert_eq!(
        with(&[("payload", "1"), ("payload", "1")]),
        Err(Malformed::Twice("payload".into()))
    );
    assert_eq!(with(&[("x", "1"), ("x", "1")]), Err(Malformed::Twice("x".into())));
    assert_eq!(
        with(&[("seq", "1.5")]),
        Err(Malformed::Value { name: "seq", value: "1.5".into(), expected: "a 64-bit integer" })
    );
    let mut binary = pairs(&MINIMAL);
    binary.push((b"headers".to_vec(), vec![0xFF]));
    assert_eq!(decode(EntryId::ZERO, binary), Err(Malformed::NotText("headers".into())));
}

#[test]
fn c22_a_payload_may_hold_any_bytes() {
    let mut fields = pairs(&MINIMAL);
    fields.push((b"payload".to_vec(), vec![0, 0xFF, b'\\', b'u']));
    let entry = decode(EntryId::ZERO, fields).unwrap();
    assert_eq!(entry.event.payload, Some(vec![0, 0xFF, b'\\', b'u']));
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        event_id in ".{1,20}", aggregate_type in "[a-z]{1,8}", aggregate_id in ".{0,20}",
        event_type in ".{0,20}", seq in any::<Option<i64>>(),
        payload in any::<Option<Vec<u8>>>(), headers in any::<Option<String>>(),
        created_at in any::<Option<String>>(),
        extra in proptest::collection::btree_map("x[a-z]{1,6}", any::<Vec<u8>>(), 0..4),
        lsn in any::<u64>(), index in any::<u64>(),
    ) {
        let position = Position::new(lsn.into(), index);
        let (position_text, seq_text) = (position.to_string(), seq.map(|s| s.to_string()));
        let extra_ref: Vec<(&[u8], &[u8])> =
            extra.iter().map(|(n, v)| (n.as_bytes(), v.as_slice())).collect();
        let event = EventRef {
            event_id: event_id.as_bytes(),
            aggregate_type: aggregate_type.as_bytes(),
            aggregate_id: aggregate_id.as_bytes(),
            event_type: event_type.as_bytes(),
            seq: seq_text.as_ref().map(|s| s.as_bytes()),
            payload: payload.as_deref(),
            headers: headers.as_ref().map(|s| s.as_bytes()),
            created_at: created_at.as_ref().map(|s| s.as_bytes()),
            extra: &extra_ref,
        };
        let origin = Origin { position: position_text.as_bytes(), commit_time: Some(b"2026-01-01T00:00:00Z") };
        let entry = decode(EntryId { major: 1, minor: 2 }, encoded(&event, Some(origin))).unwrap();
        prop_assert_eq!(entry.position, Some(position));
        prop_assert_eq!(entry.commit_time.as_deref(), Some("2026-01-01T00:00:00Z"));
        prop_assert_eq!(entry.event, Event {
            event_id, aggregate_type, aggregate_id, event_type, seq, payload, headers, created_at,
            extra: extra.into_iter().collect(),
        });
    }

    #[test]
    fn arbitrary_fields_never_panic(
        fields in proptest::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..12)
    ) {
        let _ = decode(EntryId::ZERO, fields);
    }
}
