//! Names of the metrics, and the handles that the loop counts with.
//!
//! Labels: `consumer` (the consumer's id) and `component` (`reader`, `applier`, `acker`,
//! `keeper`), nothing
//! that grows with the traffic.

use metrics::{Counter, Gauge, Histogram};

/// Events that had their effect on the projection.
pub const APPLIED_TOTAL: &str = "outflow_events_applied_total";
/// Deliveries of events that had been applied before, with the same payload.
pub const DUPLICATES_TOTAL: &str = "outflow_duplicates_total";
/// Deliveries of a known event id with another payload.
pub const CONFLICTS_TOTAL: &str = "outflow_conflicts_total";
/// Conflicts that were settled by applying the event that had been refused.
pub const REPLACED_TOTAL: &str = "outflow_conflicts_replaced_total";
/// Entries that are not events of outflow and became dead letters.
pub const MALFORMED_TOTAL: &str = "outflow_entries_malformed_total";
/// Entries that were trimmed or deleted before they were applied, pending ones and ones that were never
/// delivered.
pub const LOST_TOTAL: &str = "outflow_entries_lost_total";
/// Entries taken over from other workers.
pub const CLAIMED_TOTAL: &str = "outflow_entries_claimed_total";
/// Entries acknowledged to Redis.
pub const ACKNOWLEDGED_TOTAL: &str = "outflow_entries_acknowledged_total";
/// Acknowledged entries that Redis did not hold as pending any more.
pub const ACK_UNKNOWN_TOTAL: &str = "outflow_acks_unknown_total";
/// Transactions that were tried again, for whatever reason.
pub const RETRIES_TOTAL: &str = "outflow_apply_retries_total";
/// Attempts of single events that failed for a reason of their own.
pub const ATTEMPTS_FAILED_TOTAL: &str = "outflow_attempts_failed_total";
/// Events that were parked without being tried: behind one that failed, or under suspicion.
pub const PARKED_TOTAL: &str = "outflow_events_parked_total";
/// Events that became dead letters after their last attempt (malformed entries are counted apart).
pub const DEAD_LETTERS_TOTAL: &str = "outflow_dead_letters_total";
/// Gaps in the numbers (`seq`) of aggregates.
pub const GAPS_TOTAL: &str = "outflow_gaps_total";
/// Events that wait in `outflow.parked` now.
pub const PARKED_EVENTS: &str = "outflow_parked_events";
/// Dead letters that nobody has resolved.
pub const OPEN_DEAD_LETTERS: &str = "outflow_open_dead_letters";
/// Groups that had vanished and were rebuilt at the stored position.
pub const GROUPS_REBUILT_TOTAL: &str = "outflow_groups_rebuilt_total";
/// Streams that this worker reads.
pub const STREAMS_HELD: &str = "outflow_streams_held";
/// Rows that retention removed from the consumer's tables.
pub const REMOVED_TOTAL: &str = "outflow_retention_rows_removed_total";
/// Entries that the group has not delivered yet, plus those pending.
pub const LAG_ENTRIES: &str = "outflow_consumer_lag_entries";
/// Age of the newest applied event at the moment of its commit, from its own commit time.
pub const APPLY_DELAY_SECONDS: &str = "outflow_apply_delay_seconds";
/// Duration of a batch's transaction, begin to commit.
pub const TRANSACTION_SECONDS: &str = "outflow_apply_transaction_seconds";
/// 1 while the component stands still (`component` says which), else 0.
pub const WAITING: &str = "outflow_consumer_waiting";

/// Rows that retention removed.
pub(crate) fn removed(consumer_id: &str, rows: u64) {
    metrics::counter!(REMOVED_TOTAL, "consumer" => consumer_id.to_owned()).increment(rows);
}

/// The handles of one consumer, resolved once.
pub(crate) struct Metrics {
    pub(crate) applied: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) replaced: Counter,
    pub(crate) malformed: Counter,
    pub(crate) lost: Counter,
    pub(crate) claimed: Counter,
    pub(crate) acknowledged: Counter,
    pub(crate) ack_unknown: Counter,
    pub(crate) retries: Counter,
    pub(crate) groups_rebuilt: Counter,
    pub(crate) attempts_failed: Counter,
    pub(crate) parked: Counter,
    pub(crate) dead_letters: Counter,
    pub(crate) gaps: Counter,
    pub(crate) parked_now: Gauge,
    pub(crate) dead_letters_open: Gauge,
    pub(crate) streams: Gauge,
    pub(crate) lag: Gauge,
    pub(crate) delay: Histogram,
    pub(crate) transaction: Histogram,
    consumer: String,
}

impl Metrics {
    pub(crate) fn new(consumer_id: &str) -> Self {
        let counter = |name| metrics::counter!(name, "consumer" => consumer_id.to_owned());
        let gauge = |name| metrics::gauge!(name, "consumer" => consumer_id.to_owned());
        let histogram = |name| metrics::histogram!(name, "consumer" => consumer_id.to_owned());
        Self {
            applied: counter(APPLIED_TOTAL),
            duplicates: counter(DUPLICATES_TOTAL),
            conflicts: counter(CONFLICTS_TOTAL),
            replaced: counter(REPLACED_TOTAL),
            malformed: counter(MALFORMED_TOTAL),
            lost: counter(LOST_TOTAL),
            claimed: counter(CLAIMED_TOTAL),
            acknowledged: counter(ACKNOWLEDGED_TOTAL),
            ack_unknown: counter(ACK_UNKNOWN_TOTAL),
            retries: counter(RETRIES_TOTAL),
            groups_rebuilt: counter(GROUPS_REBUILT_TOTAL),
            attempts_failed: counter(ATTEMPTS_FAILED_TOTAL),
            parked: counter(PARKED_TOTAL),
            dead_letters: counter(DEAD_LETTERS_TOTAL),
            gaps: counter(GAPS_TOTAL),
            parked_now: gauge(PARKED_EVENTS),
            dead_letters_open: gauge(OPEN_DEAD_LETTERS),
            streams: gauge(STREAMS_HELD),
            lag: gauge(LAG_ENTRIES),
            delay: histogram(APPLY_DELAY_SECONDS),
            transaction: histogram(TRANSACTION_SECONDS),
            consumer: consumer_id.to_owned(),
        }
    }

    pub(crate) fn waiting(&self, component: &'static str, waiting: bool) {
        let gauge = metrics::gauge!(
            WAITING, "consumer" => self.consumer.clone(), "component" => component
        );
        gauge.set(f64::from(u8::from(waiting)));
    }
}
