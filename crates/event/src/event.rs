//! The event: one business fact.

/// An event on its way out, borrowed from the WAL bytes that it arrived in.
///
/// Every value is the text that PostgreSQL sent, untouched: nothing parses a payload between the
/// outbox and Redis, so `0.10`, numbers beyond 2^53 and `\u0000` arrive as they were written.
/// `None` is SQL NULL and is not the same as an empty text or a JSON `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRef<'a> {
    /// Stable over every delivery; any text.
    pub event_id: &'a [u8],
    /// What kind of thing the event is about; chooses the stream.
    pub aggregate_type: &'a [u8],
    /// Which thing it is about; order is kept within one `(aggregate_type, aggregate_id)`.
    pub aggregate_id: &'a [u8],
    /// What happened.
    pub event_type: &'a [u8],
    /// The producer's own number within the aggregate, where it keeps one.
    pub seq: Option<&'a [u8]>,
    /// The body.
    pub payload: Option<&'a [u8]>,
    /// Metadata for handlers (trace ids, tenant), usually a JSON object.
    pub headers: Option<&'a [u8]>,
    /// When the producer wrote the event, by its own clock.
    pub created_at: Option<&'a [u8]>,
    /// Further outbox columns as `(name, value)`; a NULL column is left out.
    pub extra: &'a [(&'a [u8], &'a [u8])],
}

/// An event on its way in, decoded from an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Stable over every delivery: the key of deduplication together with the consumer's id.
    pub event_id: String,
    /// What kind of thing the event is about.
    pub aggregate_type: String,
    /// Which thing it is about.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The producer's own number within the aggregate.
    pub seq: Option<i64>,
    /// The body, byte for byte as the producer's database printed it; need not be UTF-8 or JSON.
    pub payload: Option<Vec<u8>>,
    /// Metadata, usually a JSON object.
    pub headers: Option<String>,
    /// When the producer wrote the event, as text.
    pub created_at: Option<String>,
    /// Further fields in the order of the entry.
    pub extra: Vec<(String, Vec<u8>)>,
}
