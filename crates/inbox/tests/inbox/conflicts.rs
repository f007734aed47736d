//! Conflicts, looked at and settled.

use outflow_inbox::SqlProjection;
use outflow_inbox::conflicts::{self, Filter, Which};

use crate::support::{Bed, seen, seen_then};

/// `e1` twice with another payload, `e2` with a payload that `jsonb` cannot hold.
async fn two_conflicts(bed: &mut Bed) {
    bed.log.expect_warn("conflict: a known event id arrived with another payload");
    bed.add("e1", "7", br#"{"v": 1, "items": [{"sku": "a"}]}"#).await;
    bed.add("e1", "7", br#"{"v": 2, "items": [{"sku": "a"}, {"sku": "b"}]}"#).await;
    bed.add("e2", "8", b"{}").await;
    bed.add("e2", "8", b"\xff").await;
    bed.run_until(bed.options(), seen(), |counts| counts.acknowledged == 4).await;
}

fn of_accounting() -> Filter {
    Filter { consumer_id: "accounting".to_owned(), ..Filter::default() }
}

#[tokio::test]
async fn c66_both_payloads_and_their_differences_are_shown() {
    let mut bed = Bed::new().await;
    two_conflicts(&mut bed).await;
    let found = conflicts::list(&bed.sql, &of_accounting(), true, 10).await.unwrap();
    let [json, bytes] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((json.event_id.as_str(), json.aggregate_id.as_str()), ("e1", "7"));
    let places: Vec<_> = json.differences().into_iter().map(|place| place.path).collect();
    assert_eq!(places, ["/items/1", "/v"]);
    assert_eq!(bytes.refused.payload_raw.as_deref(), Some(&b"\xff"[..]));
    let [whole] = &bytes.differences()[..] else { panic!() };
    assert_eq!((whole.path.as_str(), whole.applied.as_deref()), ("", Some("{}")));

    // without payloads nothing large is read
    let brief = conflicts::list(&bed.sql, &of_accounting(), false, 1).await.unwrap();
    assert_eq!(brief.len(), 1);
    assert_eq!((&brief[0].applied.payload, &brief[0].refused.payload), (&None, &None));
}

#[tokio::test]
async fn a_filter_narrows_the_list() {
    let mut bed = Bed::new().await;
    two_conflicts(&mut bed).await;
    let all = conflicts::list(&bed.sql, &of_accounting(), false, 10).await.unwrap();
    let later = all[1].detected_at + std::time::Duration::from_secs(1);
    let filters = [
        (Filter { consumer_id: "billing".to_owned(), ..Filter::default() }, 0),
        (Filter { conflict_ids: Some(vec![all[1].conflict_id, 99]), ..of_accounting() }, 1),
        (Filter { event_ids: Some(vec!["e1".to_owned()]), ..of_accounting() }, 1),
        (Filter { aggregate_type: Some("order".to_owned()), ..of_accounting() }, 2),
        (Filter { aggregate_id: Some("8".to_owned()), ..of_accounting() }, 1),
        (Filter { since: Some(later), ..of_accounting() }, 0),
        (Filter { until: Some(later), ..of_accounting() }, 2),
        (Filter { which: Which::Resolved, ..of_accounting() }, 0),
    ];
    for (filter, expected) in filters {
        let found = conflicts::list(&bed.sql, &filter, false, 10).await.unwrap();
        assert_eq!(found.len(), expected, "{filter:?}");
    }
}

#[tokio::test]
async fn keeping_what_was_applied_is_recorded_once_and_changes_nothing_else() {
    let mut bed = Bed::new().await;
    two_conflicts(&mut bed).await;
    let (seen_before, inbox) = (
        bed.checksum().await,
        "SELECT md5(string_agg(i::text, ';' ORDER BY event_id)) FROM outflow.inbox i",
    );
    let before: String = bed.value(inbox, &[]).await;
    let all = conflicts::list(&bed.sql, &of_accounting(), false, 10).await.unwrap();
    let ids: Vec<i64> = all.iter().map(|conflict| conflict.conflict_id).collect();
    let settled =
        conflicts::keep(&bed.sql, "accounting", &ids[..1], "ada", "a draft").await.unwrap();
    assert_eq!(settled, ids[..1]);
    // the first decision stands
    let again = conflicts::keep(&bed.sql, "accounting", &ids, "bob", "all of them").await.unwrap();
    assert_eq!(again, ids[1..]);
    let other =
        conflicts::keep(&bed.sql, "billing", &ids, "bob", "another consumer").await.unwrap();
    assert!(other.is_empty());

    let filter = Filter { which: Which::All, ..of_accounting() };
    let found = conflicts::list(&bed.sql, &filter, true, 10).await.unwrap();
    let resolution = found[0].resolution.as_ref().unwrap();
    assert_eq!(resolution.what, "keep");
    assert_eq!(
        (resolution.by.as_deref(), resolution.reason.as_deref()),
        (Some("ada"), Some("a draft"))
    );
    assert!(found[0].applied.payload.is_some() && found[0].refused.payload.is_some());
    assert_eq!(bed.checksum().await, seen_before);
    assert_eq!(bed.value::<String>(inbox, &[]).await, before);
}

/// A failpoint is there for all tests of the process: those that replace run one after the other.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Adds up, and takes back what is replaced.
fn total() -> SqlProjection {
    SqlProjection::parse(
        "INSERT INTO seen (event_id, aggregate_id, v) \
         SELECT event_id, is_replacement::text, (payload ->> 'v')::numeric \
                - coalesce((replaced_payload ->> 'v')::numeric, 0) \
         FROM events ORDER BY ordinal",
    )
    .unwrap()
}

async fn total_of(bed: &Bed) -> i64 {
    bed.value("SELECT coalesce(sum(v::bigint), 0)::bigint FROM seen", &[]).await
}

/// `e1` with 5, then with 7: a conflict.
async fn five_and_seven(bed: &mut Bed) -> i64 {
    bed.log.expect_warn("conflict: a known event id arrived with another payload");
    bed.add("e1", "1", br#"{"v": 5}"#).await;
    bed.add("e1", "1", br#"{"v": 7}"#).await;
    bed.run_until(bed.options(), total(), |counts| counts.acknowledged == 2).await;
    assert_eq!(total_of(bed).await, 5);
    bed.value("SELECT conflict_id FROM outflow.conflict", &[]).await
}

async fn ask(bed: &Bed, conflict_id: i64) {
    let asked =
        conflicts::request_replace(&bed.sql, "accounting", &[conflict_id], "ada", "a draft").await;
    assert_eq!(asked.unwrap(), [conflict_id]);
}

const SETTLED: &str = "SELECT resolved_at IS NOT NULL FROM outflow.conflict WHERE conflict_id = 1";

#[tokio::test]
async fn c94_a_replacement_has_its_effect_once_and_keeps_what_was_there() {
    let _alone = ALONE.lock().await;
    let mut bed = Bed::new().await;
    let conflict_id = five_and_seven(&mut bed).await;
    ask(&bed, conflict_id).await;
    // beside live traffic
    let mut running = bed.start(bed.options(), total());
    bed.add("e2", "1", br#"{"v": 100}"#).await;
    bed.until_true(SETTLED).await;
    running.until(|counts| counts.acknowledged == 1).await;
    assert_eq!(total_of(&bed).await, 107);

    let row = bed
        .sql
        .query_one(
            "SELECT resolution, resolved_by, reason, replaced -> 'payload' ->> 'v', applied_payload ->> 'v' \
             FROM outflow.conflict",
            &[],
        )
        .await
        .unwrap();
    let row: [String; 5] = std::array::from_fn(|n| row.get(n));
    assert_eq!(row, ["replace", "ada", "a draft", "5", "5"]);
    let bound: String =
        bed.value("SELECT payload ->> 'v' FROM outflow.inbox WHERE event_id = 'e1'", &[]).await;
    assert_eq!(bound, "7");
    // the id is bound to the other payload now: the first one is the conflict
    bed.add("e1", "1", br#"{"v": 7}"#).await;
    bed.add("e1", "1", br#"{"v": 5}"#).await;
    running.until(|counts| counts.duplicates == 1 && counts.conflicts == 1).await;
    running.stop().await;
    assert_eq!(total_of(&bed).await, 107);
    // a settled one is settled
    let ids = [conflict_id];
    let again = conflicts::request_replace(&bed.sql, "accounting", &ids, "bob", "again").await;
    assert!(again.unwrap().is_empty());
}

#[tokio::test]
async fn a_replacement_that_fails_changes_nothing_and_says_why() {
    let _alone = ALONE.lock().await;
    let mut bed = Bed::new().await;
    let conflict_id = five_and_seven(&mut bed).await;
    bed.log.expect_warn("a replacement that was asked for failed");
    bed.sql
        .batch_execute("ALTER TABLE seen ADD CONSTRAINT small CHECK (aggregate_id <> 'true')")
        .await
        .unwrap();
    let inbox = "SELECT md5(string_agg(i::text, ';')) FROM outflow.inbox i";
    let before: String = bed.value(inbox, &[]).await;
    ask(&bed, conflict_id).await;
    let running = bed.start(bed.options(), total());
    bed.until_true("SELECT failure LIKE '%small%' AND requested_at IS NULL FROM outflow.conflict")
        .await;
    assert_eq!((total_of(&bed).await, bed.value::<String>(inbox, &[]).await), (5, before));
    let found = conflicts::list(&bed.sql, &of_accounting(), false, 10).await.unwrap();
    assert!(found[0].resolution.is_none() && found[0].failure.is_some());
    // mended, and asked for again
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT small").await.unwrap();
    ask(&bed, conflict_id).await;
    bed.until_true(SETTLED).await;
    assert_eq!(total_of(&bed).await, 7);
    running.stop().await;
}

#[tokio::test]
async fn c72_a_worker_that_ends_before_a_replacement_commits_has_done_nothing() {
    let mut bed = Bed::new().await;
    let conflict_id = five_and_seven(&mut bed).await;
    ask(&bed, conflict_id).await;
    let _alone = ALONE.lock().await;
    fail::cfg("inbox::replace_before_commit", "panic").unwrap();
    let ended = bed.start(bed.options(), total()).end().await.unwrap_err();
    assert!(ended.to_string().contains("panicked"), "{ended}");
    assert_eq!(total_of(&bed).await, 5);
    fail::remove("inbox::replace_before_commit");
    // two workers, one replacement
    let workers = ["worker-1", "worker-2"].map(|worker| {
        let options = outflow_inbox::ConsumerOptions { worker: worker.to_owned(), ..bed.options() };
        bed.start(options, total())
    });
    bed.until_true(SETTLED).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!((total_of(&bed).await, bed.count("seen").await), (7, 2));
}

#[tokio::test]
async fn a_second_replacement_of_an_event_takes_the_first_one_back() {
    let _alone = ALONE.lock().await;
    let mut bed = Bed::new().await;
    let first = five_and_seven(&mut bed).await;
    bed.add("e1", "1", br#"{"v": 9}"#).await;
    let mut running = bed.start(bed.options(), total());
    running.until(|counts| counts.conflicts == 1 && counts.acknowledged == 1).await;
    ask(&bed, first).await;
    ask(&bed, first + 1).await;
    bed.until_true("SELECT bool_and(resolved_at IS NOT NULL) FROM outflow.conflict").await;
    running.stop().await;
    assert_eq!(total_of(&bed).await, 9);
}

#[tokio::test]
async fn a_replacement_is_made_by_the_worker_that_has_the_stream() {
    let _alone = ALONE.lock().await;
    let mut bed = Bed::new().await;
    let first = five_and_seven(&mut bed).await;
    let other = format!("{}:other", bed.stream);
    bed.add_to(&other, "e2", "2", br#"{"v": 100}"#).await;
    bed.add_to(&other, "e2", "2", br#"{"v": 200}"#).await;
    let options = outflow_inbox::ConsumerOptions { streams: vec![other], ..bed.options() };
    let mut running = bed.start(options, total());
    running.until(|counts| counts.conflicts == 1 && counts.acknowledged == 2).await;
    // in this order, and the first one is nothing for this worker
    ask(&bed, first).await;
    ask(&bed, first + 1).await;
    bed.until_true("SELECT resolved_at IS NOT NULL FROM outflow.conflict WHERE conflict_id = 2")
        .await;
    running.stop().await;
    assert_eq!(bed.count("outflow.conflict WHERE resolved_at IS NULL").await, 1);
    let running = bed.start(bed.options(), total());
    bed.until_true(SETTLED).await;
    running.stop().await;
    assert_eq!(total_of(&bed).await, 207);
}

#[tokio::test]
async fn a_replacement_comes_before_what_its_aggregate_holds_back() {
    let _alone = ALONE.lock().await;
    let mut bed = Bed::new().await;
    bed.log.expect_warn("is a dead letter now");
    let conflict_id = five_and_seven(&mut bed).await;
    bed.sql
        .batch_execute("ALTER TABLE seen ADD CONSTRAINT small CHECK (v::bigint < 100)")
        .await
        .unwrap();
    bed.add("e2", "1", br#"{"v": 100}"#).await;
    bed.add("e3", "1", br#"{"v": 1}"#).await;
    let options = outflow_inbox::ConsumerOptions { max_attempts: 1, ..bed.options() };
    let mut running = bed.start(options, total());
    running.until(|counts| counts.dead == 1 && counts.acknowledged == 2).await;
    ask(&bed, conflict_id).await;
    bed.until_true(SETTLED).await;
    assert_eq!((total_of(&bed).await, bed.count("outflow.parked").await), (7, 1));
    // what was held back stays in order behind it
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT small").await.unwrap();
    outflow_inbox::dead_letters::retry(&bed.sql, "accounting", &[1], "ada").await.unwrap();
    bed.until_true("SELECT count(*) = 0 FROM outflow.parked").await;
    running.stop().await;
    let order: Vec<String> =
        bed.value("SELECT array_agg(event_id ORDER BY n) FROM seen", &[]).await;
    assert_eq!(order, ["e1", "e1", "e2", "e3"]);
}

#[tokio::test]
async fn a_replacement_is_not_settled_by_a_handler_that_ends_the_transaction() {
    let _alone = ALONE.lock().await;
    let mut bed = Bed::new().await;
    let conflict_id = five_and_seven(&mut bed).await;
    bed.log.expect_warn("a replacement that was asked for failed");
    let bound = "SELECT payload ->> 'v' FROM outflow.inbox";
    for how in ["ROLLBACK; BEGIN", "COMMIT", "COMMIT; BEGIN"] {
        bed.sql.batch_execute("UPDATE outflow.conflict SET failure = NULL").await.unwrap();
        ask(&bed, conflict_id).await;
        let ends = seen_then(move |tx, _| {
            Box::pin(async move {
                let _ = tx.batch_execute(how).await;
                Ok(())
            })
        });
        let running = bed.start(bed.options(), ends);
        bed.until_true(
            "SELECT coalesce(failure, '') LIKE 'event e1: the handler ended%' FROM outflow.conflict",
        )
        .await;
        running.stop().await;
        assert_eq!(bed.count("outflow.conflict WHERE resolved_at IS NULL").await, 1);
        assert_eq!(bed.value::<String>(bound, &[]).await, "5", "{how}");
        assert_eq!(total_of(&bed).await, 5, "{how}");
    }
}
