//! Where a consumer begins that is new to streams with entries.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outflow_event::{EntryId, Epoch, Position};
use outflow_inbox::{ConsumerOptions, Error, Retry, Start};

use crate::support::{Bed, seen};

/// 2026-01-31T12:00:00Z
const NOON: u64 = 1_769_860_800;

fn noon_plus(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOON + seconds)
}

fn id(n: u64) -> EntryId {
    EntryId::at(Epoch(1), Position::new((1000 * n).into(), 0)).unwrap()
}

/// An entry as the connector writes it: the `n`-th, committed `n` seconds after noon; without a commit
/// time where it is a row of a snapshot.
async fn publish(bed: &mut Bed, n: u64, snapshot: bool) {
    let (id, position) = (id(n), Position::new((1000 * n).into(), 0));
    let mut add = redis::cmd("XADD");
    add.arg(&bed.stream).arg(id.to_string());
    add.arg(&[("event_id", format!("e{n}")), ("aggregate_type", "order".to_owned())]);
    add.arg(&[("aggregate_id", "1".to_owned()), ("event_type", "T".to_owned())]);
    add.arg(&[("payload", format!(r#"{{"v": {n}}}"#)), ("position", position.to_string())]);
    if !snapshot {
        add.arg("commit_time").arg(format!("2026-01-31T12:{:02}:{:02}.000000Z", n / 60, n % 60));
    }
    add.exec_async(&mut bed.redis).await.unwrap();
}

impl Bed {
    fn new_consumer(&self, from: Option<Start>) -> ConsumerOptions {
        ConsumerOptions { from, ..self.options() }
    }

    /// The first event and the number of events that a consumer applies which begins `from` there.
    async fn begun(&self, consumer_id: &str, from: Start) -> (Option<String>, i64) {
        let options = ConsumerOptions {
            consumer_id: consumer_id.to_owned(),
            ..self.new_consumer(Some(from))
        };
        let mut running = self.start(options, seen());
        running.until_status(|status| status.lag_entries == Some(0)).await;
        running.stop().await;
        let row = self
            .sql
            .query_one(
                "SELECT min(substr(event_id, 2)::int)::text, count(*) FROM outflow.inbox WHERE consumer_id = $1",
                &[&consumer_id],
            )
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }
}

#[tokio::test]
async fn c75_a_new_consumer_on_old_streams_is_refused_until_somebody_says_where_it_begins() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=7, 1).await;
    let refused = bed.start(bed.new_consumer(None), seen()).end().await.unwrap_err();
    assert_eq!(refused.retry(), Retry::Fatal);
    assert!(refused.to_string().contains("applies all 7 entries"), "{refused}");
    let Error::StartNeeded(needed) = refused else { panic!("{refused}") };
    assert_eq!((needed.streams.len(), needed.streams[0].entries), (1, 7));
    // nothing was begun: neither a group nor a position
    assert_eq!(bed.count("outflow.position").await, 0);
    assert_eq!(
        bed.redis_command(&["XINFO", "GROUPS", &bed.stream.clone()]).await,
        redis::Value::Array(vec![])
    );

    let from = Some(Start::Beginning);
    bed.run_until(bed.new_consumer(from), seen(), |counts| counts.acknowledged == 7).await;
    // it has begun: nothing needs to be said any more
    bed.add_many(8..=9, 1).await;
    bed.run_until(bed.new_consumer(None), seen(), |counts| counts.acknowledged == 2).await;
    bed.assert_exactly_once(9).await;
}

#[tokio::test]
async fn an_absent_or_empty_stream_needs_no_answer() {
    let mut bed = Bed::new().await;
    let absent = format!("{}:absent", bed.database.name);
    bed.add("gone", "1", b"{}").await;
    bed.redis_command(&["XTRIM", &bed.stream.clone(), "MAXLEN", "0"]).await;
    let options = ConsumerOptions {
        streams: vec![bed.stream.clone(), absent.clone()],
        ..bed.new_consumer(None)
    };
    let mut running = bed.start(options.clone(), seen());
    running.until_status(|status| status.state == outflow_inbox::State::Running).await;
    bed.add_many(1..=3, 1).await;
    bed.add_to(&absent, "e4", "1", br#"{"v": 4}"#).await;
    running.until(|counts| counts.acknowledged == 4).await;
    running.stop().await;
    bed.assert_exactly_once(4).await;

    // a stream that is added to a consumer later is new to it
    let later = format!("{}:later", bed.database.name);
    bed.add_to(&later, "e5", "1", br#"{"v": 5}"#).await;
    let options = ConsumerOptions { streams: vec![bed.stream.clone(), later.clone()], ..options };
    let refused = bed.start(options, seen()).end().await.unwrap_err().to_string();
    assert!(refused.contains(&format!("new to {later} (1 entries)")), "{refused}");
}

#[tokio::test]
async fn a_position_and_a_time_are_found_in_the_stream() {
    let mut bed = Bed::new().await;
    for n in 1..=90 {
        // a snapshot at the beginning, and rows that were published again in the middle
        publish(&mut bed, n, n <= 5 || (40..=50).contains(&n)).await;
    }
    let first = |n: u64| (Some(n.to_string()), 91 - i64::try_from(n).unwrap());
    assert_eq!(bed.begun("all", Start::Beginning).await, first(1));
    assert_eq!(bed.begun("now", Start::Now).await, (None, 0));
    assert_eq!(bed.begun("id", Start::After(id(10))).await, first(11));
    let position = Start::Position(Position::new(10_000.into(), 0));
    assert_eq!(bed.begun("position", position).await, first(11));
    for (name, seconds, expected) in [
        ("at", 20, first(20)),
        ("first", 6, first(1)),
        ("before", 0, first(1)),
        ("last", 90, first(90)),
        ("after", 91, (None, 0)),
        // rows without a commit time count with the entry behind them
        ("snapshot", 45, first(40)),
        ("behind", 52, first(52)),
    ] {
        assert_eq!(bed.begun(name, Start::Time(noon_plus(seconds))).await, expected, "{name}");
    }
}

#[tokio::test]
async fn a_position_means_nothing_to_ids_that_are_none() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=3, 1).await;
    let from = Start::Position(Position::new(10_000.into(), 0));
    let refused = bed.start(bed.new_consumer(Some(from)), seen()).end().await.unwrap_err();
    assert!(refused.to_string().starts_with("from = \"0/2710:0\""), "{refused}");
}

#[tokio::test]
async fn a_group_that_the_database_knows_nothing_of_is_set_to_the_beginning() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=7, 1).await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "CREATE", &stream, "accounting", "$"]).await;
    let refused = bed.start(bed.new_consumer(None), seen()).end().await.unwrap_err().to_string();
    assert!(refused.contains("a group of this name"), "{refused}");
    let from = Some(Start::Beginning);
    bed.run_until(bed.new_consumer(from), seen(), |counts| counts.acknowledged == 7).await;
    bed.assert_exactly_once(7).await;
}
