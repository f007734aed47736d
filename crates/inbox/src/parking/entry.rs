//! Entries as rows, and back.

use std::sync::Arc;

use outflow_event::entry::{self, Origin, field};
use outflow_event::{EntryId, EventRef};
use tokio_postgres::{Error, Row};

use crate::delivery::{Delivery, ParkedRow};

/// The row of a parked event; `None` if it is no event (nobody but us writes it).
pub(super) fn parked(
    row: &Row,
    streams: &[Arc<str>],
) -> Result<Option<(Delivery, ParkedRow)>, Error> {
    let (stream, id): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    let fields: Vec<Vec<u8>> = row.try_get(2)?;
    let known = ParkedRow {
        suspect: row.try_get(3)?,
        started: u32::try_from(row.try_get::<_, i32>(4)?).unwrap_or(0),
        finished: u32::try_from(row.try_get::<_, i32>(5)?).unwrap_or(0),
        dead_letter_id: row.try_get(6)?,
        overdue: row.try_get(7)?,
    };
    let Ok(id) = id.parse::<EntryId>() else { return Ok(None) };
    let mut flat = fields.iter().map(Vec::as_slice);
    let pairs = std::iter::from_fn(|| Some((flat.next()?, flat.next()?)));
    let Ok(entry) = entry::decode(id, pairs) else { return Ok(None) };
    let stream = streams.iter().find(|key| &***key == stream).cloned();
    Ok(stream.map(|stream| (Delivery::new(stream, entry), known)))
}

/// The fields of an entry: name, value, name, value, ...
pub(super) fn fields(delivery: &Delivery) -> Vec<Vec<u8>> {
    let (entry, event) = (&delivery.entry, &delivery.entry.event);
    let position = entry.position.map(|position| position.to_string());
    let seq = event.seq.map(|seq| seq.to_string());
    let extra: Vec<_> =
        event.extra.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
    let event = EventRef {
        event_id: event.event_id.as_bytes(),
        aggregate_type: event.aggregate_type.as_bytes(),
        aggregate_id: event.aggregate_id.as_bytes(),
        event_type: event.event_type.as_bytes(),
        seq: seq.as_deref().map(str::as_bytes),
        payload: event.payload.as_deref(),
        headers: event.headers.as_deref().map(str::as_bytes),
        created_at: event.created_at.as_deref().map(str::as_bytes),
        extra: &extra,
    };
    let commit_time = entry.commit_time.as_deref().map(str::as_bytes);
    let origin = position.as_deref().map(|p| Origin { position: p.as_bytes(), commit_time });
    let mut fields = Vec::with_capacity(24);
    entry::encode(&event, origin, |name, value| fields.extend([name.to_vec(), value.to_vec()]));
    if let (None, Some(commit_time)) = (origin, commit_time) {
        fields.extend([field::COMMIT_TIME.as_bytes().to_vec(), commit_time.to_vec()]);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use outflow_event::{Lsn, Position};

    #[test]
    fn a_parked_entry_is_read_as_it_was_delivered() {
        let pairs = |more: &[(&str, &[u8])]| -> Vec<(Vec<u8>, Vec<u8>)> {
            let all: [(&str, &[u8]); 4] = [
                ("event_id", b"e1"),
                ("aggregate_type", b"order"),
                ("aggregate_id", b""),
                ("event_type", b"T"),
            ];
            all.iter().chain(more).map(|(n, v)| (n.as_bytes().to_vec(), v.to_vec())).collect()
        };
        let position = Position::new(Lsn::from(7), 3).to_string();
        let bare = pairs(&[]);
        let full = pairs(&[
            ("payload", b"\xff\x00"),
            ("seq", b"-9"),
            ("headers", b"{}"),
            ("created_at", b"then"),
            ("position", position.as_bytes()),
            ("commit_time", b"2024-05-01T12:00:00Z"),
            ("tenant", b"\x00\xfe"),
        ]);
        let time_alone = pairs(&[("payload", b"{}"), ("commit_time", b"now")]);
        for pairs in [bare, full, time_alone] {
            let id = EntryId { major: 5, minor: 1 };
            let pairs = pairs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            let entry = entry::decode(id, pairs).unwrap();
            let delivery = Delivery::new("s".into(), entry.clone());
            let fields = fields(&delivery);
            let mut flat = fields.iter().map(Vec::as_slice);
            let again = std::iter::from_fn(|| Some((flat.next()?, flat.next()?)));
            assert_eq!(entry::decode(id, again).unwrap(), entry);
        }
    }
}
