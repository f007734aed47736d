//! The Redis Streams entry, encoded and decoded in this one place.
//!
//! An entry is a flat list of plain fields, so that consumers in any language need no library:
//!
//! | field | always there | value |
//! | --- | --- | --- |
//! | `event_id`, `aggregate_type`, `aggregate_id`, `event_type` | yes | text |
//! | `seq`, `payload`, `headers`, `created_at` | unless NULL in the outbox | text, as PostgreSQL prints it |
//! | `position` | from the connector | `<commit LSN>:<index>`, for example `0/16B3748:3` |
//! | `commit_time` | from the connector's stream, not its snapshot | RFC 3339 in UTC with microseconds |
//! | any other | | further outbox columns under their own names |

use crate::event::{Event, EventRef};
use crate::position::{EntryId, Position};

/// Names of the fields of an entry.
pub mod field {
    /// The event's id.
    pub const EVENT_ID: &str = "event_id";
    /// The aggregate's type.
    pub const AGGREGATE_TYPE: &str = "aggregate_type";
    /// The aggregate's id.
    pub const AGGREGATE_ID: &str = "aggregate_id";
    /// The event's type.
    pub const EVENT_TYPE: &str = "event_type";
    /// The producer's number within the aggregate.
    pub const SEQ: &str = "seq";
    /// The body.
    pub const PAYLOAD: &str = "payload";
    /// Metadata.
    pub const HEADERS: &str = "headers";
    /// The producer's time.
    pub const CREATED_AT: &str = "created_at";
    /// Commit LSN and index.
    pub const POSITION: &str = "position";
    /// Time of the commit.
    pub const COMMIT_TIME: &str = "commit_time";

    /// Every name above: an outbox column of such a name cannot become a further field.
    pub const RESERVED: [&str; 10] = [
        EVENT_ID,
        AGGREGATE_TYPE,
        AGGREGATE_ID,
        EVENT_TYPE,
        SEQ,
        PAYLOAD,
        HEADERS,
        CREATED_AT,
        POSITION,
        COMMIT_TIME,
    ];
}

/// What the connector knows about an event beyond its row, as the texts that the entry carries.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// `Display` of the event's [`Position`].
    pub position: &'a [u8],
    /// Commit time, RFC 3339 in UTC with microseconds; `None` for rows that are older than the
    /// slot, whose commit is not known.
    pub commit_time: Option<&'a [u8]>,
}

/// Hands every field of the entry to `put` as `(name, value)`, in a fixed order.
///
/// `origin` is `None` for entries of the polling relay, which does not know commits.
pub fn encode<'a>(
    event: &EventRef<'a>,
    origin: Option<Origin<'a>>,
    mut put: impl FnMut(&'a [u8], &'a [u8]),
) {
    put(field::EVENT_ID.as_bytes(), event.event_id);
    put(field::AGGREGATE_TYPE.as_bytes(), event.aggregate_type);
    put(field::AGGREGATE_ID.as_bytes(), event.aggregate_id);
    put(field::EVENT_TYPE.as_bytes(), event.event_type);
    let optional = [
        (field::SEQ, event.seq),
        (field::PAYLOAD, event.payload),
        (field::HEADERS, event.headers),
        (field::CREATED_AT, event.created_at),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            put(name.as_bytes(), value);
        }
    }
    if let Some(origin) = origin {
        put(field::POSITION.as_bytes(), origin.position);
        if let Some(commit_time) = origin.commit_time {
            put(field::COMMIT_TIME.as_bytes(), commit_time);
        }
    }
    for &(name, value) in event.extra {
        put(name, value);
    }
}

/// An entry as a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Identifies this delivery, never the fact.
    pub id: EntryId,
    /// The event.
    pub event: Event,
    /// Where the event stood in its source; `None` from the polling relay.
    pub position: Option<Position>,
    /// When it was committed, RFC 3339; `None` from the polling relay and from a snapshot.
    pub commit_time: Option<String>,
}

/// Why a record in a stream is not an entry of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A field that every entry has is not there.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// The field stands twice: which one counts is anyone's guess.
    #[error("field `{0}` appears twice")]
    Twice(String),
    /// The field must be UTF-8 text.
    #[error("field `{0}` is not UTF-8")]
    NotText(String),
    /// The field has a value of the wrong form.
    #[error("field `{name}` has the value `{value}`: {expected}")]
    Value {
        /// Name of the field.
        name: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
}

/// Reads an entry from its id and its fields, copying the values.
///
/// Fields may stand in any order. Unknown ones become [`Event::extra`].
///
/// # Errors
/// [`Malformed`] names the field. The record can never become valid: set it aside with its raw
/// bytes and go on.
pub fn decode<'a>(
    id: EntryId,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Entry, Malformed> {
    let mut raw = RawFields::default();
    for (name, value) in fields {
        raw.take(name, value)?;
    }
    raw.into_entry(id)
}

#[derive(Default)]
struct RawFields<'a> {
    event_id: Option<&'a str>,
    aggregate_type: Option<&'a str>,
    aggregate_id: Option<&'a str>,
    event_type: Option<&'a str>,
    seq: Option<&'a str>,
    payload: Option<&'a [u8]>,
    headers: Option<&'a str>,
    created_at: Option<&'a str>,
    position: Option<&'a str>,
    commit_time: Option<&'a str>,
    extra: Vec<(String, Vec<u8>)>,
}

impl<'a> RawFields<'a> {
    fn take(&mut self, name: &'a [u8], value: &'a [u8]) -> Result<(), Malformed> {
        let slot = match name {
            b"payload" => {
                return match self.payload.replace(value) {
                    None => Ok(()),
                    Some(_) => Err(Malformed::Twice(field::PAYLOAD.to_owned())),
                };
            }
            b"event_id" => &mut self.event_id,
            b"aggregate_type" => &mut self.aggregate_type,
            b"aggregate_id" => &mut self.aggregate_id,
            b"event_type" => &mut self.event_type,
            b"seq" => &mut self.seq,
            b"headers" => &mut self.headers,
            b"created_at" => &mut self.created_at,
            b"position" => &mut self.position,
            b"commit_time" => &mut self.commit_time,
            _ => {
                let name = text(b"(a field name)", name)?;
                if self.extra.iter().any(|(known, _)| known == name) {
                    return Err(Malformed::Twice(name.to_owned()));
                }
                self.extra.push((name.to_owned(), value.to_vec()));
                return Ok(());
            }
        };
        let value = text(name, value)?;
        if slot.replace(value).is_some() {
            return Err(Malformed::Twice(String::from_utf8_lossy(name).into_owned()));
        }
        Ok(())
    }

    fn into_entry(self, id: EntryId) -> Result<Entry, Malformed> {
        let seq = self.seq.map(|seq| parse(field::SEQ, seq, "a 64-bit integer")).transpose()?;
        let position = self
            .position
            .map(|position| parse(field::POSITION, position, "<commit LSN>:<index>"))
            .transpose()?;
        let present =
            |value: Option<&str>, name| value.map(str::to_owned).ok_or(Malformed::Missing(name));
        let required =
            |value: Option<&'a str>, name| present(value.filter(|value| !value.is_empty()), name);
        Ok(Entry {
            id,
            event: Event {
                event_id: required(self.event_id, field::EVENT_ID)?,
                aggregate_type: required(self.aggregate_type, field::AGGREGATE_TYPE)?,
                aggregate_id: present(self.aggregate_id, field::AGGREGATE_ID)?,
                event_type: present(self.event_type, field::EVENT_TYPE)?,
                seq,
                payload: self.payload.map(<[u8]>::to_vec),
                headers: self.headers.map(str::to_owned),
                created_at: self.created_at.map(str::to_owned),
                extra: self.extra,
            },
            position,
            commit_time: self.commit_time.map(str::to_owned),
        })
    }
}

fn text<'a>(name: &[u8], bytes: &'a [u8]) -> Result<&'a str, Malformed> {
    let not_text = |_| Malformed::NotText(String::from_utf8_lossy(name).into_owned());
    std::str::from_utf8(bytes).map_err(not_text)
}

fn parse<T: std::str::FromStr>(
    name: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<T, Malformed> {
    value.parse().map_err(|_| Malformed::Value { name, value: value.to_owned(), expected })
}

#[cfg(test)]
mod tests;
