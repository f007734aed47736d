//! Events without a table: the content of a transactional `pg_logical_emit_message`.
//!
//! `outflow.emit_message` writes a flat JSON object around the payload. The object is read, the
//! payload and the headers in it are not: they are passed on byte for byte.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::outbox::{Parts, RowFault};

/// The content of a message.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emitted<'a> {
    #[serde(borrow)]
    event_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    aggregate_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    aggregate_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    seq: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
}

/// A JSON `null` is a payload like any other, not the absence of one.
fn present<'de, D>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Deserialize::deserialize(deserializer).map(Some)
}

impl<'a> Emitted<'a> {
    /// Reads a message's content.
    ///
    /// # Errors
    /// [`RowFault::NotAnEvent`]: set the message aside and go on.
    pub fn parse(content: &'a [u8]) -> Result<Self, RowFault> {
        serde_json::from_slice(content).map_err(|error| RowFault::NotAnEvent(error.to_string()))
    }

    /// The parts of the event. A JSON `null` payload is a value; one that is left out is NULL.
    #[must_use]
    pub fn parts(&'a self) -> Parts<'a> {
        let text = |part: &'a Option<Cow<'a, str>>| part.as_ref().map(|text| text.as_bytes());
        let raw = |part: Option<&'a RawValue>| part.map(|raw| raw.get().as_bytes());
        Parts {
            event_id: text(&self.event_id),
            aggregate_type: text(&self.aggregate_type),
            aggregate_id: text(&self.aggregate_id),
            event_type: text(&self.event_type),
            payload: raw(self.payload),
            seq: raw(self.seq),
            headers: raw(self.headers),
            created_at: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c24_the_payload_is_passed_on_byte_for_byte() {
        let content = br#"{"event_id":"e\u00e9","aggregate_type":"order","aggregate_id":"4\"2",
            "event_type":"Placed","seq":7,"payload":{"n": 9007199254740993, "d": 0.10},
            "headers":{"a":1}}"#;
        let emitted = Emitted::parse(content).unwrap();
        let event = emitted.parts().into_event(&[], 1000).unwrap();
        assert_eq!(event.event_id, "eé".as_bytes());
        assert_eq!(event.aggregate_id, br#"4"2"#);
        assert_eq!(event.seq, Some(&b"7"[..]));
        assert_eq!(event.payload, Some(&br#"{"n": 9007199254740993, "d": 0.10}"#[..]));
        assert_eq!(event.headers, Some(&br#"{"a":1}"#[..]));
    }

    #[test]
    fn c27_a_payload_left_out_is_null_and_a_json_null_is_a_value() {
        let with = |payload: &str| {
            let content = format!(
                r#"{{"event_id":"1","aggregate_type":"t","aggregate_id":"a","event_type":"e"{payload}}}"#
            );
            let emitted = Emitted::parse(content.as_bytes()).unwrap();
            emitted.parts().into_event(&[], 10).unwrap().payload.map(<[u8]>::to_vec)
        };
        assert_eq!(with(""), None);
        assert_eq!(with(r#","payload":null"#), Some(b"null".to_vec()));
        assert_eq!(with(r#","payload":"""#), Some(b"\"\"".to_vec()));
    }

    #[test]
    fn content_that_is_no_event_has_a_fault() {
        for content in ["", "x", "[]", r#"{"event_id":1}"#, r#"{"event":"1"}"#] {
            assert!(matches!(Emitted::parse(content.as_bytes()), Err(RowFault::NotAnEvent(_))));
        }
        let emitted = Emitted::parse(b"{}").unwrap();
        assert_eq!(emitted.parts().into_event(&[], 10), Err(RowFault::Absent("event_id")));
    }
}
