//! Compares facts that are handed in one by one; reads and writes nothing itself.
//!
//! The order of the calls: every committed event, then the entries of the streams in their order,
//! then the inbox, the rest in any order, then [`Checker::finish`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use outflow_event::entry::field;

use super::entry::{self, Fields};
use super::verdict::{Fault, Verdict};

/// The low 56 bits of an entry id's first half hold the commit LSN.
const LSN_MASK: u64 = (1 << 56) - 1;

/// What producers know themselves of what they did, beside what stands in their database.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// Facts whose commit was acknowledged.
    pub(crate) committed: HashSet<String>,
    /// Facts whose transaction or savepoint was rolled back.
    pub(crate) rolled_back: HashSet<String>,
}

/// What the checked relay promises.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Entry ids are made of epoch and position (`sink.entry_id = "lsn"`).
    pub(crate) lsn_ids: bool,
    /// An event may be delivered again, unchanged: at least once. Effects are once all the same.
    pub(crate) may_repeat: bool,
}

/// An event as it was committed.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub(crate) event_id: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    /// Rises in the order of commits; the order of events without it is not checked.
    pub(crate) seq: Option<i64>,
    pub(crate) event_type: String,
    /// As PostgreSQL prints it.
    pub(crate) payload: Option<String>,
    /// As PostgreSQL prints it.
    pub(crate) headers: Option<String>,
}

/// A row of the inbox.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) event_id: String,
    pub(crate) stream: String,
    pub(crate) entry_id: String,
    /// Whichever column holds it.
    pub(crate) payload: Option<Vec<u8>>,
    /// When the row was committed, microseconds since 1970.
    pub(crate) committed_at: Option<i64>,
}

/// A projection: per key the exact sum, as text, and the number of events in it.
pub(crate) type Projection = BTreeMap<(String, String), (String, i64)>;

/// Length and hash: two payloads of a million events are taken for equal by chance about never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digest(usize, u64);

impl Digest {
    fn of(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self(bytes.len(), hasher.finish())
    }
}

/// What is known of a committed event.
#[derive(Debug)]
struct Known {
    /// Counts committed events in the order in which they were handed in.
    number: usize,
    aggregate: usize,
    event_type: usize,
    seq: Option<i64>,
    payload: Option<Digest>,
    headers: Option<Digest>,
    deliveries: u32,
    /// Stream and id of the first one.
    delivery: Option<(usize, (u64, u64))>,
    commit_time: Option<i64>,
    applications: u32,
}

/// What the streams have shown of an aggregate so far.
#[derive(Debug, Default)]
struct Aggregate {
    stream: Option<usize>,
    highest: Option<i64>,
}

/// Texts that repeat, by number.
#[derive(Debug, Default)]
struct Names(HashMap<String, usize>);

impl Names {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let number = self.0.len();
        self.0.insert(name.to_owned(), number);
        number
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}

/// Takes facts and notes faults.
#[derive(Debug)]
pub(crate) struct Checker {
    record: Record,
    rules: Rules,
    events: HashMap<String, Known>,
    aggregates: HashMap<usize, Aggregate>,
    aggregate_names: Names,
    event_types: Names,
    streams: Names,
    positions: HashSet<(u64, u64)>,
    verdict: Verdict,
}

impl Checker {
    /// Knows the producers' record and what the relay promises.
    pub(crate) fn new(record: Record, rules: Rules) -> anyhow::Result<Self> {
        Ok(Self {
            record,
            rules,
            events: HashMap::new(),
            aggregates: HashMap::new(),
            aggregate_names: Names::default(),
            event_types: Names::default(),
            streams: Names::default(),
            positions: HashSet::new(),
            verdict: Verdict::new()?,
        })
    }

    /// An event of a committed transaction.
    pub(crate) fn committed(&mut self, event: &Committed) {
        self.verdict.committed += 1;
        let known = Known {
            number: self.events.len(),
            aggregate: self
                .aggregate_names
                .number(&aggregate_name(&event.aggregate_type, &event.aggregate_id)),
            event_type: self.event_types.number(&event.event_type),
            seq: event.seq,
            payload: event.payload.as_ref().map(|payload| Digest::of(payload.as_bytes())),
            headers: event.headers.as_ref().map(|headers| Digest::of(headers.as_bytes())),
            deliveries: 0,
            delivery: None,
            commit_time: None,
            applications: 0,
        };
        if self.events.insert(event.event_id.clone(), known).is_some() {
            self.verdict.note(Fault::Doubled, || {
                format!("event {}: the producers committed it twice", event.event_id)
            });
        }
    }

    /// What the producer's database holds must be what the producers recorded.
    pub(crate) fn producer_facts(&mut self, facts: &HashSet<String>) {
        for fact in sorted(self.record.committed.difference(facts)) {
            self.verdict.note(Fault::Forgotten, || format!("{fact}: its commit was acknowledged"));
        }
        for fact in sorted(self.record.rolled_back.intersection(facts)) {
            self.verdict.note(Fault::Leaked, || {
                format!("{fact}: rolled back, but in the producer's database")
            });
        }
    }

    /// A record of a stream that events go to.
    pub(crate) fn entry(&mut self, stream: &str, id: &str, fields: &Fields) {
        self.verdict.entries += 1;
        if let Err(why) = self.read_entry(stream, id, fields) {
            self.verdict.note(Fault::Altered, || format!("entry {id} of {stream}: {why}"));
        }
    }

    fn read_entry(&mut self, stream: &str, id: &str, fields: &Fields) -> Result<(), String> {
        let event_id = entry::text(fields, field::EVENT_ID)?.ok_or("it has no event_id")?;
        let entry_id = entry::entry_id(id).ok_or("its id is not <number>-<number>")?;
        let stream_number = self.streams.number(stream);
        let position = entry::position(fields)?;
        let known = self.events.get(event_id).map_or(0, |known| known.deliveries);
        if self.rules.may_repeat && known > 0 {
            self.verdict.repeated += 1;
            return self.same_content(event_id, fields);
        }
        if let Some(position) = position {
            // LSNs begin anew in another epoch, which only the id knows
            let whole = if self.rules.lsn_ids { entry_id } else { position };
            if !self.positions.insert(whole) {
                self.verdict.note(Fault::PositionTwice, || {
                    format!(
                        "entry {id} of {stream}, event {event_id}: another entry has its position"
                    )
                });
            }
        }
        let Some(known) = self.events.get_mut(event_id) else {
            let fact = rolled_back_fact(&self.record.rolled_back, fields);
            self.verdict.note(Fault::Leaked, || {
                format!("entry {id} of {stream}, event {event_id}: {fact}")
            });
            return Ok(());
        };
        known.deliveries += 1;
        if known.deliveries > 1 {
            self.verdict
                .note(Fault::Doubled, || format!("entry {id} of {stream}: event {event_id} again"));
            return Ok(());
        }
        known.delivery = Some((stream_number, entry_id));
        known.commit_time = entry::commit_time(fields)?;
        let (aggregate, seq) = (known.aggregate, known.seq);
        if self.rules.lsn_ids && position != Some((entry_id.0 & LSN_MASK, entry_id.1)) {
            return Err(format!(
                "event {event_id}: its id is not made of its position {position:?}"
            ));
        }
        self.in_order(aggregate, stream_number, seq, || {
            format!("entry {id} of {stream}, event {event_id}")
        });
        self.same_content(event_id, fields)
    }

    fn in_order(
        &mut self,
        aggregate: usize,
        stream: usize,
        seq: Option<i64>,
        what: impl Fn() -> String,
    ) {
        let seen = self.aggregates.entry(aggregate).or_default();
        if *seen.stream.get_or_insert(stream) != stream {
            self.verdict.note(Fault::Reordered, || {
                format!("{}: its aggregate also stands in another stream", what())
            });
            return;
        }
        let Some(seq) = seq else { return };
        match seen.highest {
            Some(highest) if highest >= seq => self.verdict.note(Fault::Reordered, || {
                format!("{}: seq {seq} stands behind seq {highest} of its aggregate", what())
            }),
            _ => seen.highest = Some(seq),
        }
    }

    fn same_content(&self, event_id: &str, fields: &Fields) -> Result<(), String> {
        let Some(known) = self.events.get(event_id) else { return Ok(()) };
        let text = |name| Ok::<_, String>(entry::text(fields, name)?.unwrap_or_default());
        let bytes = |name| Ok::<_, String>(entry::value(fields, name)?.map(Digest::of));
        let aggregate = aggregate_name(text(field::AGGREGATE_TYPE)?, text(field::AGGREGATE_ID)?);
        let event_type = entry::text(fields, field::EVENT_TYPE)?;
        let seq = entry::text(fields, field::SEQ)?;
        for (name, same) in [
            ("aggregate", self.aggregate_names.find(&aggregate) == Some(known.aggregate)),
            (
                field::EVENT_TYPE,
                event_type.and_then(|name| self.event_types.find(name)) == Some(known.event_type),
            ),
            (field::SEQ, seq.map(str::to_owned) == known.seq.map(|seq| seq.to_string())),
            (field::PAYLOAD, bytes(field::PAYLOAD)? == known.payload),
            (field::HEADERS, bytes(field::HEADERS)? == known.headers),
        ] {
            if !same {
                return Err(format!("event {event_id}: {name} is not what was committed"));
            }
        }
        Ok(())
    }

    /// A row of the consumer's inbox.
    pub(crate) fn applied(&mut self, row: &Applied) {
        self.verdict.inbox += 1;
        let event_id = &row.event_id;
        let Some(known) = self.events.get_mut(event_id) else {
            self.verdict
                .note(Fault::Leaked, || format!("inbox row of {event_id}: never committed"));
            return;
        };
        known.applications += 1;
        if known.applications > 1 {
            self.verdict.note(Fault::Doubled, || format!("inbox row of {event_id}: a second one"));
            return;
        }
        if row.payload.as_deref().map(Digest::of) != known.payload {
            self.verdict.note(Fault::Altered, || {
                format!("inbox row of {event_id}: payload is not what was committed")
            });
        }
        let bound = self.streams.find(&row.stream).zip(entry::entry_id(&row.entry_id));
        // which of several deliveries was the first to be applied is free
        if !self.rules.may_repeat && known.deliveries == 1 && bound != known.delivery {
            self.verdict.note(Fault::Altered, || {
                let (entry, stream) = (&row.entry_id, &row.stream);
                format!("inbox row of {event_id}: entry {entry} of {stream} is not its entry")
            });
        }
        if let (Some(from), Some(to)) = (known.commit_time, row.committed_at) {
            // clocks of two machines may disagree by a little
            let took = u64::try_from(to.saturating_sub(from)).unwrap_or(0);
            self.verdict.latency.saturating_record(took);
        }
    }

    /// A conflict, described.
    pub(crate) fn conflict(&mut self, what: String) {
        self.verdict.note(Fault::Conflict, || what);
    }

    /// A dead letter, described.
    pub(crate) fn dead_letter(&mut self, what: String) {
        self.verdict.note(Fault::DeadLetter, || what);
    }

    /// What the projection should say by the producer's tables, and what it says.
    pub(crate) fn projection(&mut self, expected: &Projection, found: &Projection) {
        let events: i64 = found.values().map(|(_, events)| *events).sum();
        self.verdict.projected = u64::try_from(events).unwrap_or_default();
        let keys: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
        for key in keys {
            let (expected, found) = (expected.get(key), found.get(key));
            if expected != found {
                let show = |row: Option<&(String, i64)>| match row {
                    Some((sum, events)) => format!("{sum} from {events} events"),
                    None => "no row".to_owned(),
                };
                let (expected, found) = (show(expected), show(found));
                self.verdict.note(Fault::Projection, || {
                    format!("{} {}: {found}, expected {expected}", key.0, key.1)
                });
            }
        }
    }

    /// Everything was handed in: what is missing now is lost.
    pub(crate) fn finish(mut self) -> Verdict {
        let mut missing: Vec<_> = self
            .events
            .iter()
            .filter(|(_, known)| known.deliveries == 0 || known.applications == 0)
            .map(|(event_id, known)| (known.number, event_id, known.deliveries == 0))
            .collect();
        missing.sort_unstable();
        for (_, event_id, in_no_stream) in missing {
            // what never reached a stream cannot have been applied: say it once
            let fault = if in_no_stream { Fault::Lost } else { Fault::NotApplied };
            self.verdict.note(fault, || format!("event {event_id}"));
        }
        self.verdict
    }
}

fn aggregate_name(aggregate_type: &str, aggregate_id: &str) -> String {
    format!("{aggregate_type}\0{aggregate_id}")
}

fn sorted<'a>(facts: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut facts: Vec<String> = facts.cloned().collect();
    facts.sort_unstable();
    facts
}

/// Says whether the payload of an unknown event names a fact that was rolled back.
fn rolled_back_fact(rolled_back: &HashSet<String>, fields: &Fields) -> String {
    let payload = entry::value(fields, field::PAYLOAD).ok().flatten().unwrap_or_default();
    let values: HashMap<String, serde_json::Value> =
        serde_json::from_slice(payload).unwrap_or_default();
    let mut texts = values.values().filter_map(serde_json::Value::as_str);
    match texts.find(|text| rolled_back.contains(*text)) {
        Some(fact) => format!("{fact} was rolled back"),
        None => "nobody committed it".to_owned(),
    }
}
