//! Gaps in the producer's own numbers: `seq` within an aggregate.
//!
//! The highest number that was applied of each aggregate stands in `outflow.sequence`. It is read while
//! the inbox rows are written and moved together with the position: two statements for a batch, and
//! no round trip. Without `seq`, or with `on_gap = "ignore"`, there is neither.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::{Client, Error, Statement};

use crate::config::OnGap;
use crate::delivery::{Delivery, ParkedRow};
use crate::parking::{Aggregate, keys};

/// The statements, prepared once per connection.
pub(crate) struct Sequence {
    last: Statement,
    advance: Statement,
    gap: Statement,
    fill: Statement,
}

/// A number that is missing, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The event that came instead.
    pub(crate) ordinal: usize,
    /// What should have come.
    pub(crate) expected: i64,
    /// What came.
    pub(crate) found: i64,
    /// Its event waits; else it was applied all the same.
    pub(crate) waits: bool,
}

/// The last numbers of some aggregates.
pub(crate) type Last = HashMap<Aggregate, i64>;

impl Sequence {
    pub(crate) async fn prepare(client: &Client) -> Result<Self, Error> {
        let (last, advance, gap, fill) = futures_util::try_join!(
            client.prepare(include_str!("sql/last_seq.sql")),
            client.prepare(include_str!("sql/sequence.sql")),
            client.prepare(include_str!("sql/gap.sql")),
            client.prepare(include_str!("sql/fill.sql")),
        )?;
        Ok(Self { last, advance, gap, fill })
    }

    /// The last numbers of `aggregates`, as far as they are known.
    pub(crate) async fn last(
        &self,
        tx: &Client,
        consumer_id: &str,
        aggregates: &[Aggregate],
    ) -> Result<Last, Error> {
        if aggregates.is_empty() {
            return Ok(Last::new());
        }
        let (types, ids): (Vec<&str>, Vec<&str>) =
            aggregates.iter().map(|(kind, id)| (kind.as_str(), id.as_str())).unzip();
        let rows = tx.query(&self.last, &[&consumer_id, &types, &ids]).await?;
        rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?))).collect()
    }

    /// Writes down the numbers of events that are applied, if this still is transaction `id`.
    pub(crate) async fn advance(
        &self,
        tx: &Client,
        consumer_id: &str,
        (id, applied): (&str, &[Delivery]),
    ) -> Result<(), Error> {
        let mut highest: HashMap<(&str, &str), i64> = HashMap::new();
        for event in applied.iter().map(|delivery| &delivery.entry.event) {
            let Some(seq) = event.seq else { continue };
            let known = highest.entry((&event.aggregate_type, &event.aggregate_id)).or_insert(seq);
            *known = seq.max(*known);
        }
        if highest.is_empty() {
            return Ok(());
        }
        let (aggregates, seqs): (Vec<_>, Vec<i64>) = highest.into_iter().unzip();
        let (types, ids): (Vec<&str>, Vec<&str>) = aggregates.into_iter().unzip();
        tx.execute(&self.advance, &[&consumer_id, &types, &ids, &seqs, &id]).await.map(drop)
    }

    /// Parked events that wait for an earlier number, each for so long since it began to.
    pub(crate) async fn wait(
        &self,
        tx: &Client,
        consumer_id: &str,
        events: &[&Delivery],
        longest: Duration,
    ) -> Result<(), Error> {
        let (streams, entries) = keys(events.iter().copied());
        let longest = longest.as_secs_f64();
        tx.execute(&self.gap, &[&consumer_id, &streams, &entries, &longest]).await.map(drop)
    }

    /// Makes due what has waited for numbers that have come by now.
    pub(crate) async fn fill(
        &self,
        tx: &Client,
        consumer_id: &str,
        (types, ids): (Vec<&str>, Vec<&str>),
    ) -> Result<(), Error> {
        tx.execute(&self.fill, &[&consumer_id, &types, &ids]).await.map(drop)
    }
}

/// The aggregates of events that carry a number, each once.
pub(crate) fn aggregates(deliveries: &[Delivery]) -> Vec<Aggregate> {
    let numbered = deliveries.iter().filter(|delivery| delivery.entry.event.seq.is_some());
    let mut all: Vec<Aggregate> = numbered
        .map(|d| (d.entry.event.aggregate_type.clone(), d.entry.event.aggregate_id.clone()))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Looks for gaps in `fresh`, and with [`OnGap::Wait`] moves events behind a gap to the end, in order.
/// Returns how many are left in front, and the gaps.
///
/// A number at or below the last one is late, not a gap: it is what somebody waited for. The first
/// number of an aggregate is its beginning. What has waited long enough goes on without what is
/// missing.
pub(crate) fn check(
    fresh: &mut [Delivery],
    parked: &[ParkedRow],
    mut last: Last,
    on_gap: OnGap,
) -> (usize, Vec<Gap>) {
    let mut gaps = Vec::new();
    let mut waits: HashMap<Aggregate, ()> = HashMap::new();
    let mut held = Vec::new();
    for delivery in fresh.iter() {
        let event = &delivery.entry.event;
        let aggregate = (event.aggregate_type.clone(), event.aggregate_id.clone());
        if waits.contains_key(&aggregate) {
            held.push(delivery.ordinal);
            continue;
        }
        let Some(found) = event.seq else { continue };
        let known = last.entry(aggregate.clone()).or_insert(found.saturating_sub(1));
        let expected = known.saturating_add(1);
        if found > expected {
            let overdue = parked.get(delivery.ordinal).is_some_and(|known| known.overdue);
            let waits_for_it = on_gap == OnGap::Wait && !overdue;
            gaps.push(Gap { ordinal: delivery.ordinal, expected, found, waits: waits_for_it });
            if waits_for_it {
                waits.insert(aggregate, ());
                held.push(delivery.ordinal);
                continue;
            }
        }
        *known = found.max(*known);
    }
    if !held.is_empty() {
        held.sort_unstable();
        let is_held = |delivery: &Delivery| held.binary_search(&delivery.ordinal).is_ok();
        fresh.sort_by_key(|delivery| (is_held(delivery), delivery.ordinal));
    }
    (fresh.len() - held.len(), gaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outflow_event::{Entry, EntryId, Event};

    fn deliveries(events: &[(&str, Option<i64>)]) -> Vec<Delivery> {
        let delivery = |(ordinal, (aggregate, seq)): (usize, &(&str, Option<i64>))| {
            let event = Event {
                event_id: format!("e{ordinal}"),
                aggregate_type: "order".into(),
                aggregate_id: (*aggregate).into(),
                event_type: "T".into(),
                seq: *seq,
                payload: None,
                headers: None,
                created_at: None,
                extra: Vec::new(),
            };
            let entry = Entry { id: EntryId::ZERO, event, position: None, commit_time: None };
            let mut delivery = Delivery::new("s".into(), entry);
            delivery.ordinal = ordinal;
            delivery
        };
        events.iter().enumerate().map(delivery).collect()
    }

    fn last(aggregate: &str, seq: i64) -> Last {
        Last::from([(("order".to_owned(), aggregate.to_owned()), seq)])
    }

    #[test]
    fn what_is_behind_a_gap_waits_and_nothing_else_does() {
        let mut events = deliveries(&[
            ("a", Some(3)),
            ("b", Some(7)),
            ("a", Some(5)),
            ("b", Some(8)),
            ("a", None),
            ("c", None),
            ("a", Some(6)),
        ]);
        let (open, gaps) = check(&mut events, &[], last("a", 2), OnGap::Wait);
        let order: Vec<usize> = events.iter().map(|delivery| delivery.ordinal).collect();
        assert_eq!((open, order), (4, vec![0, 1, 3, 5, 2, 4, 6]));
        assert_eq!(gaps, [Gap { ordinal: 2, expected: 4, found: 5, waits: true }]);
    }

    #[test]
    fn a_late_number_is_no_gap_and_a_warning_holds_nothing_up() {
        let mut events =
            deliveries(&[("a", Some(2)), ("a", Some(6)), ("a", Some(4)), ("a", Some(7))]);
        let (open, gaps) = check(&mut events, &[], last("a", 3), OnGap::Warn);
        assert_eq!(open, 4);
        assert_eq!(gaps, [Gap { ordinal: 1, expected: 4, found: 6, waits: false }]);
    }

    #[test]
    fn what_has_waited_long_enough_goes_on() {
        let mut events = deliveries(&[("a", Some(5)), ("a", Some(6)), ("a", Some(8))]);
        let row = |overdue| ParkedRow { overdue, ..ParkedRow::default() };
        let parked = [row(true), row(false), row(false)];
        let (open, gaps) = check(&mut events, &parked, last("a", 3), OnGap::Wait);
        assert_eq!(open, 2);
        assert_eq!((gaps[0].waits, gaps[1].waits), (false, true));
    }
}
