//! Events as the connector would have published them.

use anyhow::Context;
use outflow_event::entry::{Origin, encode};
use outflow_event::{EntryId, Epoch, EventRef, Lsn, Position};

use super::super::backlog::{AGGREGATES, MEMO};
use super::super::broker::Broker;
use super::super::progress::Progress;
use super::super::stage::{AGGREGATE_TYPE, STREAM};

/// Entries of one round trip.
const PIPELINE: usize = 500;
/// Events of one source transaction.
const TRANSACTION: u64 = 100;
const EVENT_TYPE: &str = "Posted";
const TIME: &str = "2026-01-01T00:00:00.000000Z";

/// An event with the texts of its entry.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) id: EntryId,
    pub(super) event_id: String,
    pub(super) aggregate_id: String,
    pub(super) seq: i64,
    pub(super) payload: String,
    pub(super) headers: String,
    pub(super) position: String,
}

impl Made {
    pub(super) const AGGREGATE_TYPE: &str = AGGREGATE_TYPE;
    pub(super) const EVENT_TYPE: &str = EVENT_TYPE;
    pub(super) const TIME: &str = TIME;

    fn new(number: u64) -> Self {
        let position = Position::new(
            Lsn::from(0x100_0000 + (number / TRANSACTION) * 0x8000),
            number % TRANSACTION,
        );
        let customer = format!("c-{}", number % AGGREGATES);
        Self {
            // far below 2^56: such a position always has an id
            id: EntryId::at(Epoch::default(), position).unwrap_or(EntryId::ZERO),
            event_id: uuid(rand::random()),
            seq: i64::try_from(number / AGGREGATES + 1).unwrap_or(i64::MAX),
            payload: format!(
                "{{\"memo\": \"{MEMO}\", \"amount\": {}, \"consumer\": \"{customer}\", \
                 \"currency\": \"EUR\", \"journal_id\": \"j-{number}\"}}",
                100 + number % 9900
            ),
            headers: format!("{{\"trace\": \"{number:032x}\"}}"),
            aggregate_id: customer,
            position: position.to_string(),
        }
    }

    fn xadd(&self, stream: &str) -> redis::Cmd {
        let seq = self.seq.to_string();
        let event = EventRef {
            event_id: self.event_id.as_bytes(),
            aggregate_type: AGGREGATE_TYPE.as_bytes(),
            aggregate_id: self.aggregate_id.as_bytes(),
            event_type: EVENT_TYPE.as_bytes(),
            seq: Some(seq.as_bytes()),
            payload: Some(self.payload.as_bytes()),
            headers: Some(self.headers.as_bytes()),
            created_at: Some(TIME.as_bytes()),
            extra: &[],
        };
        let origin =
            Origin { position: self.position.as_bytes(), commit_time: Some(TIME.as_bytes()) };
        let mut command = redis::cmd("XADD");
        command.arg(stream).arg(self.id.to_string());
        encode(&event, Some(origin), |name, value| {
            command.arg(name).arg(value);
        });
        command
    }
}

/// As `gen_random_uuid()` prints one; random, because the order of keys is what an index costs.
fn uuid(random: u128) -> String {
    let mut text = format!("{random:032x}");
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    text
}

/// `count` events in the order of their ids.
pub(super) fn make(count: u64) -> Vec<Made> {
    (0..count).map(Made::new).collect()
}

/// Writes the stream of the other scenarios.
pub(super) async fn fill(
    broker: &mut Broker,
    events: &[Made],
    progress: &Progress,
) -> anyhow::Result<()> {
    fill_stream(broker, STREAM, events, progress).await
}

/// Writes a stream.
pub(super) async fn fill_stream(
    broker: &mut Broker,
    stream: &str,
    events: &[Made],
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut done = 0;
    for chunk in events.chunks(PIPELINE) {
        let mut pipeline = redis::pipe();
        for event in chunk {
            pipeline.add_command(event.xadd(stream)).ignore();
        }
        pipeline.exec_async(&mut broker.connection).await.context("the stream cannot be filled")?;
        done += chunk.len() as u64;
        progress.at(done);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_rise_and_look_like_the_connectors() {
        let events = make(250);
        assert!(events.is_sorted_by(|a, b| a.id < b.id));
        let event = events.last().unwrap();
        assert_eq!((event.aggregate_id.as_str(), event.seq), ("c-249", 1));
        assert!((170..230).contains(&event.payload.len()), "{}", event.payload.len());
        let payload: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
        assert_eq!(payload["amount"], 349);
        assert_eq!(uuid(1), "00000000-0000-0000-0000-000000000001");
    }
}
