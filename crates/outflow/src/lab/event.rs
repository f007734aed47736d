//! An event, as a row of the outbox and as an entry of the list. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The type of the event that every order begins with.
pub(super) const PLACED: &str = "OrderPlaced";

/// What one row of the outbox says, without its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) event_id: String,
    pub(super) aggregate_id: String,
    pub(super) seq: i64,
    pub(super) event_type: String,
    pub(super) payload: String,
}

/// The entry: a JSON object, in which the payload stands as it was written.
#[derive(Serialize, Deserialize)]
struct Entry {
    event_id: String,
    aggregate_id: String,
    seq: i64,
    event_type: String,
    payload: Box<RawValue>,
}

/// What the lab's own payloads say.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Payload {
    pub(super) order_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sku: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) qty: Option<i64>,
    /// When it happened.
    pub(super) at: String,
}

impl Event {
    /// The `seq`-th event of an order. Its id is made of what it is about, so that it is the same
    /// however often it is delivered.
    pub(super) fn of_order(order_id: i64, seq: i64, event_type: &str, payload: String) -> Self {
        let aggregate_id = aggregate_id(order_id);
        Self {
            event_id: format!("{aggregate_id}.{seq}"),
            aggregate_id,
            seq,
            event_type: event_type.to_owned(),
            payload,
        }
    }

    /// What is pushed to the list.
    pub(super) fn entry(&self) -> anyhow::Result<String> {
        let payload = match RawValue::from_string(self.payload.clone()) {
            Ok(json) => json,
            // a payload that is no JSON travels as a string
            Err(_) => serde_json::value::to_raw_value(&self.payload)?,
        };
        Ok(serde_json::to_string(&Entry {
            event_id: self.event_id.clone(),
            aggregate_id: self.aggregate_id.clone(),
            seq: self.seq,
            event_type: self.event_type.clone(),
            payload,
        })?)
    }

    /// Reads an entry of the list; `None` if it is no event.
    pub(super) fn read(entry: &[u8]) -> Option<Self> {
        let Entry { event_id, aggregate_id, seq, event_type, payload } =
            serde_json::from_slice(entry).ok()?;
        let payload = payload.get().to_owned();
        Some(Self { event_id, aggregate_id, seq, event_type, payload })
    }

    /// How many pieces an order asks for; `None` for events that are about something else.
    pub(super) fn pieces(&self) -> Option<i64> {
        if self.event_type != PLACED {
            return None;
        }
        serde_json::from_str::<Payload>(&self.payload).ok()?.qty
    }
}

/// `order-7`.
pub(super) fn aggregate_id(order_id: i64) -> String {
    format!("order-{order_id}")
}

/// This moment, to the second: events of one transaction share it.
pub(super) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: &str) -> Event {
        Event::of_order(7, 1, PLACED, payload.to_owned())
    }

    #[test]
    fn an_entry_holds_the_payload_as_it_was_written() {
        let there = event(r#"{"qty": 1.50,  "order_id":7,"at":"x"}"#);
        let entry = there.entry().unwrap();
        assert!(entry.starts_with(r#"{"event_id":"order-7.1","aggregate_id":"order-7","seq":1,"#));
        assert!(entry.contains(r#""payload":{"qty": 1.50,  "order_id":7"#), "{entry}");
        assert_eq!(Event::read(entry.as_bytes()), Some(there));
    }

    #[test]
    fn a_payload_that_is_no_json_travels_as_a_string() {
        let entry = event("not \"json\"").entry().unwrap();
        let back = Event::read(entry.as_bytes()).unwrap();
        assert_eq!(back.payload, r#""not \"json\"""#);
        assert_eq!(back.pieces(), None);
    }

    #[test]
    fn what_is_no_event_is_said_to_be_none() {
        for entry in ["", "junk", "{}", "[1]", r#"{"event_id":1}"#] {
            assert_eq!(Event::read(entry.as_bytes()), None, "{entry}");
        }
        assert_eq!(Event::read(&[0xff, 0xfe]), None);
    }

    #[test]
    fn only_placed_orders_have_pieces() {
        let payload = r#"{"order_id":7,"sku":"pear","qty":3,"at":"x"}"#;
        assert_eq!(event(payload).pieces(), Some(3));
        let paid = Event { event_type: "OrderPaid".to_owned(), ..event(payload) };
        assert_eq!(paid.pieces(), None);
    }
}
