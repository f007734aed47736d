//! What has left the outbox: events that were processed, and entries that still wait in the list.
//! Pure.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::event::Event;

/// What the consumer keeps of an event, in the hash `processed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Processed {
    /// It was the n-th event to be processed.
    pub(super) number: u64,
    /// How often it was taken out of the list.
    pub(super) deliveries: u64,
    pub(super) aggregate_id: String,
    pub(super) seq: i64,
    pub(super) event_type: String,
    /// What processing it did: pieces taken out of the stock.
    pub(super) pieces: i64,
    /// Binds the id to its content.
    pub(super) payload: String,
}

impl Processed {
    pub(super) fn first(number: u64, event: &Event) -> Self {
        Self {
            number,
            deliveries: 1,
            aggregate_id: event.aggregate_id.clone(),
            seq: event.seq,
            event_type: event.event_type.clone(),
            pieces: event.pieces().unwrap_or_default(),
            payload: event.payload.clone(),
        }
    }

    /// Whether this event is the one that was processed, and not another one under its id.
    pub(super) fn is_result_of(&self, event: &Event) -> bool {
        self.aggregate_id == event.aggregate_id
            && self.seq == event.seq
            && self.event_type == event.event_type
            && self.payload == event.payload
    }
}

/// Everything that has left.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// By event id.
    pub(super) processed: BTreeMap<String, Processed>,
    /// Fields of `processed` that the lab has not written.
    pub(super) foreign_results: Vec<String>,
    /// The list, in its order.
    pub(super) waiting: Vec<Event>,
    /// Entries of the list that are no events.
    pub(super) malformed: u64,
    /// Entries that the consumer has set aside.
    pub(super) dead_letters: u64,
}

/// An event that left behind a later one of its aggregate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disorder {
    pub(super) aggregate_id: String,
    pub(super) seq: i64,
    pub(super) after: i64,
}

impl Deliveries {
    /// Entries that were ever in the list.
    pub(super) fn enqueued(&self) -> u64 {
        let taken: u64 = self.processed.values().map(|event| event.deliveries).sum();
        taken + self.dead_letters + self.waiting.len() as u64 + self.malformed
    }

    /// How often an event was delivered.
    pub(super) fn count(&self, event_id: &str) -> u64 {
        let taken = self.processed.get(event_id).map_or(0, |event| event.deliveries);
        taken + self.waiting.iter().filter(|event| event.event_id == event_id).count() as u64
    }

    /// Ids of the events that were delivered.
    pub(super) fn distinct(&self) -> HashSet<&str> {
        let waiting = self.waiting.iter().map(|event| event.event_id.as_str());
        self.processed.keys().map(String::as_str).chain(waiting).collect()
    }

    /// The `seq`s of each aggregate, in the order in which its events first left. A repetition is no
    /// matter of order: whoever filters by event id never sees it.
    pub(super) fn sequences(&self) -> BTreeMap<&str, Vec<i64>> {
        let mut processed: Vec<_> = self.processed.values().collect();
        processed.sort_by_key(|event| event.number);
        let mut sequences = BTreeMap::<&str, Vec<i64>>::new();
        for event in processed {
            sequences.entry(&event.aggregate_id).or_default().push(event.seq);
        }
        let mut seen: HashSet<&str> = self.processed.keys().map(String::as_str).collect();
        for event in &self.waiting {
            if seen.insert(&event.event_id) {
                sequences.entry(&event.aggregate_id).or_default().push(event.seq);
            }
        }
        sequences
    }

    /// The first event of each aggregate that left too late.
    pub(super) fn disorder(&self) -> Vec<Disorder> {
        let sequences = self.sequences().into_iter();
        let found = sequences.filter_map(|(aggregate_id, seqs)| {
            let (after, seq) =
                seqs.iter().zip(seqs.iter().skip(1)).find(|(before, after)| before >= after)?;
            Some(Disorder { aggregate_id: aggregate_id.to_owned(), seq: *seq, after: *after })
        });
        found.collect()
    }

    /// Pieces taken out of the stock: by a consumer that filters, and by one that does not.
    pub(super) fn pieces(&self) -> (i64, i64) {
        let once = self.processed.values().map(|event| event.pieces).sum();
        let each_time = self
            .processed
            .values()
            .map(|event| {
                event.pieces.saturating_mul(i64::try_from(event.deliveries).unwrap_or(i64::MAX))
            })
            .sum();
        (once, each_time)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::PLACED;
    use super::*;

    fn event(order: i64, seq: i64) -> Event {
        let payload = format!(r#"{{"order_id":{order},"qty":2,"at":"x"}}"#);
        Event::of_order(order, seq, PLACED, payload)
    }

    /// These were processed, in this order, and these wait.
    fn deliveries(processed: &[(i64, i64, u64)], waiting: &[(i64, i64)]) -> Deliveries {
        let mut all = Deliveries::default();
        for (number, (order, seq, deliveries)) in (1..).zip(processed) {
            let event = event(*order, *seq);
            let first = Processed::first(number, &event);
            let result = Processed { deliveries: *deliveries, ..first };
            all.processed.insert(event.event_id, result);
        }
        all.waiting = waiting.iter().map(|(order, seq)| event(*order, *seq)).collect();
        all
    }

    #[test]
    fn processed_and_waiting_count_together() {
        let mut all = deliveries(&[(1, 1, 1), (2, 1, 3)], &[(1, 1), (3, 1)]);
        all.dead_letters = 1;
        assert_eq!(all.enqueued(), 7);
        assert_eq!(all.count("order-1.1"), 2);
        assert_eq!(all.count("order-2.1"), 3);
        assert_eq!(all.count("order-9.1"), 0);
        assert_eq!(all.distinct().len(), 3);
        assert_eq!(all.pieces(), (4, 8));
    }

    #[test]
    fn order_is_judged_within_an_aggregate_and_by_first_deliveries() {
        let all = deliveries(&[(2, 5, 1), (1, 1, 1), (1, 2, 1)], &[(1, 1), (1, 3), (2, 6)]);
        assert_eq!(all.disorder(), []);
        assert_eq!(all.sequences()["order-1"], [1, 2, 3]);
        let all = deliveries(&[(1, 1, 1), (1, 3, 1)], &[(1, 2)]);
        let late = Disorder { aggregate_id: "order-1".to_owned(), seq: 2, after: 3 };
        assert_eq!(all.disorder(), [late]);
    }

    #[test]
    fn the_same_seq_under_another_id_is_out_of_order() {
        let mut all = deliveries(&[(1, 1, 1)], &[(1, 1)]);
        all.waiting[0].event_id = "other".to_owned();
        assert_eq!(all.disorder().len(), 1);
    }
}
