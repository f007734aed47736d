//! How to look around while `--keep` leaves everything running.

use super::stage::{CONNECTOR, Stage};
use crate::rig::{CONSUMER, PRODUCER, STREAM};

/// Lines to copy into a shell.
pub(super) async fn text(stage: &Stage) -> String {
    let (shop, books) = (stage.postgres.url_for(PRODUCER), stage.postgres.url_for(CONSUMER));
    let redis = format!("redis-cli -p {}", stage.redis.port());
    let offset = outflow_relay::offset::offset_key(CONNECTOR);
    let (program, config) = (stage.program().display(), stage.config().display());
    let mut logs = String::new();
    for child in [&stage.relay, &stage.consumer] {
        logs.push_str(&format!(" {}", child.lock().await.log().display()));
    }
    format!(
        r#"
Everything still runs. To look around:

  where everything stands
    {program} status --config {config}
  the outbox, and another event for it
    psql {shop} -c 'SELECT * FROM outflow.outbox ORDER BY id DESC LIMIT 3'
    psql {shop} -c "SELECT ledger.post('mine-1', 'receivable:me', 'revenue:me', 'me', 'EUR', 12345)"
  the slot
    psql {shop} -c 'SELECT slot_name, active, confirmed_flush_lsn, wal_status FROM pg_replication_slots'
  the stream, its newest entries first
    {redis} XREVRANGE {STREAM} + - COUNT 3
  the consumer's group
    {redis} XINFO GROUPS {STREAM}
  the stored offset
    {redis} XREVRANGE {offset} + - COUNT 1
  the inbox
    psql {books} -c 'SELECT * FROM outflow.inbox ORDER BY applied_at DESC LIMIT 3'
  the projection
    psql {books} -c 'SELECT * FROM turnover ORDER BY consumer, currency LIMIT 10'
  what connector and consumer log
    tail -f{logs}

Connector and consumer: pid {relay}, {consume}. Kill one, and start it again with
    {program} relay --config {config}
    {program} consume --config {config}

ctrl-C ends all of it and leaves nothing behind.
"#,
        relay = stage.relay.lock().await.pid(),
        consume = stage.consumer.lock().await.pid(),
    )
}
