//! The relation `events`: a batch sent as arrays.

use tokio_postgres::types::ToSql;

use crate::delivery::Delivery;
use crate::json::is_jsonb;
use crate::time::micros_since_epoch;

/// Casts stand here and not in the arrays' types: a column that is not read is not parsed either.
pub(super) const EVENTS: &str = include_str!("../sql/events.sql");

/// The columns of a batch.
pub(super) struct Relation<'a> {
    event_id: Vec<&'a str>,
    aggregate_type: Vec<&'a str>,
    aggregate_id: Vec<&'a str>,
    seq: Vec<Option<i64>>,
    event_type: Vec<&'a str>,
    is_jsonb: Vec<bool>,
    payload_text: Vec<Option<&'a str>>,
    payload_raw: Vec<Option<&'a [u8]>>,
    headers: Vec<Option<&'a str>>,
    created_at: Vec<Option<&'a str>>,
    position: Vec<Option<String>>,
    commit_time: Vec<Option<&'a str>>,
    stream: Vec<&'a str>,
    entry_id: Vec<String>,
    extra: Vec<String>,
}

impl<'a> Relation<'a> {
    pub(super) fn of(events: &'a [Delivery]) -> Self {
        let event = |delivery: &'a Delivery| &delivery.entry.event;
        Self {
            event_id: events.iter().map(|d| event(d).event_id.as_str()).collect(),
            aggregate_type: events.iter().map(|d| event(d).aggregate_type.as_str()).collect(),
            aggregate_id: events.iter().map(|d| event(d).aggregate_id.as_str()).collect(),
            seq: events.iter().map(|d| event(d).seq).collect(),
            event_type: events.iter().map(|d| event(d).event_type.as_str()).collect(),
            is_jsonb: events.iter().map(|d| d.payload_json().is_some()).collect(),
            payload_text: events.iter().map(Delivery::payload_text).collect(),
            payload_raw: events.iter().map(Delivery::payload_raw).collect(),
            headers: events
                .iter()
                .map(|d| event(d).headers.as_deref().filter(|text| is_jsonb(text)))
                .collect(),
            created_at: events.iter().map(|d| event(d).created_at.as_deref()).collect(),
            position: events.iter().map(|d| d.entry.position.map(|p| p.to_string())).collect(),
            commit_time: events
                .iter()
                .map(|d| d.entry.commit_time.as_deref())
                // an invalid one would fail the whole batch
                .map(|time| time.filter(|text| micros_since_epoch(text).is_some()))
                .collect(),
            stream: events.iter().map(|d| &*d.stream).collect(),
            entry_id: events.iter().map(|d| d.entry.id.to_string()).collect(),
            extra: events.iter().map(|d| object(&event(d).extra)).collect(),
        }
    }

    /// In the order of the parameters of [`EVENTS`].
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 15] {
        [
            &self.event_id,
            &self.aggregate_type,
            &self.aggregate_id,
            &self.seq,
            &self.event_type,
            &self.is_jsonb,
            &self.payload_text,
            &self.payload_raw,
            &self.headers,
            &self.created_at,
            &self.position,
            &self.commit_time,
            &self.stream,
            &self.entry_id,
            &self.extra,
        ]
    }
}

/// The further fields as a JSON object; bytes that no JSON string can hold become U+FFFD.
fn object(extra: &[(String, Vec<u8>)]) -> String {
    if extra.is_empty() {
        return "{}".to_owned();
    }
    let text = |text: &str| serde_json::Value::from(text.replace('\0', "\u{FFFD}"));
    extra
        .iter()
        .map(|(name, value)| {
            (name.replace('\0', "\u{FFFD}"), text(&String::from_utf8_lossy(value)))
        })
        .collect::<serde_json::Map<_, _>>()
        .into_iter()
        .collect::<serde_json::Value>()
        .to_string()
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
        assert!(is_jsonb(&text));
    }
}
