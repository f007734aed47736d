//! Dead letters: what waits behind them, retries, and giving up.

use crate::support::{Bed, Running, seen};
use outflow_inbox::dead_letters::{DeadLetter, Filter, discard, list, retry};
use outflow_inbox::{ConsumerOptions, OnFailure};

/// Events `e1 ..= e8` of two aggregates; `e1` is refused.
async fn with_a_dead_letter(bed: &mut Bed, on_failure: OnFailure) -> Running {
    bed.log.expect_warn("is a dead letter now");
    bed.sql.batch_execute("ALTER TABLE seen ADD CONSTRAINT no_one CHECK (v <> '1')").await.unwrap();
    bed.add_many(1..=8, 2).await;
    let options = ConsumerOptions { max_attempts: 1, on_failure, ..bed.options() };
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 8 && counts.dead == 1).await;
    running
}

async fn letters(bed: &Bed, resolved: bool) -> Vec<DeadLetter> {
    list(&bed.sql, "accounting", &Filter { resolved, ..Filter::default() }, true, 100)
        .await
        .unwrap()
}

#[tokio::test]
async fn c82_what_waits_behind_a_dead_letter_follows_it_in_order_when_it_is_retried() {
    let mut bed = Bed::new().await;
    let mut running = with_a_dead_letter(&mut bed, OnFailure::ParkAggregate).await;
    let open = letters(&bed, false).await;
    assert_eq!((open.len(), open[0].behind, open[0].holds), (1, 3, true));
    assert_eq!(bed.count("seen").await, 4);
    // a retry that fails leaves everything as it is
    assert_eq!(retry(&bed.sql, "accounting", &[open[0].id], "ann").await.unwrap(), [open[0].id]);
    running.until(|counts| counts.failed == 2).await;
    let again = letters(&bed, false).await;
    assert_eq!((again[0].attempts, again[0].behind), (2, 3));
    assert_eq!((&again[0].retry_requested_at, again[0].id), (&None, open[0].id));
    assert_eq!(bed.count("seen").await, 4);

    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_one").await.unwrap();
    retry(&bed.sql, "accounting", &[open[0].id], "ann").await.unwrap();
    // live traffic of the same aggregate comes in meanwhile
    bed.add_many(9..=40, 2).await;
    running.until(|counts| counts.applied == 40).await;
    running.stop().await;
    bed.assert_exactly_once(40).await;
    bed.assert_order_within_aggregates().await;
    let settled = letters(&bed, true).await;
    assert_eq!(settled[0].resolution.as_deref(), Some("applied"));
    assert_eq!(settled[0].resolved_by.as_deref(), Some("ann"));
    assert_eq!(bed.count("outflow.parked").await, 0);
}

#[tokio::test]
async fn what_waits_behind_a_dead_letter_goes_on_when_it_is_discarded() {
    let mut bed = Bed::new().await;
    let mut running = with_a_dead_letter(&mut bed, OnFailure::ParkAggregate).await;
    let id = letters(&bed, false).await[0].id;
    let mut client = bed.postgres.connect_to(&bed.database.name).await.unwrap();
    let note = Some("never happened");
    assert_eq!(discard(&mut client, "accounting", &[id, 77], "bob", note).await.unwrap(), [id]);
    assert!(discard(&mut client, "accounting", &[id], "bob", note).await.unwrap().is_empty());
    assert!(retry(&client, "accounting", &[id], "bob").await.unwrap().is_empty());
    bed.add_many(9..=10, 2).await;
    running.until(|counts| counts.applied == 9).await;
    running.stop().await;
    assert_eq!(bed.count("seen").await, 9);
    bed.assert_order_within_aggregates().await;
    let letter = &letters(&bed, true).await[0];
    assert_eq!(letter.resolution.as_deref(), Some("discarded"));
    assert_eq!((letter.resolved_by.as_deref(), letter.note.as_deref()), (Some("bob"), note));
    assert!(letters(&bed, false).await.is_empty());
}

#[tokio::test]
async fn c94_a_retry_is_not_swallowed_and_says_when_there_was_nothing_to_do() {
    let mut bed = Bed::new().await;
    let mut running = with_a_dead_letter(&mut bed, OnFailure::Skip).await;
    running.until(|counts| counts.applied == 7).await;
    let id = letters(&bed, false).await[0].id;
    assert!(!letters(&bed, false).await[0].holds);
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_one").await.unwrap();
    // the same event by another delivery: it is fresh, and has its effect
    bed.add("e1", "1", br#"{"v": 1}"#).await;
    running.until(|counts| counts.applied == 8).await;
    retry(&bed.sql, "accounting", &[id], "ann").await.unwrap();
    bed.until_true("SELECT resolution IS NOT DISTINCT FROM 'duplicate' FROM outflow.dead_letter")
        .await;
    running.stop().await;
    bed.assert_exactly_once(8).await;
}

#[tokio::test]
async fn a_retry_of_another_payload_than_was_applied_is_a_conflict() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("conflict: a known event id");
    let running = with_a_dead_letter(&mut bed, OnFailure::Skip).await;
    let id = letters(&bed, false).await[0].id;
    bed.add("e1", "1", br#"{"v": 100}"#).await;
    bed.until_true("SELECT count(*) = 8 FROM seen").await;
    retry(&bed.sql, "accounting", &[id], "ann").await.unwrap();
    bed.until_true("SELECT resolution IS NOT DISTINCT FROM 'conflict' FROM outflow.dead_letter")
        .await;
    running.stop().await;
    assert_eq!(bed.count("outflow.conflict").await, 1);
    assert_eq!(bed.count("seen").await, 8);
}

#[tokio::test]
async fn letters_are_found_by_what_is_known_of_them() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("set aside in outflow.dead_letter");
    let running = with_a_dead_letter(&mut bed, OnFailure::ParkAggregate).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XADD", &stream, "*", "foo", "bar"]).await;
    bed.until_true("SELECT count(*) = 2 FROM outflow.dead_letter").await;
    running.stop().await;
    let text = |text: &str| Some(text.to_owned());
    let filters = [
        (Filter { event_ids: vec!["e1".to_owned()], ..Filter::default() }, 1),
        (Filter { event_ids: vec!["1".to_owned()], ..Filter::default() }, 0),
        (Filter { ids: vec![1, 77], ..Filter::default() }, 1),
        (Filter { ids: vec![2], event_ids: vec!["e1".to_owned()], ..Filter::default() }, 2),
        (Filter { event_type: text("T"), ..Filter::default() }, 1),
        (Filter { aggregate_type: text("order"), aggregate_id: text("1"), ..Filter::default() }, 1),
        (Filter { aggregate_id: text("2"), ..Filter::default() }, 0),
        (Filter { reason: text("NO_ONE"), ..Filter::default() }, 1),
        (Filter { reason: text("23514"), ..Filter::default() }, 1),
        (Filter { since: text("2020-01-01T00:00:00Z"), ..Filter::default() }, 2),
        (Filter { before: text("2020-01-01T00:00:00Z"), ..Filter::default() }, 0),
    ];
    for (filter, expected) in filters {
        let found = list(&bed.sql, "accounting", &filter, false, 100).await.unwrap();
        assert_eq!(found.len(), expected, "{filter:?}");
    }
    let all = letters(&bed, false).await;
    assert_eq!((all[0].fields.len(), &all[1].event_id), (10, &None));
    let brief = list(&bed.sql, "accounting", &Filter::default(), false, 1).await.unwrap();
    assert!(brief.len() == 1 && brief[0].fields.is_empty());
    // what is no event cannot be applied
    let ids: Vec<i64> = all.iter().map(|letter| letter.id).collect();
    assert_eq!(retry(&bed.sql, "accounting", &ids, "ann").await.unwrap(), ids[..1]);
    assert!(list(&bed.sql, "other", &Filter::default(), true, 100).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_event_that_repeats_a_refused_one_of_its_batch_waits_behind_it() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("is a dead letter now");
    bed.sql.batch_execute("ALTER TABLE seen ADD CONSTRAINT no_one CHECK (v <> '1')").await.unwrap();
    bed.add("e1", "1", br#"{"v": 1}"#).await;
    bed.add("e1", "1", br#"{"v": 2}"#).await;
    bed.add("e2", "1", br#"{"v": 3}"#).await;
    let options = ConsumerOptions { max_attempts: 1, ..bed.options() };
    let mut running = bed.start(options, seen());
    running.until(|counts| counts.acknowledged == 3 && counts.dead == 1).await;
    // nothing has been applied under the id: there is nothing to be in conflict with
    assert_eq!((bed.count("outflow.conflict").await, bed.count("outflow.parked").await), (0, 2));
    let id = letters(&bed, false).await[0].id;
    let mut client = bed.postgres.connect_to(&bed.database.name).await.unwrap();
    discard(&mut client, "accounting", &[id], "bob", None).await.unwrap();
    running.until(|counts| counts.applied == 2).await;
    running.stop().await;
    let applied: Vec<String> = bed.value("SELECT array_agg(v ORDER BY n) FROM seen", &[]).await;
    assert_eq!(applied, ["2", "3"]);
}
