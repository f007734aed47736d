//! The pgoutput decoder and the frames of a chunk: any bytes are decoded or refused, and whatever a message
//! lends out can be read to its end.
#![no_main]

use libfuzzer_sys::{fuzz_target, Corpus};
use outflow_pgoutput::{
    Chunk, Frame, Relations,
    message::{Message, OldTuple},
};

fuzz_target!(|data: &[u8]| -> Corpus {
    let read = read(data);
    if let Ok(chunk) = Chunk::from_frames(data.to_vec().into()) {
        for frame in chunk.frames() {
            if let Frame::XLogData { body, .. } = frame {
                self::read(body);
                assert_eq!(chunk.slice(body), body);
            }
        }
        return Corpus::Keep;
    }
    if read { Corpus::Keep } else { Corpus::Reject }
});

fn read(data: &[u8]) -> bool {
    let Ok(message) = Message::decode(data) else { return false };
    let full = |tuple: &outflow_pgoutput::message::Tuple<'_>| {
        assert_eq!(tuple.values().count(), tuple.len());
    };
    match &message {
        Message::Insert(insert) => full(&insert.new),
        Message::Update(update) => {
            full(&update.new);
            if let Some(OldTuple::Key(old) | OldTuple::Full(old)) = &update.old {
                full(old);
            }
        }
        Message::Delete(delete) => {
            let (OldTuple::Key(old) | OldTuple::Full(old)) = &delete.old;
            full(old);
        }
        Message::Relation(relation) => {
            let table = Relations::new().update(relation);
            assert_eq!(table.columns.len(), relation.columns().len());
        }
        Message::Truncate(truncate) => drop(truncate.relations().count()),
        _ => {}
    }
    true
}
