//! The relation `events`: a batch sent as arrays.

use std::borrow::Cow;

use outflow_event::EntryId;
use tokio_postgres::types::{ToSql, Type};

use crate::delivery::Delivery;
use crate::encoded::{EncodeError, Encoded};
use crate::json::is_jsonb as is_jsonb_text;
use crate::time::micros_since_epoch;

/// Casts stand here and not in the arrays' types: a column that is not read is not parsed either.
pub(super) const EVENTS: &str = include_str!("../sql/events.sql");

/// A batch as the parameters of [`EVENTS`].
pub(super) struct Relation {
    columns: [Encoded; 17],
    /// Which deliveries it holds.
    of: Vec<(usize, EntryId)>,
}

impl Relation {
    pub(super) fn of(events: &[Delivery]) -> Result<Self, EncodeError> {
        let text = |of: fn(&Delivery) -> &str| {
            let column: Vec<&str> = events.iter().map(of).collect();
            Encoded::new(&column, &Type::TEXT_ARRAY)
        };
        let optional = |of: fn(&Delivery) -> Option<&str>| {
            let column: Vec<Option<&str>> = events.iter().map(of).collect();
            Encoded::new(&column, &Type::TEXT_ARRAY)
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
            text(|d| &d.entry.event.event_id)?,
            text(|d| &d.entry.event.aggregate_type)?,
            text(|d| &d.entry.event.aggregate_id)?,
            Encoded::new(&seq, &Type::INT8_ARRAY)?,
            text(|d| &d.entry.event.event_type)?,
            Encoded::new(&is_jsonb, &Type::BOOL_ARRAY)?,
            optional(Delivery::payload_text)?,
            Encoded::new(&payload_raw, &Type::BYTEA_ARRAY)?,
            // an invalid document, or an invalid moment, would fail the whole batch
            optional(|d| d.entry.event.headers.as_deref().filter(|text| is_jsonb_text(text)))?,
            optional(|d| d.entry.event.created_at.as_deref())?,
            Encoded::new(&position, &Type::TEXT_ARRAY)?,
            optional(|d| {
                d.entry.commit_time.as_deref().filter(|text| micros_since_epoch(text).is_some())
            })?,
            text(|d| &d.stream)?,
            Encoded::new(&entry_id, &Type::TEXT_ARRAY)?,
            Encoded::new(&extra, &Type::TEXT_ARRAY)?,
            Encoded::new(&is_replacement, &Type::BOOL_ARRAY)?,
            Encoded::new(&replaced, &Type::TEXT_ARRAY)?,
        ];
        Ok(Self { columns, of: events.iter().map(|d| (d.ordinal, d.entry.id)).collect() })
    }

    /// Whether it holds exactly `events`.
    pub(super) fn is_of(&self, events: &[Delivery]) -> bool {
        events.iter().map(|d| (d.ordinal, d.entry.id)).eq(self.of.iter().copied())
    }

    /// In the order of the parameters of [`EVENTS`].
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 17] {
        self.columns.each_ref().map(|column| column as &(dyn ToSql + Sync))
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
