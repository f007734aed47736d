use outflow_event::{Epoch, EventRef, Position, StreamNaming};

use super::*;
use crate::config::EntryIdMode;

fn event<'a>(event_id: &'a str, aggregate_type: &'a str) -> EventRef<'a> {
    EventRef {
        event_id: event_id.as_bytes(),
        aggregate_type: aggregate_type.as_bytes(),
        aggregate_id: b"1",
        event_type: b"T",
        seq: None,
        payload: Some(b"{}"),
        headers: None,
        created_at: None,
        extra: &[],
    }
}

fn encoder(mode: EntryIdMode, epoch: u8) -> Encoder {
    Encoder::new(StreamNaming::new("s:", 1), mode, Epoch(epoch), "c")
}

fn batch() -> Batch {
    Batch::new(&"redis://h".parse().unwrap())
}

fn packed(batch: &Batch) -> Vec<String> {
    let commands = batch.parts().flat_map(|part| part.commands().commands());
    commands.map(|arguments| String::from_utf8(arguments.join(&b' ')).unwrap()).collect()
}

#[test]
fn an_event_is_one_xadd_with_its_position() {
    let (mut batch, mut encoder) = (batch(), encoder(EntryIdMode::Lsn, 1));
    let lsn = "0/16B3748".parse().unwrap();
    encoder.begin(lsn, Some("2026-01-02T03:04:05.000006Z".parse().unwrap())).unwrap();
    encoder.event(&mut batch, Position::new(lsn, 12), &event("a", "order")).unwrap();
    assert_eq!(
        packed(&batch),
        ["XADD s:order 72057594061731656-12 event_id a aggregate_type order aggregate_id 1 \
             event_type T payload {} position 0/16B3748:12 commit_time 2026-01-02T03:04:05.000006Z"]
    );
    assert_eq!(batch.oldest_commit(), Some("2026-01-02T03:04:05.000006Z".parse().unwrap()));
}

#[test]
fn a_batch_knows_what_it_adds_to_each_stream() {
    let (mut batch, mut encoder) = (batch(), encoder(EntryIdMode::Lsn, 0));
    encoder.begin(10.into(), None).unwrap();
    for (index, kind) in (0..).zip(["a", "b", "a"]) {
        let position = Position::new(10.into(), index);
        encoder.event(&mut batch, position, &event("e", kind)).unwrap();
    }
    let id = |minor| EntryId { major: 10, minor };
    assert_eq!(
        batch.streams(),
        [
            StreamSpan { key: b"s:a".to_vec(), ids: Some((id(0), id(2))) },
            StreamSpan { key: b"s:b".to_vec(), ids: Some((id(1), id(1))) },
        ]
    );
    assert_eq!((batch.entries(), batch.events()), (3, 3));
    batch.clear();
    assert_eq!((batch.entries(), batch.bytes(), batch.streams().len()), (0, 0, 0));
}

#[test]
fn ids_may_be_left_to_redis() {
    let (mut batch, mut encoder) = (batch(), encoder(EntryIdMode::Auto, 0));
    encoder.begin(10.into(), None).unwrap();
    encoder.event(&mut batch, Position::new(10.into(), 0), &event("e", "a")).unwrap();
    assert_eq!(batch.parts().next().unwrap().written().next().unwrap().id, b"*");
    assert_eq!(batch.streams(), [StreamSpan { key: b"s:a".to_vec(), ids: None }]);
}

#[test]
fn in_a_cluster_every_slot_has_a_transaction_of_its_own() {
    let mut batch = Batch::new(&"redis+cluster://h".parse().unwrap());
    let mut encoder =
        Encoder::new(StreamNaming::new("s:", 3), EntryIdMode::Lsn, Epoch(0), "connector");
    encoder.begin(10.into(), None).unwrap();
    let mut order = Vec::new();
    for index in 0..30 {
        let id = index.to_string();
        let event = EventRef { aggregate_id: id.as_bytes(), ..event("e", "order") };
        encoder.event(&mut batch, Position::new(10.into(), index), &event).unwrap();
        order.push(format!("10-{index}"));
    }
    assert_eq!((batch.parts().count(), batch.entries(), batch.streams().len()), (3, 30, 3));
    let mut seen = Vec::new();
    for part in batch.parts() {
        let slots: Vec<_> = part.written().map(|entry| Slot::for_key(entry.key)).collect();
        assert!(slots.iter().all(|slot| *slot == slots[0]));
        let ids: Vec<_> =
            part.written().map(|entry| String::from_utf8(entry.id.to_vec()).unwrap()).collect();
        let places: Vec<_> =
            ids.iter().map(|id| order.iter().position(|other| other == id)).collect();
        assert!(places.is_sorted(), "{ids:?}");
        seen.extend(ids);
    }
    seen.sort();
    order.sort();
    assert_eq!(seen, order);
    batch.clear();
    assert_eq!((batch.parts().count(), batch.entries()), (0, 0));
}
