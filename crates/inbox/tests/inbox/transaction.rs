//! Handlers that end the inbox's transaction by themselves.
//!
//! Nobody can keep a handler from sending ROLLBACK; but nothing may come of it except that the consumer
//! ends and says so. Every case is tried on a connection and a consumer of its own, over the same entries,
//! and then by a handler that is mended.

use outflow_inbox::{
    ConsumerOptions, Delivery, Error, Handler, HandlerError, OnGap, Retry, SqlProjection,
};

use tokio_postgres::types::ToSql;

use crate::support::{Bed, seen, seen_then};

const ENDS: [&str; 6] = [
    "ROLLBACK",
    "ROLLBACK; BEGIN",
    "ROLLBACK AND CHAIN",
    "COMMIT",
    "COMMIT; BEGIN",
    "COMMIT AND CHAIN",
];
const REFUSED: &str = "cannot be applied and will be tried again";

/// 20 events of five aggregates, numbered in each.
async fn add_numbered(bed: &mut Bed) {
    let stream = bed.stream.clone();
    for n in 0..20 {
        let (event, aggregate, seq) = (format!("e{}", n + 1), (n % 5).to_string(), n / 5 + 1);
        let (seq, payload) = (seq.to_string(), format!(r#"{{"v": {n}}}"#));
        let mut command = vec!["XADD", &stream, "*", "event_id", &event, "aggregate_type", "order"];
        command.extend(["aggregate_id", &aggregate, "seq", &seq, "event_type", "T"]);
        command.extend(["payload", &payload]);
        bed.redis_command(&command).await;
    }
}

fn holds(events: &[Delivery], event_id: &str) -> bool {
    events.iter().any(|event| event.entry.event.event_id == event_id)
}

/// Refuses `poison`, and ends the transaction where it comes to `e14`, by one statement after the other.
fn ends(how: &'static str, poison: &'static str, hides: bool) -> impl Handler {
    seen_then(move |tx, events| {
        let (poisoned, ends) = (holds(events, poison), holds(events, "e14"));
        Box::pin(async move {
            if poisoned {
                return Err(HandlerError::other("refused"));
            }
            for statement in how.split("; ").filter(|_| ends) {
                let done = tx.batch_execute(statement).await;
                if !hides {
                    done?;
                }
            }
            Ok(())
        })
    })
}

/// Of what `handler` did with 20 events nothing stands, and a consumer that is mended applies each once.
async fn nothing_comes_of(bed: &mut Bed, case: &str, handler: impl Handler) {
    bed.sql.batch_execute("TRUNCATE seen").await.unwrap();
    let options =
        ConsumerOptions { consumer_id: case.to_owned(), on_gap: OnGap::Warn, ..bed.options() };
    let error = bed.start(options.clone(), handler).end().await.unwrap_err();
    assert!(matches!(error, Error::TransactionEnded { .. }), "{case}: {error}");
    assert_eq!(error.retry(), Retry::Fatal);
    for nothing in ["outflow.inbox", "outflow.parked", "outflow.sequence", "outflow.dead_letter"] {
        let left = bed.count(&format!("{nothing} WHERE consumer_id = '{case}'")).await;
        assert_eq!(left, 0, "{case}: {nothing}");
    }
    assert_eq!(bed.count("seen").await, 0, "{case}");
    let summary = bed.run_until(options, seen(), |counts| counts.acknowledged == 20).await;
    assert_eq!((summary.counts.applied, summary.counts.duplicates), (20, 0), "{case}");
    assert_eq!(bed.count("(SELECT DISTINCT event_id FROM seen) s").await, 20, "{case}");
    assert_eq!(bed.count("seen").await, 20, "{case}");
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_of_a_batch_ends_the_consumer_and_nothing_else() {
    let mut bed = Bed::new().await;
    add_numbered(&mut bed).await;
    for how in ENDS {
        for hides in [false, true] {
            let case = format!("{how}, hides {hides}");
            nothing_comes_of(&mut bed, &case, ends(how, "", hides)).await;
        }
    }
}

/// What was applied before, what failed before and what comes behind are in the same transaction.
#[tokio::test]
async fn a_handler_that_ends_the_transaction_of_a_slice_harms_no_other_slice() {
    let mut bed = Bed::new().await;
    add_numbered(&mut bed).await;
    for how in ENDS {
        for (poison, hides) in [("e2", false), ("e20", true)] {
            let case = format!("{how}, poison {poison}, hides {hides}");
            nothing_comes_of(&mut bed, &case, ends(how, poison, hides)).await;
        }
    }
}

#[tokio::test]
async fn a_parked_event_whose_handler_ends_the_transaction_stays_parked() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn(REFUSED);
    bed.add_many(1..=6, 3).await;
    let refuses = seen_then(|_, events| {
        let refused = holds(events, "e2");
        Box::pin(async move { if refused { Err(HandlerError::other("refused")) } else { Ok(()) } })
    });
    let patient = ConsumerOptions { max_attempts: 1000, ..bed.options() };
    bed.run_until(patient.clone(), refuses, |counts| counts.acknowledged == 6).await;
    for how in ["ROLLBACK", "COMMIT", "COMMIT; BEGIN"] {
        let ends = seen_then(move |tx, _| {
            Box::pin(async move {
                let _ = tx.batch_execute(how).await;
                Ok(())
            })
        });
        let error = bed.start(patient.clone(), ends).end().await.unwrap_err();
        assert!(error.to_string().starts_with("event e2: the handler ended"), "{how}: {error}");
        assert_eq!(bed.count("outflow.parked").await, 2, "{how}");
        assert_eq!(bed.count("seen").await, 4, "{how}");
    }
    bed.run_until(patient, seen(), |counts| counts.applied == 2).await;
    bed.assert_exactly_once(6).await;
    bed.assert_order_within_aggregates().await;
}

/// The inbox rows are sent before the transaction is known to have begun. Without it they would stand for
/// events that have had no effect.
#[tokio::test]
async fn inbox_rows_that_are_sent_outside_of_the_transaction_are_not_written() {
    const INSERT: &str = include_str!("../../src/sql/insert.sql");
    const BEGIN: &str = include_str!("../../src/sql/transaction.sql");
    let bed = Bed::new().await;
    let texts = vec!["x"];
    let (seq, raw) = (vec![1_i64], vec![None::<&[u8]>]);
    let payload = vec!["{}"];
    let parameters: [&(dyn ToSql + Sync); 11] =
        [&"c", &texts, &texts, &texts, &seq, &texts, &payload, &raw, &texts, &texts, &texts];
    for (begin, fresh) in [("", 0_i64), ("START TRANSACTION", 0), (BEGIN, 1)] {
        bed.sql.batch_execute(begin).await.unwrap();
        let row = bed.sql.query_one(INSERT, &parameters).await.unwrap();
        assert_eq!(row.get::<_, i64>("fresh"), fresh, "{begin}");
        bed.sql.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(bed.count("outflow.inbox").await, 0);
}

/// What a handler does outside of the transaction is out of the inbox's hands: it may not come again and again.
#[tokio::test]
async fn what_a_handler_does_behind_its_rollback_is_not_repeated() {
    let mut bed = Bed::new().await;
    bed.sql.batch_execute("CREATE TABLE stray (events bigint)").await.unwrap();
    add_numbered(&mut bed).await;
    for poison in ["", "e2"] {
        let handler = seen_then(move |tx, events| {
            let (poisoned, ends) = (holds(events, poison), holds(events, "e14"));
            Box::pin(async move {
                if ends && !poisoned {
                    tx.batch_execute("ROLLBACK").await?;
                    tx.batch_execute("INSERT INTO stray VALUES (1)").await?;
                }
                if ends || poisoned { Err(HandlerError::other("refused")) } else { Ok(()) }
            })
        });
        bed.sql.batch_execute("TRUNCATE stray").await.unwrap();
        nothing_comes_of(&mut bed, &format!("poison {poison}"), handler).await;
        assert_eq!(bed.count("stray").await, 1);
    }
}

#[tokio::test]
async fn savepoints_cursors_and_checks_of_constraints_are_the_handlers() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn(REFUSED);
    bed.sql
        .batch_execute(
            "ALTER TABLE seen ADD CONSTRAINT once UNIQUE (v) DEFERRABLE INITIALLY DEFERRED",
        )
        .await
        .unwrap();
    bed.add_many(1..=20, 5).await;
    let handler = seen_then(|tx, events| {
        let poisoned = holds(events, "e2");
        Box::pin(async move {
            tx.batch_execute(
                "SAVEPOINT mine; DELETE FROM seen; ROLLBACK TO SAVEPOINT mine; \
                 SET CONSTRAINTS ALL IMMEDIATE; \
                 DECLARE mine CURSOR FOR SELECT 1; FETCH mine; CLOSE ALL",
            )
            .await?;
            if poisoned { Err(HandlerError::other("refused")) } else { Ok(()) }
        })
    });
    let patient = ConsumerOptions { max_attempts: 1000, ..bed.options() };
    bed.run_until(patient, handler, |c| c.acknowledged == 20 && c.applied == 16).await;
    bed.run_until(bed.options(), seen(), |counts| counts.applied == 4).await;
    bed.assert_exactly_once(20).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn a_function_of_a_projection_that_commits_is_refused_and_waited_for() {
    const FUNCTION: &str = "CREATE OR REPLACE FUNCTION settle(v text) RETURNS text LANGUAGE plpgsql AS \
                            $$ BEGIN IF v = '14' THEN COMMIT; END IF; \
                            IF v = '2' THEN RAISE 'refused'; END IF; RETURN v; END $$";
    let mut bed = Bed::new().await;
    bed.log.expect_warn("no event can be applied until that is mended");
    bed.log.expect_warn(REFUSED);
    bed.sql.batch_execute(FUNCTION).await.unwrap();
    bed.add_many(1..=20, 5).await;
    let projection = SqlProjection::parse(
        "INSERT INTO seen (event_id, aggregate_id, v)\n\
         SELECT event_id, aggregate_id, settle(payload ->> 'v') FROM events ORDER BY ordinal",
    )
    .unwrap();
    let patient = ConsumerOptions { max_attempts: 1000, ..bed.options() };
    let mut running = bed.start(patient, projection);
    running.until_waiting_for("invalid transaction termination").await;
    assert_eq!((bed.count("seen").await, bed.count("outflow.inbox").await), (0, 0));
    bed.sql.batch_execute(&FUNCTION.replace("COMMIT", "NULL")).await.unwrap();
    running.until(|counts| counts.acknowledged == 20 && counts.applied == 16).await;
    bed.sql.batch_execute(&FUNCTION.replace("COMMIT", "NULL").replace("'2'", "''")).await.unwrap();
    running.until(|counts| counts.applied == 20).await;
    running.stop().await;
    bed.assert_exactly_once(20).await;
    bed.assert_order_within_aggregates().await;
}
