use super::*;

const LIMIT: usize = 100;

fn text(values: &[Option<&'static str>]) -> Vec<TupleValue<'static>> {
    values.iter().map(|v| v.map_or(TupleValue::Null, |v| TupleValue::Text(v.as_bytes()))).collect()
}

fn debezium() -> ColumnNames {
    ColumnNames {
        event_id: "id".into(),
        aggregate_type: "aggregatetype".into(),
        aggregate_id: "aggregateid".into(),
        event_type: "type".into(),
        payload: "payload".into(),
        ..ColumnNames::default()
    }
}

#[test]
fn the_default_table_needs_no_configuration() {
    let columns = [
        "id",
        "event_id",
        "aggregate_type",
        "aggregate_id",
        "seq",
        "event_type",
        "payload",
        "headers",
        "created_at",
        "tenant",
    ];
    let map = RowMap::new(&ColumnNames::default(), columns, LIMIT).unwrap();
    let row = text(&[
        Some("1"),
        Some("bus-1"),
        Some("order"),
        Some("42"),
        Some("7"),
        Some("Placed"),
        Some(r#"{"d": 0.10}"#),
        None,
        Some("2026-01-01 00:00:00+00"),
        Some("acme"),
    ]);
    let mut extra = Vec::new();
    let event = map.read(row, &mut extra).unwrap();
    assert_eq!(event.event_id, b"bus-1");
    assert_eq!(event.aggregate_type, b"order");
    assert_eq!(event.aggregate_id, b"42");
    assert_eq!(event.event_type, b"Placed");
    assert_eq!(event.seq, Some(&b"7"[..]));
    assert_eq!(event.payload, Some(&br#"{"d": 0.10}"#[..]));
    assert_eq!(event.headers, None);
    assert_eq!(event.created_at, Some(&b"2026-01-01 00:00:00+00"[..]));
    assert_eq!(event.extra, [(&b"tenant"[..], &b"acme"[..])]);
}

#[test]
fn a_debezium_table_works_by_configuration_alone() {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"];
    let map = RowMap::new(&debezium(), columns, LIMIT).unwrap();
    let row = text(&[Some("u-1"), Some("order"), Some("42"), Some("Placed"), Some("{}")]);
    let mut extra = Vec::new();
    let event = map.read(row, &mut extra).unwrap();
    assert_eq!(event.event_id, b"u-1");
    assert_eq!(event.event_type, b"Placed");
    assert!(event.extra.is_empty());
}

#[test]
fn c13_a_renamed_column_is_named() {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "body"];
    let error = RowMap::new(&debezium(), columns, LIMIT).unwrap_err();
    assert_eq!(error.missing, ["payload"]);
    assert!(error.to_string().starts_with("the outbox has no column `payload`: it has `id`,"));
}

#[test]
fn an_optional_column_is_required_once_it_is_named() {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"];
    let mut names = debezium();
    names.seq = Column::Required("version".into());
    let error = RowMap::new(&names, columns, LIMIT).unwrap_err();
    assert_eq!(error.missing, ["version"]);
}

#[test]
fn c27_a_row_without_its_ids_has_a_fault() {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"];
    let map = RowMap::new(&debezium(), columns, LIMIT).unwrap();
    for (row, fault) in [
        ([None, Some("t"), Some("a"), Some("e"), None], Err(RowFault::Absent("event_id"))),
        ([Some(""), Some("t"), Some("a"), Some("e"), None], Err(RowFault::Absent("event_id"))),
        ([Some("1"), None, Some("a"), Some("e"), None], Err(RowFault::Absent("aggregate_type"))),
        ([Some("1"), Some("t"), None, Some("e"), None], Err(RowFault::Absent("aggregate_id"))),
        ([Some("1"), Some("t"), Some("a"), None, None], Err(RowFault::Absent("event_type"))),
        ([Some("1"), Some("t"), Some(""), Some(""), None], Ok(())),
    ] {
        let mut extra = Vec::new();
        assert_eq!(map.read(text(&row), &mut extra).map(|_| ()), fault);
    }
}

#[test]
fn c65_a_payload_above_the_limit_has_a_fault_and_one_at_it_has_not() {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"];
    let map = RowMap::new(&debezium(), columns, 3).unwrap();
    let row = |payload| text(&[Some("1"), Some("t"), Some("a"), Some("e"), Some(payload)]);
    assert!(map.read(row("123"), &mut Vec::new()).is_ok());
    assert_eq!(
        map.read(row("1234"), &mut Vec::new()),
        Err(RowFault::PayloadTooLarge { bytes: 4, limit: 3 })
    );
}

#[test]
fn a_column_that_would_shadow_a_field_is_left_out() {
    let columns =
        ["id", "aggregatetype", "aggregateid", "type", "payload", "position", "commit_time"];
    let map = RowMap::new(&debezium(), columns, LIMIT).unwrap();
    let row = text(&[Some("1"), Some("t"), Some("a"), Some("e"), None, Some("9"), Some("9")]);
    let mut extra = Vec::new();
    assert!(map.read(row, &mut extra).unwrap().extra.is_empty());
}
