//! Entries on their way through the consumer: delivered, batched, and remembered until acknowledged.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outflow_event::{Entry, EntryId};

use crate::encoded::EncodeError;
use crate::json::is_jsonb;
use crate::statements::InboxRows;

/// Longest event id: it must fit an index row (a third of a page) together with the consumer's id.
const MAX_EVENT_ID: usize = 2_000;
/// Longest name of an aggregate, for the same reason: events that wait are found by it.
const MAX_AGGREGATE: usize = 1_000;

/// An event as one entry of one stream delivered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Key of the stream.
    pub stream: Arc<str>,
    /// The entry.
    pub entry: Entry,
    form: PayloadForm,
    /// What it replaces, where a person decided so.
    replaced: Option<Replaced>,
    /// Place in its batch: the order in which the streams held the entries.
    pub(crate) ordinal: usize,
}

/// The event that another one takes the place of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Replaced {
    payload: Option<Vec<u8>>,
}

/// How a payload is stored and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PayloadForm {
    /// SQL NULL at the source.
    Absent,
    /// Valid input of `jsonb`.
    Json,
    /// Text that a column of type `text` can hold.
    Text,
    /// Anything else.
    Bytes,
}

impl Delivery {
    /// The delivery of `entry` by `stream`.
    #[must_use]
    pub fn new(stream: Arc<str>, entry: Entry) -> Self {
        let form = match entry.event.payload.as_deref().map(std::str::from_utf8) {
            None => PayloadForm::Absent,
            Some(Ok(text)) if is_jsonb(text) => PayloadForm::Json,
            Some(Ok(text)) if !text.contains('\0') => PayloadForm::Text,
            Some(_) => PayloadForm::Bytes,
        };
        Self { stream, entry, form, replaced: None, ordinal: 0 }
    }

    /// The delivery of an event that takes the place of one with the same id, which had `payload`.
    pub(crate) fn replacement(stream: Arc<str>, entry: Entry, payload: Option<Vec<u8>>) -> Self {
        Self { replaced: Some(Replaced { payload }), ..Self::new(stream, entry) }
    }

    /// Whether a person decided that this event takes the place of another one with the same id, whose
    /// effect the projection already has (`outflow conflicts resolve replace`).
    #[must_use]
    pub fn is_replacement(&self) -> bool {
        self.replaced.is_some()
    }

    /// The payload of the event that this one takes the place of: what a projection needs to take its
    /// effect back. As PostgreSQL prints it where it is JSON.
    #[must_use]
    pub fn replaced_payload(&self) -> Option<&[u8]> {
        self.replaced.as_ref()?.payload.as_deref()
    }

    /// The payload where `jsonb` can hold it.
    #[must_use]
    pub fn payload_json(&self) -> Option<&str> {
        if self.form == PayloadForm::Json { self.utf8() } else { None }
    }

    /// The payload where it is text that PostgreSQL can hold (JSON included).
    #[must_use]
    pub fn payload_text(&self) -> Option<&str> {
        match self.form {
            PayloadForm::Json | PayloadForm::Text => self.utf8(),
            PayloadForm::Absent | PayloadForm::Bytes => None,
        }
    }

    /// The payload's bytes where `jsonb` cannot hold it.
    pub(crate) fn payload_raw(&self) -> Option<&[u8]> {
        match self.form {
            PayloadForm::Absent | PayloadForm::Json => None,
            PayloadForm::Text | PayloadForm::Bytes => self.entry.event.payload.as_deref(),
        }
    }

    /// The server refused the payload as `jsonb`, whatever this side thinks of it.
    pub(crate) fn not_jsonb(&mut self) {
        if self.form == PayloadForm::Json {
            self.form = PayloadForm::Text;
        }
    }

    /// Whether it is about this aggregate.
    pub(crate) fn is_of(&self, aggregate_type: &str, aggregate_id: &str) -> bool {
        let event = &self.entry.event;
        event.aggregate_id == aggregate_id && event.aggregate_type == aggregate_type
    }

    fn utf8(&self) -> Option<&str> {
        self.entry.event.payload.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

/// Why an entry that decodes cannot be stored all the same, or `None`.
pub(crate) fn unstorable(entry: &Entry) -> Option<String> {
    let event = &entry.event;
    let texts = [
        ("event_id", Some(&event.event_id)),
        ("aggregate_type", Some(&event.aggregate_type)),
        ("aggregate_id", Some(&event.aggregate_id)),
        ("event_type", Some(&event.event_type)),
        ("headers", event.headers.as_ref()),
        ("created_at", event.created_at.as_ref()),
    ];
    for (name, text) in texts {
        if text.is_some_and(|text| text.contains('\0')) {
            return Some(format!(
                "field `{name}` holds a NUL byte, which no text in PostgreSQL can"
            ));
        }
    }
    let bounded = [
        ("event_id", &event.event_id, MAX_EVENT_ID),
        ("aggregate_type", &event.aggregate_type, MAX_AGGREGATE),
        ("aggregate_id", &event.aggregate_id, MAX_AGGREGATE),
    ];
    let too_long = bounded.into_iter().find(|(_, text, most)| text.len() > *most);
    too_long.map(|(name, text, most)| {
        format!("field `{name}` has {} bytes: at most {most}", text.len())
    })
}

/// Characters of a reason that are kept: it may quote what a stranger wrote into a stream.
const REASON: usize = 2_000;

/// A reason as it is stored and logged: a text of PostgreSQL holds no NUL, and no reader wants a megabyte.
pub(crate) fn for_people(reason: &str) -> String {
    let mut text: String =
        reason.chars().take(REASON).map(|c| if c == '\0' { ' ' } else { c }).collect();
    if reason.len() > text.len() {
        text.push_str("...");
    }
    text
}

/// Events as people call them: the only one, or the first and the last.
pub(crate) fn named(events: &[Delivery]) -> String {
    let id = |delivery: &Delivery| delivery.entry.event.event_id.clone();
    match events {
        [] => "no events".to_owned(),
        [only] => format!("event {}", id(only)),
        [first, .., last] => format!("{} events ({} .. {})", events.len(), id(first), id(last)),
    }
}

/// An entry that is no event of ours.
#[derive(Debug, Clone)]
pub(crate) struct MalformedEntry {
    pub(crate) stream: usize,
    pub(crate) id: EntryId,
    /// Name, value, name, value, ...
    pub(crate) raw: Vec<Vec<u8>>,
    pub(crate) reason: String,
}

/// Entry ids of one stream (by its index in the configuration).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamIds {
    pub(crate) stream: usize,
    /// Under which they were read.
    pub(crate) token: i64,
    /// Ascending.
    pub(crate) ids: Vec<EntryId>,
}

/// What one transaction applies and one XACK acknowledges.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// In stream order.
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) malformed: Vec<MalformedEntry>,
    /// The inbox rows of the deliveries.
    pub(crate) rows: InboxRows,
    /// Everything to acknowledge: deliveries, malformed entries and those that vanished.
    pub(crate) ids: Arc<Vec<StreamIds>>,
    /// They may have ended a worker: each is to be tried alone.
    pub(crate) suspects: bool,
    /// What is known of each delivery, by its ordinal, where they come from `outflow.parked` and not
    /// from a stream; else empty.
    pub(crate) parked: Vec<ParkedRow>,
}

/// What `outflow.parked` knows of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ParkedRow {
    /// May have ended a worker.
    pub(crate) suspect: bool,
    /// Attempts that began.
    pub(crate) started: u32,
    /// Attempts that came back with an error.
    pub(crate) finished: u32,
    /// The dead letter that is tried again.
    pub(crate) dead_letter_id: Option<i64>,
    /// Has waited long enough for an earlier number of its aggregate.
    pub(crate) overdue: bool,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.iter().all(|stream| stream.ids.is_empty())
    }

    pub(crate) fn is_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// A batch of events that were parked.
    pub(crate) fn of_parked(page: Vec<(Delivery, ParkedRow)>) -> Result<Self, EncodeError> {
        let mut batch = Self::default();
        for (ordinal, (mut delivery, known)) in page.into_iter().enumerate() {
            delivery.ordinal = ordinal;
            batch.deliveries.push(delivery);
            batch.parked.push(known);
        }
        batch.rows = InboxRows::of(&batch.deliveries)?;
        Ok(batch)
    }
}

/// Entries that were read and not acknowledged yet, so that reading the pending list again does not
/// hand them out twice.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<Vec<Arc<Vec<StreamIds>>>>);

/// What was in flight at one moment.
#[derive(Debug, Clone)]
pub(crate) struct InWork(Vec<Arc<Vec<StreamIds>>>);

impl InWork {
    pub(crate) fn contains(&self, stream: usize, id: EntryId) -> bool {
        holds(&self.0, stream, id)
    }
}

fn holds(batches: &[Arc<Vec<StreamIds>>], stream: usize, id: EntryId) -> bool {
    let holds = |held: &StreamIds| held.stream == stream && held.ids.binary_search(&id).is_ok();
    batches.iter().any(|batch| batch.iter().any(holds))
}

impl InFlight {
    pub(crate) fn add(&self, ids: Arc<Vec<StreamIds>>) {
        self.lock().push(ids);
    }

    pub(crate) fn remove(&self, ids: &Arc<Vec<StreamIds>>) {
        self.lock().retain(|held| !Arc::ptr_eq(held, ids));
    }

    pub(crate) fn contains(&self, stream: usize, id: EntryId) -> bool {
        holds(&self.lock(), stream, id)
    }

    /// To be taken before Redis is asked what is pending: an entry may be acknowledged, and forgotten
    /// here, while the answer that names it is on its way.
    pub(crate) fn now(&self) -> InWork {
        InWork(self.lock().clone())
    }

    /// Whether anything of the stream is.
    pub(crate) fn holds(&self, stream: usize) -> bool {
        self.lock().iter().any(|batch| batch.iter().any(|held| held.stream == stream))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Vec<StreamIds>>>> {
        // the list is whole at every moment, whoever panicked
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
