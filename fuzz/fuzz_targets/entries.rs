//! Any fields of a Redis record: decoding must refuse or accept them, never panic, and what it
//! accepts must survive being encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outflow_event::entry::{Entry, Malformed, Origin, decode, encode};
use outflow_event::{EntryId, EventRef};

fuzz_target!(|fields: Vec<(Vec<u8>, Vec<u8>)>| {
    let Ok(entry) = read(&fields) else { return };
    let (event, seq) = (&entry.event, entry.event.seq.map(|seq| seq.to_string()));
    let position = entry.position.map(|position| position.to_string());
    let extra: Vec<(&[u8], &[u8])> =
        event.extra.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
    let borrowed = EventRef {
        event_id: event.event_id.as_bytes(),
        aggregate_type: event.aggregate_type.as_bytes(),
        aggregate_id: event.aggregate_id.as_bytes(),
        event_type: event.event_type.as_bytes(),
        seq: seq.as_ref().map(|seq| seq.as_bytes()),
        payload: event.payload.as_deref(),
        headers: event.headers.as_ref().map(|headers| headers.as_bytes()),
        created_at: event.created_at.as_ref().map(|time| time.as_bytes()),
        extra: &extra,
    };
    let commit_time = entry.commit_time.as_ref().map(|time| time.as_bytes());
    let origin = position.as_ref().map(|position| Origin { position: position.as_bytes(), commit_time });
    let mut again = Vec::new();
    encode(&borrowed, origin, |name, value| again.push((name.to_vec(), value.to_vec())));
    let mut expected = entry.clone();
    if origin.is_none() {
        // a commit time without a position is no entry of ours: encoding does not keep it
        expected.commit_time = None;
    }
    assert_eq!(read(&again).as_ref(), Ok(&expected));
});

fn read(fields: &[(Vec<u8>, Vec<u8>)]) -> Result<Entry, Malformed> {
    decode(EntryId::ZERO, fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())))
}
