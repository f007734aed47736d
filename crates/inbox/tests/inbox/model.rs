//! Random histories against a model of the inbox.
//!
//! The model is pure: a list of entries in the order of the stream says which events have their effect,
//! in which order within an aggregate, and which deliveries are conflicts. Whatever happens on the way
//! (crashes in every gap, redeliveries, other workers, attempts that fail) must not show in the end.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{Bed, PATIENCE, Running, seen};
use outflow_inbox::dead_letters::{self, Filter};
use outflow_inbox::{ConsumerOptions, OnFailure};

const AGGREGATES: u8 = 3;
/// Refused by the projection until it is mended.
const POISON: [u8; 2] = [3, 7];

#[derive(Debug, Clone)]
enum Step {
    /// A delivery of one of a few events, with the payload of that variant.
    Add { event: u8, variant: u8 },
    /// An entry that is no event.
    Garbage,
    /// The worker dies, and another one takes its place.
    Crash,
    /// The worker dies the next time that it comes by.
    CrashAt(&'static str),
    /// Somebody who does not have the stream is given some entries: a worker that was paused, and wakes up.
    Stray(u8),
    /// Redis forgets what was acknowledged.
    Rewind,
    /// The worker catches up with everything that it can do.
    CatchUp,
}

fn step() -> impl Strategy<Value = Step> {
    let points = prop::sample::select(vec![
        "inbox::after_read",
        "inbox::before_apply",
        "inbox::after_insert",
        "inbox::after_handler",
        "inbox::before_commit",
        "inbox::after_commit",
        "inbox::after_ack",
        "inbox::round_marked",
        "inbox::attempt_started",
    ]);
    prop_oneof![
        12 => (0..12_u8, prop::sample::select(vec![0, 0, 0, 1_u8]))
            .prop_map(|(event, variant)| Step::Add { event, variant }),
        1 => Just(Step::Garbage),
        1 => Just(Step::Crash),
        3 => points.prop_map(Step::CrashAt),
        2 => (1..4_u8).prop_map(Step::Stray),
        1 => Just(Step::Rewind),
        1 => Just(Step::CatchUp),
    ]
}

/// What must be in the database in the end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    /// Event and variant, by aggregate, in order.
    applied: BTreeMap<String, Vec<(String, String)>>,
    conflicts: i64,
    malformed: i64,
}

fn expected(steps: &[Step]) -> Expected {
    let mut known = BTreeMap::new();
    let mut expected = Expected::default();
    for step in steps {
        match step {
            Step::Add { event, variant } => match known.get(event) {
                None => {
                    known.insert(*event, *variant);
                    let aggregate = (event % AGGREGATES).to_string();
                    let effect = (format!("e{event}"), variant.to_string());
                    expected.applied.entry(aggregate).or_default().push(effect);
                }
                Some(first) => expected.conflicts += i64::from(first != variant),
            },
            Step::Garbage => expected.malformed += 1,
            Step::Crash | Step::CrashAt(_) | Step::Stray(_) | Step::Rewind | Step::CatchUp => {}
        }
    }
    expected
}

/// A consumer whose worker is replaced whenever it dies.
struct Workers {
    running: Running,
    number: usize,
    on_failure: OnFailure,
}

impl Workers {
    fn options(bed: &Bed, number: usize, on_failure: OnFailure) -> ConsumerOptions {
        ConsumerOptions {
            worker: format!("worker-{number}"),
            batch: 5,
            max_attempts: 2,
            on_failure,
            claim_interval: Duration::from_millis(50),
            claim_min_idle: Duration::from_secs(3),
            ..bed.options()
        }
    }

    fn start(bed: &Bed, on_failure: OnFailure) -> Self {
        let running = bed.start(Self::options(bed, 0, on_failure), seen());
        Self { running, number: 0, on_failure }
    }

    async fn replace(&mut self, bed: &Bed) {
        self.number += 1;
        let options = Self::options(bed, self.number, self.on_failure);
        let gone = std::mem::replace(&mut self.running, bed.start(options, seen()));
        gone.crash().await;
    }

    /// Waits until `query` is true and nothing is pending or unread.
    async fn until(&mut self, bed: &mut Bed, query: &str) {
        let settled = async {
            loop {
                if self.running.is_finished() {
                    self.replace(bed).await;
                }
                // in this order: what is not unread any more is pending, and what is not pending
                // is applied or held back
                let read = bed.lag().await == 0 && bed.pending().await == 0;
                if read && bed.value::<bool>(query, &[]).await {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, settled).await.expect(query);
    }
}

/// Whatever is held back waits behind a dead letter.
const SETTLED: &str = "SELECT NOT EXISTS (SELECT FROM outflow.parked WHERE due_at IS NOT NULL)";
/// Whatever somebody asked for has been tried.
const RETRIED: &str = "SELECT NOT EXISTS (SELECT FROM outflow.parked WHERE due_at IS NOT NULL) AND NOT EXISTS \
                       (SELECT FROM outflow.dead_letter WHERE resolved_at IS NULL AND retry_requested_at IS NOT NULL)";
const EMPTY: &str = "SELECT NOT EXISTS (SELECT FROM outflow.parked) AND NOT EXISTS \
                     (SELECT FROM outflow.dead_letter WHERE resolved_at IS NULL AND event_id IS NOT NULL)";

async fn play(steps: Vec<Step>, on_failure: OnFailure) -> Result<(), TestCaseError> {
    let mut bed = Bed::new().await;
    for warning in ["conflict", "set aside", "cannot be applied", "dead letter", "group was gone"] {
        bed.log.expect_warn(warning);
    }
    let poison = POISON.map(|event| format!("'e{event}'")).join(", ");
    let constraint =
        format!("ALTER TABLE seen ADD CONSTRAINT poison CHECK (event_id NOT IN ({poison}))");
    bed.sql.batch_execute(&constraint).await.unwrap();
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "CREATE", &stream, "accounting", "0", "MKSTREAM"]).await;
    let mut workers = Workers::start(&bed, on_failure);
    for step in &steps {
        match step {
            Step::Add { event, variant } => {
                let payload = format!("{{\"v\": {variant}}}");
                let aggregate = (event % AGGREGATES).to_string();
                bed.add(&format!("e{event}"), &aggregate, payload.as_bytes()).await;
            }
            Step::Garbage => {
                bed.redis_command(&["XADD", &stream, "*", "foo", "bar"]).await;
            }
            Step::Crash => workers.replace(&bed).await,
            Step::CrashAt(point) => fail::cfg(*point, "1*panic").unwrap(),
            Step::Stray(entries) => bed.read_and_die("a stray", usize::from(*entries)).await,
            Step::Rewind => {
                bed.redis_command(&["XGROUP", "SETID", &stream, "accounting", "0"]).await;
            }
            Step::CatchUp => workers.until(&mut bed, SETTLED).await,
        }
        if workers.running.is_finished() {
            workers.replace(&bed).await;
        }
    }
    workers.until(&mut bed, SETTLED).await;
    bed.sql.batch_execute("ALTER TABLE seen DROP CONSTRAINT poison").await.unwrap();
    loop {
        // one letter may give way to the next, and one whose worker dies in its only attempt is a
        // letter again
        let letters = dead_letters::list(&bed.sql, "accounting", &Filter::default(), false, 100)
            .await
            .unwrap();
        let ids: Vec<i64> =
            letters.iter().filter(|l| l.event_id.is_some()).map(|letter| letter.id).collect();
        if ids.is_empty() {
            break;
        }
        dead_letters::retry(&bed.sql, "accounting", &ids, "model").await.unwrap();
        workers.until(&mut bed, RETRIED).await;
    }
    workers.until(&mut bed, EMPTY).await;
    fail::FailScenario::setup().teardown();
    workers.running.crash().await;
    compare(&bed, &steps, on_failure).await
}

async fn compare(bed: &Bed, steps: &[Step], on_failure: OnFailure) -> Result<(), TestCaseError> {
    let mut expected = expected(steps);
    let mut found = Expected {
        conflicts: bed.count("outflow.conflict").await,
        malformed: bed.count("outflow.dead_letter WHERE event_id IS NULL").await,
        ..Expected::default()
    };
    for row in
        bed.sql.query("SELECT aggregate_id, event_id, v FROM seen ORDER BY n", &[]).await.unwrap()
    {
        found.applied.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
    }
    if on_failure == OnFailure::Skip {
        // others overtake an event that became a dead letter, refused or because its workers died in
        // all of its attempts; another delivery of it may come before its retry
        let dead = "SELECT DISTINCT event_id FROM outflow.dead_letter WHERE event_id IS NOT NULL";
        let dead = bed.sql.query(dead, &[]).await.unwrap();
        let dead: HashSet<String> = dead.iter().map(|row| row.get(0)).collect();
        for applied in expected.applied.values_mut().chain(found.applied.values_mut()) {
            applied.retain(|(event, _)| !dead.contains(event));
            applied.sort_unstable();
        }
        expected.applied.retain(|_, applied| !applied.is_empty());
        found.applied.retain(|_, applied| !applied.is_empty());
        expected.conflicts = found.conflicts;
    }
    prop_assert_eq!(found, expected);
    let twice = bed.count("(SELECT event_id FROM seen GROUP BY 1 HAVING count(*) > 1) s").await;
    let inbox = bed.count("outflow.inbox").await;
    prop_assert_eq!((twice, inbox), (0, bed.count("seen").await));
    prop_assert_eq!(bed.count("outflow.parked").await, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_in_which_workers_die_is_asked_for_again() {
    let steps = vec![
        Step::Add { event: POISON[0], variant: 0 },
        Step::CatchUp,
        Step::CrashAt("inbox::round_marked"),
        Step::CrashAt("inbox::attempt_started"),
    ];
    play(steps, OnFailure::ParkAggregate).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_event_whose_workers_died_may_be_overtaken_by_its_other_self() {
    let steps = vec![
        Step::CrashAt("inbox::attempt_started"),
        Step::CrashAt("inbox::before_commit"),
        Step::CrashAt("inbox::before_apply"),
        Step::Add { event: 10, variant: 0 },
        Step::CatchUp,
        Step::Add { event: 10, variant: 1 },
    ];
    play(steps, OnFailure::Skip).await.unwrap();
}

#[test]
fn whatever_happens_on_the_way_does_not_show_in_the_end() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // each history runs on real servers, in a database of its own
    let config =
        Config { cases: 12, max_shrink_iters: 20, failure_persistence: None, ..Config::default() };
    let on_failure = prop_oneof![
        3 => Just(OnFailure::ParkAggregate),
        1 => Just(OnFailure::Skip),
    ];
    let histories = (prop::collection::vec(step(), 5..60), on_failure);
    TestRunner::new(config)
        .run(&histories, |(steps, on_failure)| runtime.block_on(play(steps, on_failure)))
        .unwrap();
}
