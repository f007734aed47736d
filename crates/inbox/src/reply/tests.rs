use super::*;

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn id(major: u64, minor: u64) -> EntryId {
    EntryId { major, minor }
}

#[tokio::test]
async fn c71_c78_a_read_sees_doubled_fields_and_vanished_entries() {
    let names = ["event_id", "aggregate_type", "aggregate_id", "event_type"];
    let event = |more: &[&str]| {
        let fields = names.iter().flat_map(|name| [*name, "1"]).chain(more.iter().copied());
        Value::Array(fields.map(text).collect())
    };
    let records = Value::Array(vec![
        Value::Array(vec![text("1-0"), event(&["payload", "{}"])]),
        Value::Array(vec![text("2-0"), event(&["event_id", "1"])]),
        Value::Array(vec![text("3-0"), Value::Nil]),
    ]);
    let resp2 = Value::Array(vec![Value::Array(vec![text("s"), records.clone()])]);
    let resp3 = Value::Map(vec![(text("s"), records)]);
    for reply in [resp2, resp3] {
        let reply = Reply::from(&reply);
        let read = read(&reply).await.unwrap();
        let [(b"s", records)] = read.as_slice() else { panic!("{read:?}") };
        let ids: Vec<EntryId> = records.iter().map(|record| record.id).collect();
        assert_eq!(ids, [id(1, 0), id(2, 0), id(3, 0)]);
        let contents: Vec<&Content> = records.iter().map(|record| &record.content).collect();
        let [Content::Event(entry, size), Content::Malformed(why), Content::Gone] =
            contents.as_slice()
        else {
            panic!("{contents:?}")
        };
        let bytes = names.iter().map(|name| name.len() + 1).sum::<usize>() + "payload{}".len();
        assert_eq!((entry.event.payload.as_deref(), *size), (Some(&b"{}"[..]), bytes));
        assert_eq!(why, "field `event_id` appears twice");
    }
    assert!(read(&Reply::Nil).await.unwrap().is_empty());
    assert!(read(&Reply::Int(1)).await.is_err());
    let odd = Reply::Array(vec![Reply::Bulk(b"a")]);
    assert_eq!(super::records(&[Reply::Array(vec![Reply::Bulk(b"1-0"), odd])]), None);
}

#[test]
fn c71_a_claim_reports_deleted_entries() {
    let entry = Value::Array(vec![text("3-0"), Value::Array(vec![text("a"), text("1")])]);
    let reply = |rest: &[Value]| {
        let mut parts = vec![text("4-0"), Value::Array(vec![entry.clone(), Value::Nil])];
        parts.extend_from_slice(rest);
        claimed(Value::Array(parts)).unwrap()
    };
    let before_7 = reply(&[]);
    assert_eq!((before_7.cursor, before_7.records.len()), (id(4, 0), 1));
    assert_eq!(reply(&[Value::Array(vec![text("1-0")])]).deleted, [id(1, 0)]);
}

#[test]
fn c70_a_gap_is_what_was_added_less_what_was_read_less_what_is_there() {
    let info = |first: Value, length: i64| {
        let facts = [("length", Value::Int(length)), ("last-generated-id", text("9-0"))];
        let more = [("entries-added", Value::Int(9)), ("first-entry", first)];
        let all = facts.into_iter().chain(more);
        Value::Array(all.flat_map(|(name, value)| [text(name), value]).collect())
    };
    let group = |read: Value| {
        let facts = [("name", text("g")), ("last-delivered-id", text("3-0"))];
        let all = facts.into_iter().chain([("entries-read", read)]);
        let group = all.flat_map(|(name, value)| [text(name), value]).collect();
        Value::Array(vec![Value::Array(group)])
    };
    let entry = |id: &str| Value::Array(vec![text(id), Value::Array(Vec::new())]);
    let three = || group(Value::Int(3));
    assert_eq!(gap(info(entry("4-0"), 6), three(), "g"), None);
    let lost = Range { above: id(3, 0), up_to: id(6, u64::MAX), entries: 3 };
    assert_eq!(gap(info(entry("7-0"), 3), three(), "g"), Some(lost));
    let all = Range { above: id(3, 0), up_to: id(9, 0), entries: 6 };
    assert_eq!(gap(info(Value::Nil, 0), three(), "g"), Some(all));
    assert_eq!(gap(info(entry("7-0"), 3), group(Value::Nil), "g"), None);
    assert_eq!(gap(info(entry("7-0"), 3), three(), "other"), None);
}

#[test]
fn what_others_have_pending_is_told_from_ones_own() {
    let summary = |workers: &[&str]| {
        let each = |name: &&str| Value::Array(vec![text(name), text("2")]);
        let workers = Value::Array(workers.iter().map(each).collect());
        Value::Array(vec![Value::Int(2), text("7-0"), text("9-1"), workers])
    };
    let none = Value::Array(vec![Value::Int(0), Value::Nil, Value::Nil, Value::Nil]);
    assert_eq!(is_pending_elsewhere(none, "me"), Some(false));
    assert_eq!(is_pending_elsewhere(summary(&["me"]), "me"), Some(false));
    assert_eq!(is_pending_elsewhere(summary(&["a", "me"]), "me"), Some(true));
    assert_eq!(is_pending_elsewhere(summary(&["me", "me:2"]), "me"), Some(true));
    assert_eq!(is_pending_elsewhere(Value::Nil, "me"), None);
}

#[test]
fn progress_ends_below_the_lowest_pending_entry() {
    let group = |lag: Value| {
        Value::Array(vec![Value::Array(vec![
            text("name"),
            text("g"),
            text("last-delivered-id"),
            text("9-1"),
            text("lag"),
            lag,
        ])])
    };
    let none = Value::Array(vec![Value::Int(0), Value::Nil, Value::Nil, Value::Nil]);
    let idle = progress(none.clone(), group(Value::Int(3)), "g").unwrap();
    assert_eq!(idle, Progress { done: id(9, 1), lag: Some(3) });
    assert_eq!(progress(none, group(Value::Int(3)), "other"), None);
    let some = Value::Array(vec![Value::Int(2), text("7-0"), text("9-1")]);
    let busy = progress(some, group(Value::Nil), "g").unwrap();
    assert_eq!(busy, Progress { done: id(6, u64::MAX), lag: None });
}
