//! The relation `events`: a batch sent as arrays.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;
use outflow_event::EntryId;
use tokio_postgres::types::{ToSql, Type};

use crate::delivery::Delivery;
use crate::encoded::{EncodeError, EncodedArray, memory_for};
use crate::json::is_jsonb as is_jsonb_text;
use crate::time::micros_since_epoch;

/// Casts stand here and not in the arrays' types: a column that is not read is not parsed either.
pub(super) const EVENTS: &str = include_str!("../sql/events.sql");

/// A batch as the parameters of [`EVENTS`].
pub(super) struct Relation {
    columns: [EncodedArray; 17],
    /// Which deliveries it holds.
    of: Vec<Identity>,
}

/// What tells a delivery from every other, and from itself in another form.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    ordinal: usize,
    id: EntryId,
    stream: Arc<str>,
    is_jsonb: bool,
    is_replacement: bool,
}

impl Identity {
    fn of(delivery: &Delivery) -> Self {
        Self {
            ordinal: delivery.ordinal,
            id: delivery.entry.id,
            stream: delivery.stream.clone(),
            is_jsonb: delivery.payload_json().is_some(),
            is_replacement: delivery.is_replacement(),
        }
    }
}

impl Relation {
    pub(super) fn of(events: &[Delivery]) -> Result<Self, EncodeError> {
        let memory = &mut memory_for(events.iter());
        let text = |of: fn(&Delivery) -> &str, memory: &mut BytesMut| {
            let column: Vec<&str> = events.iter().map(of).collect();
            EncodedArray::new(&column, &Type::TEXT_ARRAY, memory)
        };
        let optional = |of: fn(&Delivery) -> Option<&str>, memory: &mut BytesMut| {
            let column: Vec<Option<&str>> = events.iter().map(of).collect();
            EncodedArray::new(&column, &Type::TEXT_ARRAY, memory)
        };
        let seq: Vec<Option<i64>> = events.iter().map(|d| d.entry.event.seq).collect();
        let is_jsonb: Vec<bool> = events.iter().map(|d| d.payload_json().is_some()).collect();
        let payload_raw: Vec<Option<&[u8]>> = events.iter().map(Delivery::payload_raw).collect();
        let position: Vec<Option<String>> =
            events.iter().map(|d| d.entry.position.map(|p| p.to_string())).collect();
        let entry_id: Vec<String> = events.iter().map(|d| d.entry.id.to_string()).collect();
        let extra: Vec<Cow<'_, str>> =
            events.iter().map(|d| object(&d.entry.event.extra)).collect();
        // unnest fills up with NULL: what is almost never there costs two empty arrays
        let replaces = events.iter().any(Delivery::is_replacement);
        let rare = if replaces { events } else { &[] };
        let is_replacement: Vec<bool> = rare.iter().map(Delivery::is_replacement).collect();
        let replaced: Vec<Option<&str>> = rare.iter().map(replaced_json).collect();
        let columns = [
            text(|d| &d.entry.event.event_id, memory)?,
            text(|d| &d.entry.event.aggregate_type, memory)?,
            text(|d| &d.entry.event.aggregate_id, memory)?,
            EncodedArray::new(&seq, &Type::INT8_ARRAY, memory)?,
            text(|d| &d.entry.event.event_type, memory)?,
            EncodedArray::new(&is_jsonb, &Type::BOOL_ARRAY, memory)?,
            optional(Delivery::payload_text, memory)?,
            EncodedArray::new(&payload_raw, &Type::BYTEA_ARRAY, memory)?,
            // an invalid document, or an invalid moment, would fail the whole batch
            optional(
                |d| d.entry.event.headers.as_deref().filter(|text| is_jsonb_text(text)),
                memory,
            )?,
            optional(|d| d.entry.event.created_at.as_deref(), memory)?,
            EncodedArray::new(&position, &Type::TEXT_ARRAY, memory)?,
            optional(
                |d| {
                    d.entry.commit_time.as_deref().filter(|text| micros_since_epoch(text).is_some())
                },
                memory,
            )?,
            text(|d| &d.stream, memory)?,
            EncodedArray::new(&entry_id, &Type::TEXT_ARRAY, memory)?,
            EncodedArray::new(&extra, &Type::TEXT_ARRAY, memory)?,
            EncodedArray::new(&is_replacement, &Type::BOOL_ARRAY, memory)?,
            EncodedArray::new(&replaced, &Type::TEXT_ARRAY, memory)?,
        ];
        Ok(Self { columns, of: events.iter().map(Identity::of).collect() })
    }

    /// The part of it that holds exactly `events`, in their order; `None` if it lacks one of them.
    pub(super) fn part(&self, events: &[Delivery]) -> Option<Self> {
        let mut of = Vec::with_capacity(events.len());
        let mut runs: Vec<Range<usize>> = Vec::new();
        for event in events {
            // events stand in the order of their ordinals
            let place = self.of.binary_search_by_key(&event.ordinal, |of| of.ordinal).ok()?;
            let identity = Identity::of(event);
            if self.of.get(place) != Some(&identity) {
                return None;
            }
            match runs.last_mut() {
                Some(run) if run.end == place => run.end += 1,
                _ => runs.push(place..place + 1),
            }
            of.push(identity);
        }
        let columns: Vec<EncodedArray> = self
            .columns
            .iter()
            .map(|column| column.select(&runs))
            .collect::<Result<_, _>>()
            .ok()?;
        Some(Self { columns: columns.try_into().ok()?, of })
    }

    /// Whether it holds exactly `events`, in their order.
    pub(super) fn is_of(&self, events: &[Delivery]) -> bool {
        self.of.len() == events.len()
            && self.of.iter().zip(events).all(|(of, event)| *of == Identity::of(event))
    }

    /// In the order of the parameters of [`EVENTS`].
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 17] {
        self.columns.each_ref().map(EncodedArray::parameter)
    }
}

/// The payload that a delivery replaces, where `jsonb` can hold it.
fn replaced_json(delivery: &Delivery) -> Option<&str> {
    let payload = std::str::from_utf8(delivery.replaced_payload()?).ok()?;
    is_jsonb_text(payload).then_some(payload)
}

/// The further fields as a JSON object; bytes that no JSON string can hold become U+FFFD.
fn object(extra: &[(String, Vec<u8>)]) -> Cow<'static, str> {
    if extra.is_empty() {
        return Cow::Borrowed("{}");
    }
    let text = |text: &str| serde_json::Value::from(text.replace('\0', "\u{FFFD}"));
    let object = extra
        .iter()
        .map(|(name, value)| {
            (name.replace('\0', "\u{FFFD}"), text(&String::from_utf8_lossy(value)))
        })
        .collect::<serde_json::Map<_, _>>()
        .into_iter()
        .collect::<serde_json::Value>();
    Cow::Owned(object.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_fields_become_an_object_that_jsonb_accepts() {
        assert_eq!(object(&[]), "{}");
        let extra = [("a\"".to_owned(), b"x\0\xff".to_vec()), ("b".to_owned(), b"1".to_vec())];
        let text = object(&extra);
        assert_eq!(text, "{\"a\\\"\":\"x\u{FFFD}\u{FFFD}\",\"b\":\"1\"}");
        assert!(is_jsonb_text(&text));
    }
}
