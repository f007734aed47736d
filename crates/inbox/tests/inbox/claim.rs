//! Entries that two workers hold at once.

use std::time::Duration;

use crate::support::{Bed, gated, seen, start};
use outflow_inbox::{ConsumerOptions, connect_no_tls};

/// Only workers that share a stream can hold one entry at once.
fn shared(bed: &Bed) -> ConsumerOptions {
    ConsumerOptions { share_streams: true, ..bed.options() }
}

#[tokio::test]
async fn c77_a_batch_that_is_claimed_while_it_is_applied_has_one_effect() {
    let mut bed = Bed::new().await;
    let role = format!("{}_worker", bed.database.name);
    bed.sql
        .batch_execute(&format!(
            "CREATE ROLE \"{role}\" LOGIN SUPERUSER; \
             ALTER ROLE \"{role}\" SET default_transaction_isolation = 'repeatable read'; \
             ALTER ROLE \"{role}\" SET default_transaction_read_only = on; \
             ALTER ROLE \"{role}\" SET synchronous_commit = off"
        ))
        .await
        .unwrap();
    let connect = connect_no_tls(&bed.postgres.url_as(&role, &bed.database.name));
    bed.add_many(1..=20, 1).await;
    let (slow, mut entered, gate) = gated();
    let first = start(shared(&bed), connect.clone(), slow);
    assert_eq!(entered.recv().await, Some(20));

    let options = ConsumerOptions {
        worker: "worker-2".to_owned(),
        claim_interval: Duration::from_millis(10),
        claim_min_idle: Duration::from_millis(1),
        ..shared(&bed)
    };
    let mut second = start(options, connect, seen());
    // the second one now waits for the first one's inbox rows
    bed.until_true(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() \
         AND wait_event_type = 'Lock')",
    )
    .await;
    gate.add_permits(1);
    // whose XACK comes second finds nothing to acknowledge, and does not mind
    second.until(|counts| counts.duplicates == 20).await;
    let (first, second) = (first.stop().await, second.stop().await);
    assert_eq!((first.counts.applied, first.counts.retries), (20, 0));
    assert_eq!((second.counts.applied, second.counts.retries), (0, 0));
    bed.assert_exactly_once(20).await;
}

#[tokio::test]
async fn c77_a_batch_that_rolls_back_is_applied_by_the_one_who_waited() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=20, 1).await;
    let (slow, mut entered, _gate) = gated();
    let first = bed.start(shared(&bed), slow);
    assert_eq!(entered.recv().await, Some(20));
    let options = ConsumerOptions {
        worker: "worker-2".to_owned(),
        claim_interval: Duration::from_millis(10),
        claim_min_idle: Duration::from_millis(1),
        ..shared(&bed)
    };
    let mut second = bed.start(options, seen());
    bed.until_true(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() \
         AND wait_event_type = 'Lock')",
    )
    .await;
    first.crash().await;
    second.until(|counts| counts.applied == 20 && counts.acknowledged == 20).await;
    second.stop().await;
    bed.assert_exactly_once(20).await;
}

#[tokio::test]
async fn c79_an_entry_that_was_acknowledged_by_hand_is_no_failure() {
    let mut bed = Bed::new().await;
    let first = bed.add("e1", "1", br#"{"v": 1}"#).await;
    let (slow, mut entered, gate) = gated();
    let mut running = bed.start(bed.options(), slow);
    assert_eq!(entered.recv().await, Some(1));
    let stream = bed.stream.clone();
    bed.redis_command(&["XACK", &stream, "accounting", &first]).await;
    gate.add_permits(2);
    running.until(|counts| counts.applied == 1).await;
    bed.add("e2", "1", br#"{"v": 2}"#).await;
    running.until(|counts| counts.acknowledged == 1).await;
    assert!(running.stop().await.clean);
    bed.assert_exactly_once(2).await;
}

#[tokio::test]
async fn an_entry_in_work_is_not_claimed_from_oneself() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=5, 1).await;
    let (slow, mut entered, gate) = gated();
    let options = ConsumerOptions {
        claim_interval: Duration::from_millis(10),
        claim_min_idle: Duration::from_millis(1),
        ..bed.options()
    };
    let mut running = bed.start(options, slow);
    assert_eq!(entered.recv().await, Some(5));
    // a claim runs before each of these reads
    for n in 6..=10 {
        bed.add(&format!("e{n}"), "1", format!(r#"{{"v":{n}}}"#).as_bytes()).await;
    }
    gate.add_permits(100);
    running.until(|counts| counts.applied == 10).await;
    let summary = running.stop().await;
    assert_eq!((summary.counts.duplicates, summary.counts.claimed), (0, 0));
}
