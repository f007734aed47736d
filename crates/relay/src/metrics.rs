//! The connector's metrics: every name is here.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::status::On;

const EVENTS: &str = "outflow_published_events_total";
const DEAD_LETTERS: &str = "outflow_connector_dead_letters_total";
const BATCHES: &str = "outflow_published_batches_total";
const BATCH_BYTES: &str = "outflow_published_bytes_total";
const RETRIES: &str = "outflow_sink_retries_total";
const PUBLISH_SECONDS: &str = "outflow_publish_duration_seconds";
const COMMIT_AGE_SECONDS: &str = "outflow_commit_age_seconds";
const LAG_BYTES: &str = "outflow_source_lag_bytes";
const STANDING_STILL: &str = "outflow_connector_waiting";
const REMOVED: &str = "outflow_retention_removed_total";
const PARTITIONS: &str = "outflow_retention_partitions_dropped_total";
const IGNORED: &str = "outflow_ignored_changes_total";
const CLAIMS: &str = "outflow_polling_claims_total";
const CLAIMED: &str = "outflow_polling_claimed_rows_total";
const TAKEN_OVER: &str = "outflow_polling_taken_over_rows_total";
const LEASES_LOST: &str = "outflow_polling_lost_leases_total";
const CLEANED: &str = "outflow_polling_deleted_rows_total";

pub(crate) fn published(events: u64, dead_letters: u64, bytes: u64, took: Duration) {
    counter!(EVENTS).increment(events);
    counter!(DEAD_LETTERS).increment(dead_letters);
    counter!(BATCHES).increment(1);
    counter!(BATCH_BYTES).increment(bytes);
    histogram!(PUBLISH_SECONDS).record(took.as_secs_f64());
}

/// Age of a batch's oldest event when it was acknowledged, by both machines' clocks.
pub(crate) fn commit_age(seconds: f64) {
    histogram!(COMMIT_AGE_SECONDS).record(seconds);
}

pub(crate) fn sink_retry() {
    counter!(RETRIES).increment(1);
}

pub(crate) fn lag_bytes(bytes: u64) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    gauge!(LAG_BYTES).set(bytes as f64);
}

/// 1 for what the connector waits on, 0 for everything else.
pub(crate) fn standing_still(on: Option<On>) {
    for kind in [On::Source, On::Slot, On::Publication, On::Sink, On::Offset] {
        let value = if on == Some(kind) { 1.0 } else { 0.0 };
        gauge!(STANDING_STILL, "on" => kind.as_str()).set(value);
    }
}

pub(crate) fn ignored(kind: &'static str) {
    counter!(IGNORED, "kind" => kind).increment(1);
}

/// Rows of the outbox or entries of streams that retention removed.
pub(crate) fn removed(from: &'static str, count: u64) {
    counter!(REMOVED, "from" => from).increment(count);
}

pub(crate) fn partition_dropped() {
    counter!(PARTITIONS).increment(1);
}

/// One look for rows: `found` is `none` or `rows`.
pub(crate) fn claimed(rows: usize, taken_over: u64) {
    counter!(CLAIMS, "found" => if rows == 0 { "none" } else { "rows" }).increment(1);
    counter!(CLAIMED).increment(u64::try_from(rows).unwrap_or(u64::MAX));
    counter!(TAKEN_OVER).increment(taken_over);
}

pub(crate) fn lease_lost() {
    counter!(LEASES_LOST).increment(1);
}

pub(crate) fn cleaned(rows: u64) {
    counter!(CLEANED).increment(rows);
}
