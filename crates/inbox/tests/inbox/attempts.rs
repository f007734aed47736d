//! Events that fail: attempts, order, what is nobody's fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Bed, checked, gated, seen, seen_then};
use outflow_inbox::{
    ConsumerOptions, Delivery, Handler, HandlerError, OnFailure, SqlProjection, State,
};

const RETRIED: &str = "cannot be applied and will be tried again";
const DEAD: &str = "is a dead letter now";

/// Options under which nothing dies in a test.
fn patient(bed: &Bed) -> ConsumerOptions {
    ConsumerOptions { max_attempts: 1000, ..bed.options() }
}

#[tokio::test]
async fn c82_a_poison_event_holds_up_its_aggregate_and_nobody_else() {
    let mut bed = Bed::new().await;
    bed.sql.batch_execute("ALTER TABLE seen ADD CONSTRAINT no_two CHECK (v <> '2')").await.unwrap();
    bed.log.expect_warn(RETRIED);
    bed.add_many(1..=9, 3).await;
    let mut running = bed.start(patient(&bed), seen());
    running.until(|counts| counts.acknowledged == 9 && counts.failed > 2).await;
    assert_eq!(bed.count("seen").await, 6);
    // a later one of the aggregate waits, whatever it is
    bed.add_many(10..=12, 3).await;
    running.until(|counts| counts.acknowledged == 12).await;
    assert_eq!(bed.count("seen").await, 8);
    assert_eq!(bed.count("outflow.inbox").await, 8);
    assert_eq!(bed.count("outflow.parked WHERE cause = 'behind' AND due_at IS NULL").await, 3);
    let error: String =
        bed.value("SELECT error FROM outflow.parked WHERE event_id = 'e2'", &[]).await;
    assert!(error.starts_with("projection, line 1: ") && error.contains("no_two"), "{error}");
    running.until_status(|status| status.state == State::Running).await;
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_two").await.unwrap();
    running.until(|counts| counts.applied == 12).await;
    running.stop().await;
    assert_eq!(bed.count("outflow.parked").await, 0);
    bed.assert_exactly_once(12).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c82_a_worker_that_starts_later_goes_on_with_what_waits() {
    let mut bed = Bed::new().await;
    bed.sql.batch_execute("ALTER TABLE seen ADD CONSTRAINT no_two CHECK (v <> '2')").await.unwrap();
    bed.log.expect_warn(RETRIED);
    bed.add_many(1..=6, 2).await;
    bed.run_until(patient(&bed), seen(), |counts| counts.acknowledged == 6).await;
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_two").await.unwrap();
    bed.add_many(7..=8, 2).await;
    let options = ConsumerOptions { worker: "worker-2".to_owned(), ..bed.options() };
    bed.run_until(options, seen(), |counts| counts.applied == 5).await;
    bed.assert_exactly_once(8).await;
    bed.assert_order_within_aggregates().await;
}

/// Refuses some events; with the number of its calls.
fn refusing(events: &'static [&'static str]) -> (impl Handler, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = checked(move |given: &[Delivery]| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut ids = given.iter().map(|event| event.entry.event.event_id.as_str());
        match ids.find(|id| events.contains(id)) {
            Some(id) => Err(HandlerError::other(format!("no {id}"))),
            None => Ok(()),
        }
    });
    (handler, calls)
}

#[tokio::test]
async fn c82_a_poison_event_costs_a_logarithm_and_no_transaction_of_the_others() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn(DEAD);
    bed.add_many(1..=1000, 500).await;
    let (handler, calls) = refusing(&["e700"]);
    let options = ConsumerOptions { max_attempts: 1, ..bed.options() };
    let summary = bed.run_until(options, handler, |counts| counts.acknowledged == 1000).await;
    // its aggregate has two events, and the other one is e200
    assert_eq!((summary.counts.applied, summary.counts.dead), (999, 1));
    assert_eq!(bed.count("seen").await, 999);
    // batches begin with 64 entries: five of them, and one that is taken apart
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls <= 5 + 2 * 10 + 2, "{calls} calls");
    assert!(summary.counts.batches <= 6, "{:?}", summary.counts);
}

#[tokio::test]
async fn several_poison_events_in_one_batch_are_all_found() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn(DEAD);
    bed.add_many(1..=60, 30).await;
    let refuses = &["e1", "e2", "e17", "e33", "e59", "e60"];
    let (handler, _) = refusing(refuses);
    let options = ConsumerOptions { max_attempts: 1, on_failure: OnFailure::Skip, ..bed.options() };
    bed.run_until(options, handler, |c| c.acknowledged == 60 && c.applied == 54).await;
    let dead: Vec<String> = bed
        .value("SELECT array_agg(event_id ORDER BY dead_letter_id) FROM outflow.dead_letter", &[])
        .await;
    assert_eq!(dead, refuses);
    assert_eq!(bed.count("seen").await, 54);
    assert_eq!(bed.count("outflow.parked").await, 0);
    assert_eq!(
        bed.count("outflow.dead_letter WHERE NOT holds AND reason = 'no ' || event_id").await,
        6
    );
    bed.assert_order_within_aggregates().await;
}

/// A projection in SQL is given one part of a batch behind the other, without an answer in between.
#[tokio::test]
async fn a_projection_in_sql_loses_no_neighbour_of_an_event_that_it_refuses() {
    for refused in ["= 1", "= 400", "IN (64, 65, 66)", "% 37 = 0", "BETWEEN 130 AND 190"] {
        let mut bed = Bed::new().await;
        bed.log.expect_warn(DEAD);
        let check = format!("ALTER TABLE seen ADD CHECK (NOT v::int {refused})");
        bed.sql.batch_execute(&check).await.unwrap();
        let refuses = format!("generate_series(1, 400) v WHERE v {refused}");
        let dead = bed.count(&refuses).await;
        bed.add_many(1..=400, 40).await;
        let options =
            ConsumerOptions { max_attempts: 1, on_failure: OnFailure::Skip, ..bed.options() };
        let applied = 400 - u64::try_from(dead).unwrap();
        bed.run_until(options, seen(), |c| c.acknowledged == 400 && c.applied == applied).await;
        let missing =
            format!("{refuses} AND 'e' || v NOT IN (SELECT event_id FROM outflow.dead_letter)");
        assert_eq!(bed.count(&missing).await, 0, "{refused}");
        assert_eq!(bed.count("outflow.dead_letter").await, dead, "{refused}");
        assert_eq!(bed.count("seen").await, 400 - dead, "{refused}");
        assert_eq!(bed.count("(SELECT DISTINCT event_id FROM seen) s").await, 400 - dead);
        bed.assert_order_within_aggregates().await;
    }
}

#[tokio::test]
async fn c22_an_event_that_never_succeeds_becomes_a_dead_letter_with_all_that_is_known() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn(RETRIED);
    bed.log.expect_warn(DEAD);
    let payload = br#"{ "v": "abc" }"#;
    let entry = bed.add("e1", "1", payload).await;
    let sum = SqlProjection::parse(
        "INSERT INTO seen (event_id)\nSELECT event_id FROM events WHERE (payload ->> 'v')::int > 0",
    )
    .unwrap();
    let options = ConsumerOptions { max_attempts: 3, ..bed.options() };
    let summary = bed.run_until(options, sum, |counts| counts.dead == 1).await;
    assert_eq!((summary.counts.failed, summary.counts.applied), (3, 0));
    let filter = outflow_inbox::dead_letters::Filter::default();
    let letters =
        outflow_inbox::dead_letters::list(&bed.sql, "accounting", &filter, true, 10).await.unwrap();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!(
        (letter.event_id.as_deref(), letter.entry_id.as_str()),
        (Some("e1"), entry.as_str())
    );
    assert_eq!((letter.attempts, letter.crashes, letter.holds), (3, 0, true));
    assert_eq!(letter.field("payload"), Some(&payload[..]));
    assert_eq!(letter.sqlstate.as_deref(), Some("22P02"));
    assert!(letter.reason.contains("\"abc\""), "{}", letter.reason);
    assert!(letter.first_at < letter.last_at && letter.resolved_at.is_none());
    assert_eq!(bed.count("outflow.inbox").await, 0);
    assert_eq!(bed.pending().await, 0);
}

#[tokio::test]
async fn a_deferred_constraint_is_laid_to_its_event() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn(RETRIED);
    bed.sql
        .batch_execute(
            "ALTER TABLE seen ADD CONSTRAINT once UNIQUE (v) DEFERRABLE INITIALLY DEFERRED; \
             INSERT INTO seen (v) VALUES ('3')",
        )
        .await
        .unwrap();
    bed.add_many(1..=8, 4).await;
    let mut running = bed.start(patient(&bed), seen());
    running.until(|counts| counts.applied == 6 && counts.failed > 1).await;
    let parked: Vec<String> =
        bed.value("SELECT array_agg(event_id ORDER BY place) FROM outflow.parked", &[]).await;
    assert_eq!(parked, ["e3", "e7"]);
    bed.sql.batch_execute("DELETE FROM seen WHERE event_id IS NULL").await.unwrap();
    running.until(|counts| counts.applied == 8).await;
    running.stop().await;
    bed.assert_exactly_once(8).await;
}

#[tokio::test]
async fn c91_a_projection_that_no_event_can_succeed_with_counts_against_none() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("no event can be applied until that is mended");
    bed.add_many(1..=10, 2).await;
    let options = ConsumerOptions { max_attempts: 1, ..bed.options() };
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 10).await;
    bed.sql.batch_execute("ALTER TABLE seen RENAME TO gone").await.unwrap();
    bed.add_many(11..=20, 2).await;
    running.until_waiting_for("cannot be applied: projection, line 1").await;
    bed.sql.batch_execute("ALTER TABLE gone RENAME TO seen").await.unwrap();
    running.until(|counts| counts.acknowledged == 20).await;
    assert_eq!(running.stop().await.counts.failed, 0);
    bed.assert_exactly_once(20).await;
    bed.assert_order_within_aggregates().await;
}

/// Meets bad weather in some of the attempts of `e1`, and refuses it in the others.
fn in_bad_weather(mut storms: u32) -> impl Handler {
    seen_then(move |tx, events| {
        let is_hit = events.iter().any(|event| event.entry.event.event_id == "e1");
        let storm = is_hit && storms > 0;
        storms -= u32::from(storm);
        let weather = match storms % 3 {
            0 => "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$",
            1 => "DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$",
            _ => "SELECT pg_terminate_backend(pg_backend_pid())",
        };
        Box::pin(async move {
            if storm {
                tx.batch_execute(weather).await?;
            }
            if is_hit { Err(HandlerError::other("refused")) } else { Ok(()) }
        })
    })
}

#[tokio::test]
async fn c77_bad_weather_does_not_count_as_an_attempt() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("waiting: database");
    bed.log.expect_warn(RETRIED);
    bed.log.expect_warn(DEAD);
    bed.add_many(1..=4, 2).await;
    let options = ConsumerOptions {
        max_attempts: 2,
        retry_longest: Duration::from_millis(20),
        ..bed.options()
    };
    let mut running = bed.start(options, in_bad_weather(9));
    running.until(|counts| counts.dead == 1).await;
    let summary = running.stop().await;
    assert_eq!((summary.counts.failed, summary.counts.applied), (2, 2));
    assert!(summary.counts.retries >= 9, "{:?}", summary.counts);
    assert_eq!(bed.count("outflow.dead_letter WHERE attempts = 2 AND crashes = 0").await, 1);
}

#[tokio::test]
async fn an_entry_that_comes_again_while_it_waits_is_kept_once() {
    let mut bed = Bed::new().await;
    bed.sql.batch_execute("ALTER TABLE seen ADD CONSTRAINT no_one CHECK (v <> '1')").await.unwrap();
    bed.log.expect_warn(RETRIED);
    bed.add_many(1..=4, 2).await;
    let mut running = bed.start(patient(&bed), seen());
    running.until(|counts| counts.acknowledged == 4).await;
    let stream = bed.stream.clone();
    // C83: as after a failover that forgot what was acknowledged
    bed.redis_command(&["XGROUP", "SETID", &stream, "accounting", "0"]).await;
    bed.add_many(5..=6, 2).await;
    running.until(|counts| counts.acknowledged == 10).await;
    assert_eq!(bed.count("outflow.parked").await, 3);
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_one").await.unwrap();
    running.until(|counts| counts.applied == 6).await;
    running.stop().await;
    bed.assert_exactly_once(6).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn a_stop_in_which_an_event_is_tried_alone_does_not_count_as_an_attempt() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=1, 1).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "CREATE", &stream, "accounting", "0"]).await;
    // delivered three times: it may have ended its workers
    for worker in ["a", "b"] {
        bed.read_and_die(worker, 1).await;
        bed.redis_command(&["XAUTOCLAIM", &stream, "accounting", worker, "0", "0"]).await;
    }
    let (stuck, mut entered, _gate) = gated();
    let options = ConsumerOptions { stop_timeout: Duration::from_secs(4), ..bed.options() };
    let running = bed.start(options, stuck);
    assert_eq!(entered.recv().await, Some(1));
    assert_eq!(bed.count("outflow.parked WHERE suspect AND started = 1").await, 1);
    running.stop().await;
    assert_eq!(bed.count("outflow.parked WHERE started = 0 AND finished = 0").await, 1);
    bed.run_until(bed.options(), seen(), |counts| counts.applied == 1).await;
    bed.assert_exactly_once(1).await;
}
