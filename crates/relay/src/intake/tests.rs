use std::time::Duration;

use outflow_event::StreamNaming;
use outflow_pgoutput::ConnectOptions;

use super::*;
use crate::Retry;
use crate::batch::Part;
use crate::config::{
    Durability, EntryIdMode, OffsetConfig, OffsetStoreKind, SinkConfig, SnapshotMode, SourceConfig,
};

const OUTBOX: u32 = 16_400;
const OTHER: u32 = 16_500;

fn config() -> ConnectorConfig {
    ConnectorConfig {
        connector: "test".into(),
        source: SourceConfig {
            connect: ConnectOptions::parse_with("host=127.0.0.1 user=u", &|_| None).unwrap(),
            table: TableName { schema: "outflow".into(), name: "outbox".into() },
            publication: "outflow".into(),
            slot: "outflow".into(),
            snapshot: SnapshotMode::Never,
            message_prefix: Some("outflow".into()),
            max_payload: 20,
            status_interval: Duration::from_secs(10),
            check_interval: Duration::from_secs(5),
            rewind_interval: Duration::ZERO,
            columns: ColumnNames::default(),
            order_by: Vec::new(),
        },
        sink: SinkConfig {
            redis: "redis://127.0.0.1".parse().unwrap(),
            naming: StreamNaming::new("s:", 1),
            entry_id: EntryIdMode::Lsn,
            durability: Durability::Memory,
            batch_entries: 100,
            batch_bytes: 1 << 20,
            timeout: Duration::from_secs(1),
        },
        offset: OffsetConfig {
            store: OffsetStoreKind::Redis,
            ledger_entries: 10,
            ledger_interval: Duration::from_secs(1),
        },
    }
}

fn offset(end_lsn: u64) -> Offset {
    Offset {
        system_identifier: "1".into(),
        timeline: 1,
        slot: "outflow".into(),
        epoch: Epoch(0),
        position: None,
        end_lsn: end_lsn.into(),
        commit_time: None,
        published_count: 0,
        at: Timestamp::UNIX_EPOCH,
        snapshot: None,
    }
}

/// The bytes of messages as the server sends them.
struct Log(Vec<u8>);

impl Log {
    fn new(kind: u8) -> Self {
        Self(vec![kind])
    }
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    fn text(mut self, value: &str) -> Self {
        self.0.extend(value.as_bytes());
        self.u8(0)
    }
    fn tuple(mut self, values: &[Option<&str>]) -> Self {
        self = self.u16(values.len().try_into().unwrap());
        for value in values {
            self = match value {
                None => self.u8(b'n'),
                Some(value) => {
                    self = self.u8(b't').u32(value.len().try_into().unwrap());
                    self.0.extend(value.as_bytes());
                    self
                }
            };
        }
        self
    }
}

fn begin(commit_lsn: u64) -> Vec<u8> {
    Log::new(b'B').u64(commit_lsn).u64(0).u32(7).0
}

fn commit(commit_lsn: u64, end_lsn: u64) -> Vec<u8> {
    Log::new(b'C').u8(0).u64(commit_lsn).u64(end_lsn).u64(0).0
}

fn relation(oid: u32, name: &str, columns: &[&str]) -> Vec<u8> {
    let mut log = Log::new(b'R')
        .u32(oid)
        .text("outflow")
        .text(name)
        .u8(b'd')
        .u16(columns.len().try_into().unwrap());
    for column in columns {
        log = log.u8(0).text(column).u32(25).u32(u32::MAX);
    }
    log.0
}

fn insert(oid: u32, values: &[Option<&str>]) -> Vec<u8> {
    Log::new(b'I').u32(oid).u8(b'N').tuple(values).0
}

fn message(flags: u8, prefix: &str, content: &str) -> Vec<u8> {
    let mut log = Log::new(b'M').u8(flags).u64(1).text(prefix);
    log = log.u32(content.len().try_into().unwrap());
    log.0.extend(content.as_bytes());
    log.0
}

const COLUMNS: [&str; 5] = ["event_id", "aggregate_type", "aggregate_id", "event_type", "payload"];

fn outbox() -> Vec<u8> {
    relation(OUTBOX, "outbox", &COLUMNS)
}

fn event(id: &str) -> Vec<u8> {
    insert(OUTBOX, &[Some(id), Some("order"), Some("1"), Some("T"), Some("{}")])
}

fn feed(intake: &mut Intake, batch: &mut Batch, messages: &[Vec<u8>]) -> Result<(), Error> {
    messages.iter().try_for_each(|bytes| intake.accept(&Message::decode(bytes).unwrap(), batch))
}

fn written(batch: &Batch) -> Vec<(String, String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    batch
        .parts()
        .flat_map(Part::written)
        .map(|entry| (text(entry.key), text(entry.id), text(entry.event_id)))
        .collect()
}

fn entry(key: &str, id: &str, event_id: &str) -> (String, String, String) {
    (key.into(), id.into(), event_id.into())
}

#[test]
fn a_transaction_becomes_entries_and_moves_the_offset() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    feed(&mut intake, &mut batch, &[begin(100), outbox(), event("a"), event("b")]).unwrap();
    let point = intake.progress().resume_point();
    assert_eq!((u64::from(point.lsn), point.published), (100, 2));
    assert_eq!(u64::from(intake.progress().end_lsn), 50);
    feed(&mut intake, &mut batch, &[commit(100, 130)]).unwrap();
    let point = intake.progress().resume_point();
    assert_eq!((u64::from(point.lsn), point.published), (130, 0));
    assert_eq!(intake.progress().published_count, 2);
    assert_eq!(written(&batch), [entry("s:order", "100-0", "a"), entry("s:order", "100-1", "b")]);
    assert_eq!(batch.streams().len(), 1);
}

#[test]
fn c55_the_published_part_of_a_transaction_is_not_published_again() {
    let mut stored = offset(50);
    stored.position = Some(Position::new(100.into(), 0));
    let (mut intake, mut batch) =
        (Intake::new(&config(), stored), Batch::new(&config().sink.redis));
    feed(&mut intake, &mut batch, &[begin(100), outbox(), event("a"), event("b")]).unwrap();
    assert_eq!(written(&batch), [entry("s:order", "100-1", "b")]);
}

#[test]
fn the_age_of_an_event_is_told_by_the_clock_that_dated_its_commit() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let clock = message::Timestamp;
    assert_eq!(intake.age_at(clock(i64::MAX)), Duration::ZERO, "nothing has committed");
    feed(&mut intake, &mut batch, &[begin(100), outbox(), event("a")]).unwrap();
    assert_eq!(intake.age_at(clock(100_000)), Duration::from_millis(100));
    assert_eq!(intake.age_at(clock(-100_000)), Duration::ZERO, "a clock that was put back");
}

#[test]
fn a_keepalive_moves_the_offset_between_transactions_only() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    intake.idle_at(60.into());
    assert_eq!(u64::from(intake.progress().end_lsn), 60);
    feed(&mut intake, &mut batch, &[begin(100)]).unwrap();
    intake.idle_at(90.into());
    assert_eq!(u64::from(intake.progress().end_lsn), 60);
    feed(&mut intake, &mut batch, &[commit(100, 130)]).unwrap();
    intake.idle_at(90.into());
    assert_eq!(u64::from(intake.progress().end_lsn), 130);
}

#[test]
fn c13_a_renamed_column_holds_the_offset_before_its_first_row() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    feed(&mut intake, &mut batch, &[begin(100), outbox(), event("a")]).unwrap();
    let renamed = relation(
        OUTBOX,
        "outbox",
        &["event_id", "aggregate_type", "aggregate_id", "event_type", "body"],
    );
    let error = feed(&mut intake, &mut batch, &[renamed, event("b")]).unwrap_err();
    assert!(error.to_string().starts_with("the outbox has no column `payload`"), "{error}");
    assert_eq!(error.retry(), Retry::Fatal);
    assert_eq!(written(&batch), [entry("s:order", "100-0", "a")]);
    assert_eq!(intake.progress().resume_point().published, 1);
}

#[test]
fn c13_rows_that_are_published_need_no_mapping() {
    let mut stored = offset(50);
    stored.position = Some(Position::new(100.into(), 0));
    let mut config = config();
    config.source.columns.payload = "body".into();
    let (mut intake, mut batch) = (Intake::new(&config, stored), Batch::new(&config.sink.redis));
    let renamed = relation(
        OUTBOX,
        "outbox",
        &["event_id", "aggregate_type", "aggregate_id", "event_type", "body"],
    );
    let messages = [begin(100), outbox(), event("a"), renamed, event("b"), commit(100, 130)];
    feed(&mut intake, &mut batch, &messages).unwrap();
    assert_eq!(written(&batch), [entry("s:order", "100-1", "b")]);
}

#[test]
fn c13_an_added_column_becomes_a_field() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let mut wider = COLUMNS.to_vec();
    wider.push("tenant");
    let row =
        insert(OUTBOX, &[Some("b"), Some("order"), Some("1"), Some("T"), Some("{}"), Some("acme")]);
    let messages = [begin(100), outbox(), event("a"), relation(OUTBOX, "outbox", &wider), row];
    feed(&mut intake, &mut batch, &messages).unwrap();
    let commands: Vec<String> = batch
        .parts()
        .flat_map(|part| part.commands().commands())
        .map(|arguments| String::from_utf8(arguments.join(&b' ')).unwrap())
        .collect();
    assert!(!commands[0].contains("tenant"));
    assert!(commands[1].contains("tenant acme"));
}

#[test]
fn c01_c06_what_is_no_insert_is_passed_over() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let row = [Some("a"), Some("order"), Some("1"), Some("T"), Some("{}")];
    let truncate = Log::new(b'T').u32(1).u8(0).u32(OUTBOX).0;
    let update = Log::new(b'U').u32(OUTBOX).u8(b'N').tuple(&row).0;
    let delete = Log::new(b'D').u32(OUTBOX).u8(b'K').tuple(&row).0;
    let messages =
        [begin(100), outbox(), event("a"), truncate, update, delete, event("b"), commit(100, 130)];
    feed(&mut intake, &mut batch, &messages).unwrap();
    assert_eq!(written(&batch), [entry("s:order", "100-0", "a"), entry("s:order", "100-1", "b")]);
    assert_eq!(u64::from(intake.progress().end_lsn), 130);
}

#[test]
fn rows_of_other_tables_take_no_index() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let other = relation(OTHER, "audit", &["x"]);
    let messages =
        [begin(100), other, insert(OTHER, &[Some("1")]), outbox(), event("a"), commit(100, 130)];
    feed(&mut intake, &mut batch, &messages).unwrap();
    assert_eq!(written(&batch), [entry("s:order", "100-0", "a")]);
}

#[test]
fn c03_only_transactional_messages_of_our_prefix_are_events() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let content = r#"{"event_id":"m","aggregate_type":"order","aggregate_id":"1","event_type":"T","payload":{"d": 0.10}}"#;
    feed(&mut intake, &mut batch, &[message(0, "outflow", content)]).unwrap();
    feed(
        &mut intake,
        &mut batch,
        &[
            begin(100),
            message(1, "other", content),
            message(1, "outflow", content),
            commit(100, 130),
        ],
    )
    .unwrap();
    // a payload of 13 bytes fits the limit of 20
    assert_eq!(written(&batch), [entry("s:order", "100-0", "m")]);
}

#[test]
fn a_row_that_is_no_event_becomes_a_dead_letter_at_its_position() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let without_aggregate = insert(OUTBOX, &[Some("x"), Some("order"), None, Some("T"), None]);
    let too_large = insert(
        OUTBOX,
        &[Some("y"), Some("order"), Some("1"), Some("T"), Some("123456789012345678901")],
    );
    let messages = [
        begin(100),
        outbox(),
        event("a"),
        without_aggregate,
        too_large,
        message(1, "outflow", "no json"),
        event("b"),
        commit(100, 130),
    ];
    feed(&mut intake, &mut batch, &messages).unwrap();
    let dead = "outflow:dead-letters:{test}";
    assert_eq!(
        written(&batch),
        [
            entry("s:order", "100-0", "a"),
            entry(dead, "100-1", "x"),
            entry(dead, "100-2", "y"),
            entry(dead, "100-3", ""),
            entry("s:order", "100-4", "b"),
        ]
    );
    assert_eq!((batch.events(), batch.dead_letters()), (2, 3));
    let command = batch.parts().next().unwrap().commands().commands().nth(2).unwrap();
    let command = String::from_utf8_lossy(&command.join(&b' ')).into_owned();
    assert!(command.contains("the payload has 21 bytes, source.max_payload is 20"));
    assert!(!command.contains("123456789012345678901"), "the payload is left out");
}

#[test]
fn messages_out_of_order_are_a_protocol_error() {
    let (mut intake, mut batch) =
        (Intake::new(&config(), offset(50)), Batch::new(&config().sink.redis));
    let error = feed(&mut intake, &mut batch, &[event("a")]).unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    let error = feed(&mut intake, &mut batch, &[outbox(), event("a")]).unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}
