//! What a committed batch did, for people: log lines, counts and metrics.

use std::time::Duration;

use crate::apply::{FailedEvent, Outcome, count};
use crate::consumer::Shared;
use crate::delivery::{Batch, Delivery, for_people};
use crate::sequence::Gap;
use crate::status::Component;
use crate::time::micros_since_epoch;

/// Reports a batch that is committed.
pub(crate) fn report(shared: &Shared, batch: &Batch, outcome: &Outcome) {
    log(shared, batch, outcome);
    let board = &shared.board;
    let conflicts = count(outcome.conflicts.len());
    let failed = count(outcome.failed.len());
    let gaps = count(outcome.gaps.len());
    let dead = count(outcome.failed.iter().filter(|failed| failed.is_dead).count());
    board.metrics.applied.increment(outcome.applied);
    board.metrics.duplicates.increment(outcome.duplicates);
    board.metrics.conflicts.increment(conflicts);
    board.metrics.malformed.increment(outcome.malformed);
    board.metrics.attempts_failed.increment(failed);
    board.metrics.parked.increment(outcome.parked);
    board.metrics.dead_letters.increment(dead);
    board.metrics.gaps.increment(gaps);
    board.count(|counts| {
        counts.batches += 1;
        counts.applied += outcome.applied;
        counts.duplicates += outcome.duplicates;
        counts.conflicts += conflicts;
        counts.malformed += outcome.malformed;
        counts.failed += failed;
        counts.parked += outcome.parked;
        counts.dead += dead;
        counts.gaps += gaps;
    });
    if let Some(delay) = delay(batch) {
        board.metrics.delay.record(delay);
    }
    board.moving(Component::Applier);
}

fn log(shared: &Shared, batch: &Batch, outcome: &Outcome) {
    let of = |ordinal| batch.deliveries.iter().find(|delivery| delivery.ordinal == ordinal);
    let consumer = shared.config.consumer_id.as_str();
    for conflict in &outcome.conflicts {
        let Some(delivery) = of(conflict.ordinal) else { continue };
        tracing::warn!(
            consumer,
            event_id = delivery.entry.event.event_id,
            stream = &*delivery.stream,
            entry_id = %delivery.entry.id,
            applied_stream = conflict.applied_stream,
            applied_entry_id = conflict.applied_entry_id,
            "conflict: a known event id arrived with another payload; not applied, see outflow.conflict"
        );
    }
    for malformed in &batch.malformed {
        tracing::warn!(
            consumer,
            stream = shared.streams.get(malformed.stream).map(|stream| &**stream),
            entry_id = %malformed.id,
            "not an event, set aside in outflow.dead_letter: {}", malformed.reason
        );
    }
    for gap in &outcome.gaps {
        if let Some(delivery) = of(gap.ordinal) {
            log_gap(shared, delivery, gap);
        }
    }
    for failed in &outcome.failed {
        if let Some(delivery) = of(failed.ordinal) {
            log_failed(shared, delivery, failed);
        }
    }
}

fn log_gap(shared: &Shared, delivery: &Delivery, gap: &Gap) {
    let event = &delivery.entry.event;
    let answer = if gap.waits {
        format!("it and later ones wait for what is missing, at most {:?}", shared.config.gap_wait)
    } else {
        "applied without what is missing".to_owned()
    };
    tracing::warn!(
        consumer = shared.config.consumer_id,
        event_id = event.event_id,
        aggregate_type = event.aggregate_type,
        aggregate_id = event.aggregate_id,
        expected = gap.expected,
        found = gap.found,
        "gap: event {} has seq {}, expected was {}: {answer}",
        event.event_id,
        gap.found,
        gap.expected
    );
}

fn log_failed(shared: &Shared, delivery: &Delivery, failed: &FailedEvent) {
    let event = &delivery.entry.event;
    let event_id = &event.event_id;
    let what = if failed.is_dead {
        format!("is a dead letter now, see `outflow dead-letters show {event_id}`")
    } else {
        "cannot be applied and will be tried again; later ones of its aggregate wait".to_owned()
    };
    tracing::warn!(
        consumer = shared.config.consumer_id,
        event_id,
        aggregate_type = event.aggregate_type,
        aggregate_id = event.aggregate_id,
        attempts = failed.attempts,
        "event {event_id} {what}: {}",
        for_people(&failed.error)
    );
}

/// Seconds from the commit of the newest event in its source until now.
fn delay(batch: &Batch) -> Option<f64> {
    if batch.is_parked() {
        return None;
    }
    let committed = batch.deliveries.iter().rev().find_map(|d| d.entry.commit_time.as_deref())?;
    let committed = Duration::from_micros(u64::try_from(micros_since_epoch(committed)?).ok()?);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(committed).as_secs_f64())
}
