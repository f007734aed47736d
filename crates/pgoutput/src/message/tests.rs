use proptest::prelude::*;

use super::*;
use crate::relation::Relations;

/// Messages that a PostgreSQL 15 server really sent.
const CAPTURES: &str = include_str!("captures.txt");

fn captured() -> Vec<(Lsn, Vec<u8>)> {
    let lines = CAPTURES.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (lsn, hex) = line.split_once(' ').unwrap();
            let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
            (lsn.parse().unwrap(), (0..hex.len()).step_by(2).map(byte).collect())
        })
        .collect()
}

fn of_kind(kind: u8) -> Vec<Vec<u8>> {
    let all = captured().into_iter().map(|(_, bytes)| bytes);
    all.filter(|bytes| bytes[0] == kind).collect()
}

fn texts<'a>(tuple: &Tuple<'a>) -> Vec<TupleValue<'a>> {
    tuple.values().collect()
}

use TupleValue::{Binary, Null, Text, Unchanged};

#[test]
fn every_captured_message_is_decoded() {
    for (lsn, bytes) in captured() {
        assert!(Message::decode(&bytes).is_ok(), "{lsn} {bytes:?}");
    }
}

#[test]
fn captured_transaction_frames() {
    let begin = Message::decode(&of_kind(b'B')[0]).map(|m| format!("{m:?}"));
    let expected = Begin {
        final_lsn: "0/1531C48".parse().unwrap(),
        commit_time: Timestamp(0x0003_046f_b418_7d90),
        xid: 729,
    };
    assert_eq!(begin.unwrap(), format!("{:?}", Message::Begin(expected)));
    let commit = of_kind(b'C');
    let Message::Commit(commit) = Message::decode(&commit[0]).unwrap() else { panic!() };
    assert_eq!(commit.commit_lsn, expected.final_lsn);
    assert_eq!(commit.end_lsn, "0/1531C78".parse().unwrap());
    assert_eq!(commit.commit_time, expected.commit_time);
}

#[test]
fn captured_relation_and_type() {
    let bytes = of_kind(b'R');
    let Message::Relation(outbox) = Message::decode(&bytes[0]).unwrap() else { panic!() };
    assert_eq!((outbox.namespace, outbox.name), ("public", "outbox"));
    assert_eq!(outbox.replica_identity, ReplicaIdentity::Default);
    let columns: Vec<_> = outbox.columns().map(|c| (c.name, c.key, c.type_oid)).collect();
    assert_eq!(
        columns,
        [("id", true, 23), ("kind", false, 25), ("payload", false, 25), ("p", false, 0x4001)]
    );
    assert!(outbox.columns().all(|c| c.type_modifier == -1));

    let full = bytes.iter().find_map(|b| match Message::decode(b) {
        Ok(Message::Relation(r)) if r.name == "full_ident" => Some(r.replica_identity),
        _ => None,
    });
    assert_eq!(full, Some(ReplicaIdentity::Full));

    let bytes = of_kind(b'Y');
    let expected = Type { oid: 0x4001, namespace: "public", name: "prio" };
    assert_eq!(Message::decode(&bytes[0]).unwrap(), Message::Type(expected));
}

#[test]
fn captured_inserts_with_null_empty_and_binary_values() {
    let bytes = of_kind(b'I');
    let row = |i: usize| match Message::decode(&bytes[i]).unwrap() {
        Message::Insert(insert) => insert.new,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        texts(&row(0)),
        [Text(b"1"), Text(b"a"), Text(br#"{"n":9007199254740993}"#), Text(b"lo")]
    );
    assert_eq!(texts(&row(1)), [Text(b"2"), Null, Text(b""), Text(b"lo")]);
    assert_eq!(row(1).get(1), Some(Null));
    assert_eq!(row(1).get(4), None);
    let last = row(bytes.len() - 1);
    assert_eq!(last.get(0), Some(Binary(&[0, 0, 0, 1])));
    assert_eq!(last.len(), 4);
}

#[test]
fn c06_captured_update_says_unchanged_and_not_null() {
    let bytes = of_kind(b'U');
    let update = |i: usize| match Message::decode(&bytes[i]).unwrap() {
        Message::Update(update) => update,
        other => panic!("{other:?}"),
    };
    assert_eq!(update(0).old, None);
    assert_eq!(texts(&update(0).new), [Text(b"3"), Text(b"big2"), Unchanged, Text(b"lo")]);
    // the key changed: the old one comes along
    let Some(OldTuple::Key(key)) = update(1).old else { panic!() };
    assert_eq!(texts(&key), [Text(b"3"), Null, Null, Null]);
    // replica identity full
    let Some(OldTuple::Full(row)) = update(2).old else { panic!() };
    assert_eq!(texts(&row), [Text(b"1"), Text(b"x")]);
}

#[test]
fn captured_deletes_truncate_origin_and_logical_messages() {
    let bytes = of_kind(b'D');
    let Message::Delete(by_key) = Message::decode(&bytes[0]).unwrap() else { panic!() };
    assert!(matches!(by_key.old, OldTuple::Key(key) if key.get(0) == Some(Text(b"1"))));
    let Message::Delete(full) = Message::decode(&bytes[1]).unwrap() else { panic!() };
    assert!(matches!(full.old, OldTuple::Full(row) if row.get(1) == Some(Text(b"y"))));

    let bytes = of_kind(b'T');
    let Message::Truncate(truncate) = Message::decode(&bytes[0]).unwrap() else { panic!() };
    assert!(truncate.cascade && truncate.restart_identity);
    assert_eq!(truncate.relations().collect::<Vec<_>>(), [0x4005, 0x400d]);

    let bytes = of_kind(b'O');
    let expected = Origin { commit_lsn: "0/1234".parse().unwrap(), name: "upstream" };
    assert_eq!(Message::decode(&bytes[0]).unwrap(), Message::Origin(expected));

    let bytes = of_kind(b'M');
    let messages: Vec<_> = bytes.iter().map(|b| Message::decode(b).unwrap()).collect();
    let [Message::Message(alone), Message::Message(inside)] = &messages[..] else { panic!() };
    assert!(!alone.transactional && inside.transactional);
    assert_eq!((alone.prefix, alone.content), ("hb", &b"beat"[..]));
    assert_eq!((inside.prefix, inside.content), ("tx", &[0, 255][..]));
}

#[test]
fn truncated_and_overlong_captures_are_refused() {
    for (lsn, mut bytes) in captured() {
        for len in 0..bytes.len() {
            assert!(Message::decode(&bytes[..len]).is_err(), "{lsn} cut to {len}");
        }
        let kind = bytes[0];
        bytes.push(0);
        let error = Message::decode(&bytes).unwrap_err();
        assert_eq!(error, DecodeError::Trailing { kind, extra: 1 }, "{lsn}");
    }
}

#[test]
fn c02_an_unknown_kind_fails_with_its_byte() {
    let known = b"BCORYIUDTM";
    for kind in (0..=u8::MAX).filter(|kind| !known.contains(kind)) {
        assert_eq!(Message::decode(&[kind, 0, 0]), Err(DecodeError::UnknownKind { kind }));
    }
    let text = DecodeError::UnknownKind { kind: b'S' }.to_string();
    assert!(text.contains("'S'") && text.contains("0x53"), "{text}");
}

#[test]
fn unknown_values_inside_are_refused() {
    let mut insert = of_kind(b'I')[0].clone();
    insert[5] = b'X';
    assert!(matches!(Message::decode(&insert), Err(DecodeError::UnknownValue { value: b'X', .. })));
    let mut insert = of_kind(b'I')[0].clone();
    insert[8] = b'?';
    assert!(matches!(Message::decode(&insert), Err(DecodeError::UnknownValue { value: b'?', .. })));
    let mut relation = of_kind(b'R')[0].clone();
    let at = 1 + 4 + "public\0outbox\0".len();
    relation[at] = b'?';
    assert!(matches!(Message::decode(&relation), Err(DecodeError::UnknownValue { .. })));
    // a name that is not utf-8
    let mut relation = of_kind(b'R')[0].clone();
    relation[5] = 0xff;
    assert!(matches!(Message::decode(&relation), Err(DecodeError::NotUtf8 { .. })));
}

#[test]
fn c13_a_newer_description_replaces_the_older_one() {
    let first = Built::relation(7, "public", "outbox", &["id", "payload"]).bytes();
    let second = Built::relation(7, "public", "outbox", &["id", "body", "x"]).bytes();
    let mut relations = Relations::new();
    for bytes in [&first, &second] {
        let Message::Relation(relation) = Message::decode(bytes).unwrap() else { panic!() };
        relations.update(&relation);
    }
    let table = relations.get(7).unwrap();
    assert_eq!((table.column("body"), table.column("payload")), (Some(1), None));
    assert_eq!(relations.len(), 1);
    assert_eq!(relations.named("public", "outbox").count(), 1);
    assert_eq!(relations.named("other", "outbox").count(), 0);
}

#[test]
fn pg_catalog_is_spelled_out() {
    let bytes = Built::relation(1, "", "pg_class", &["oid"]).bytes();
    let Message::Relation(relation) = Message::decode(&bytes).unwrap() else { panic!() };
    assert_eq!(Relations::new().update(&relation).namespace, "pg_catalog");
}

#[test]
fn c26_times_at_the_ends_do_not_overflow() {
    assert_eq!(Timestamp(0).unix_micros(), 946_684_800_000_000);
    assert_eq!(Timestamp(i64::MAX).unix_micros(), i64::MAX);
    for micros in [i64::MIN, -1, 0, 1, i64::MAX] {
        let _ = Timestamp(micros).system_time();
    }
    assert_eq!(
        Timestamp(-POSTGRES_EPOCH_SECONDS * 1_000_000).system_time(),
        SystemTime::UNIX_EPOCH
    );
}

/// The test side's own encoder.
#[derive(Debug, Clone)]
struct Built(Vec<u8>);

#[derive(Debug, Clone)]
enum Value {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

impl Built {
    fn kind(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.raw(text.as_bytes()).raw(&[0])
    }

    fn tuple(self, kind: u8, values: &[Value]) -> Self {
        let count = u16::try_from(values.len()).unwrap();
        values.iter().fold(self.raw(&[kind]).raw(&count.to_be_bytes()), |built, value| {
            let sized = |built: Self, kind, bytes: &[u8]| {
                let len = u32::try_from(bytes.len()).unwrap();
                built.raw(&[kind]).raw(&len.to_be_bytes()).raw(bytes)
            };
            match value {
                Value::Null => built.raw(b"n"),
                Value::Unchanged => built.raw(b"u"),
                Value::Text(bytes) => sized(built, b't', bytes),
                Value::Binary(bytes) => sized(built, b'b', bytes),
            }
        })
    }

    fn relation(oid: u32, namespace: &str, name: &str, columns: &[&str]) -> Self {
        let count = u16::try_from(columns.len()).unwrap();
        let built = Self::kind(b'R').raw(&oid.to_be_bytes()).text(namespace).text(name);
        columns.iter().fold(built.raw(b"d").raw(&count.to_be_bytes()), |built, column| {
            built.raw(&[0]).text(column).raw(&25_u32.to_be_bytes()).raw(&(-1_i32).to_be_bytes())
        })
    }

    fn bytes(self) -> Vec<u8> {
        self.0
    }
}

fn value() -> impl Strategy<Value = Value> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        Just(Value::Null),
        Just(Value::Unchanged),
        bytes().prop_map(Value::Text),
        bytes().prop_map(Value::Binary),
    ]
}

fn row() -> impl Strategy<Value = Vec<Value>> {
    proptest::collection::vec(value(), 0..20)
}

fn same(tuple: &Tuple<'_>, values: &[Value]) -> bool {
    tuple.len() == values.len()
        && tuple.values().zip(values).all(|(found, value)| match (found, value) {
            (Null, Value::Null) | (Unchanged, Value::Unchanged) => true,
            (Text(found), Value::Text(bytes)) | (Binary(found), Value::Binary(bytes)) => {
                found == bytes
            }
            _ => false,
        })
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::decode(&bytes) {
            exhaust(&message);
        }
    }

    /// As above, but with a first byte that leads further in.
    #[test]
    fn any_bytes_after_a_known_kind(
        kind in proptest::sample::select(&b"BCORYIUDTM"[..]),
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        bytes.insert(0, kind);
        if let Ok(message) = Message::decode(&bytes) {
            exhaust(&message);
        }
    }

    #[test]
    fn a_captured_message_with_changed_bytes(
        which in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let all = captured();
        let (_, mut bytes) = all[which.index(all.len())].clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(message) = Message::decode(&bytes) {
            exhaust(&message);
        }
    }

    #[test]
    fn rows_round_trip(oid in any::<u32>(), new in row(), old in row(), full in any::<bool>()) {
        let id = oid.to_be_bytes();
        let bytes = Built::kind(b'I').raw(&id).tuple(b'N', &new).bytes();
        let Ok(Message::Insert(insert)) = Message::decode(&bytes) else { panic!() };
        prop_assert!(insert.relation == oid && same(&insert.new, &new));

        let kind = if full { b'O' } else { b'K' };
        let bytes = Built::kind(b'U').raw(&id).tuple(kind, &old).tuple(b'N', &new).bytes();
        let Ok(Message::Update(update)) = Message::decode(&bytes) else { panic!() };
        prop_assert!(same(&update.new, &new));
        match update.old {
            Some(OldTuple::Key(found)) => prop_assert!(!full && same(&found, &old)),
            Some(OldTuple::Full(found)) => prop_assert!(full && same(&found, &old)),
            None => prop_assert!(false),
        }

        let bytes = Built::kind(b'D').raw(&id).tuple(kind, &old).bytes();
        prop_assert!(matches!(Message::decode(&bytes), Ok(Message::Delete(d)) if d.relation == oid));
    }

    #[test]
    fn relations_round_trip(
        oid in any::<u32>(),
        namespace in "[^\0]{0,10}",
        name in "[^\0]{1,20}",
        columns in proptest::collection::vec("[^\0]{1,10}", 0..12),
    ) {
        let names: Vec<_> = columns.iter().map(String::as_str).collect();
        let bytes = Built::relation(oid, &namespace, &name, &names).bytes();
        let Ok(Message::Relation(relation)) = Message::decode(&bytes) else { panic!() };
        prop_assert_eq!((relation.id, relation.namespace, relation.name), (oid, &namespace[..], &name[..]));
        prop_assert_eq!(relation.columns().map(|c| c.name).collect::<Vec<_>>(), names);
    }

    #[test]
    fn transaction_messages_round_trip(
        final_lsn in any::<u64>(), end in any::<u64>(), time in any::<i64>(), xid in any::<u32>(),
        prefix in "[^\0]{0,10}", content in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let (lsn, end_lsn) = (final_lsn.to_be_bytes(), end.to_be_bytes());
        let time_bytes = time.to_be_bytes();
        let bytes = Built::kind(b'B').raw(&lsn).raw(&time_bytes).raw(&xid.to_be_bytes()).bytes();
        let begin = Begin { final_lsn: final_lsn.into(), commit_time: Timestamp(time), xid };
        prop_assert_eq!(Message::decode(&bytes), Ok(Message::Begin(begin)));

        let bytes = Built::kind(b'C').raw(&[0]).raw(&lsn).raw(&end_lsn).raw(&time_bytes).bytes();
        let commit = Commit {
            flags: 0, commit_lsn: final_lsn.into(), end_lsn: end.into(), commit_time: Timestamp(time),
        };
        prop_assert_eq!(Message::decode(&bytes), Ok(Message::Commit(commit)));

        let len = u32::try_from(content.len()).unwrap().to_be_bytes();
        let bytes = Built::kind(b'M').raw(&[1]).raw(&lsn).text(&prefix).raw(&len).raw(&content).bytes();
        let message = LogicalMessage {
            transactional: true, lsn: final_lsn.into(), prefix: &prefix, content: &content,
        };
        prop_assert_eq!(Message::decode(&bytes), Ok(Message::Message(message)));
    }
}

/// Reads everything that a message lends out.
fn exhaust(message: &Message<'_>) {
    match message {
        Message::Insert(insert) => assert_eq!(insert.new.values().count(), insert.new.len()),
        Message::Update(update) => assert_eq!(update.new.values().count(), update.new.len()),
        Message::Delete(Delete { old: OldTuple::Key(row) | OldTuple::Full(row), .. }) => {
            assert_eq!(row.values().count(), row.len());
        }
        Message::Relation(relation) => {
            assert_eq!(relation.columns().count(), relation.columns().len());
        }
        Message::Truncate(truncate) => drop(truncate.relations().count()),
        _ => {}
    }
}
