//! Both offset stores: an offset never goes back, and its history stays bounded.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test"
)]

mod source;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outflow_event::{Epoch, Lsn, Position};
use outflow_pgoutput::ConnectOptions;
use outflow_relay::config::{OffsetConfig, OffsetStoreKind};
use outflow_relay::offset::{
    Offset, OffsetStore, PostgresOffsetStore, RedisOffsetStore, SnapshotProgress, ledger_key,
    offset_key,
};
use outflow_relay::sink::connection::RedisLink;
use outflow_relay::{Error, Retry};
use outflow_sandbox::{Postgres, Redis};
use source::Source;

const CONNECTOR: &str = "shop";

fn config(ledger_entries: u64, ledger_interval: Duration) -> OffsetConfig {
    OffsetConfig { store: OffsetStoreKind::Redis, ledger_entries, ledger_interval }
}

fn offset(end_lsn: u64) -> Offset {
    Offset {
        system_identifier: "7312345678901234567".into(),
        timeline: 3,
        slot: "ob".into(),
        epoch: Epoch(0),
        position: None,
        end_lsn: Lsn::from(end_lsn),
        commit_time: None,
        published_count: 0,
        at: Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(),
        snapshot: None,
    }
}

/// An offset inside a transaction, with everything that an offset can have.
fn full() -> Offset {
    Offset {
        epoch: Epoch(200),
        position: Some(Position::new(Lsn::from(0x1_16B3_7480), 41)),
        commit_time: Some(Timestamp::from_microsecond(1_700_000_000_000_001).unwrap()),
        published_count: 123_456_789_012,
        ..offset(0x1_16B3_7400)
    }
}

fn in_snapshot(begun: bool, rows: Option<u64>, last_key: &[&str]) -> Offset {
    let lsn = Lsn::from(0x100);
    let progress = SnapshotProgress {
        visible: if begun { "5:9:7,8".into() } else { String::new() },
        lsn: lsn.to_string(),
        start: begun.then(|| Lsn::from(0x180).to_string()),
        last_key: last_key.iter().map(ToString::to_string).collect(),
    };
    let position = rows.map(|rows| Position::new(lsn, rows));
    Offset { position, snapshot: Some(progress), ..offset(0x100) }
}

/// The contract of `OffsetStore`, for two connectors that share a name.
async fn obeys<O: OffsetStore>(own: &mut O, zombie: &mut O) {
    assert_eq!(own.load().await.unwrap(), None);
    own.save(&offset(100)).await.unwrap();
    assert_eq!(own.load().await.unwrap(), Some(offset(100)));

    // a retry after an unknown outcome succeeds
    own.save(&offset(100)).await.unwrap();
    own.save(&Offset { at: Timestamp::now(), ..offset(100) }).await.unwrap();

    // within a transaction, then its end
    let within = |index| Offset {
        position: Some(Position::new(Lsn::from(150), index)),
        published_count: index + 1,
        ..offset(100)
    };
    own.save(&within(2)).await.unwrap();
    own.save(&within(5)).await.unwrap();
    assert_eq!(own.load().await.unwrap(), Some(within(5)));
    refused(zombie, &offset(100)).await;
    let ended = Offset { end_lsn: Lsn::from(160), ..within(9) };
    own.save(&ended).await.unwrap();
    refused(zombie, &within(8)).await;
    assert_eq!(own.load().await.unwrap(), Some(ended.clone()));

    // a zombie that is told so can go on from what is stored
    let stored = zombie.load().await.unwrap().unwrap();
    let next = Offset { end_lsn: Lsn::from(170), ..stored };
    zombie.save(&next).await.unwrap();
    refused(own, &ended).await;

    // a new epoch begins at lower positions
    let forked = Offset { epoch: Epoch(1), position: None, ..offset(90) };
    own.save(&forked).await.unwrap();
    refused(zombie, &offset(10_000)).await;
    assert_eq!(own.load().await.unwrap(), Some(forked));
    own.save(&full()).await.unwrap();
    assert_eq!(own.load().await.unwrap(), Some(full()));
}

/// Two late writers of the offset: (L, 5), then (L, 2).
async fn compares_the_index_too<O: OffsetStore>(own: &mut O, zombie: &mut O) {
    let within =
        |index| Offset { position: Some(Position::new(Lsn::from(150), index)), ..offset(100) };
    own.save(&within(5)).await.unwrap();
    refused(zombie, &within(2)).await;
    assert_eq!(own.load().await.unwrap(), Some(within(5)));
}

async fn refused<O: OffsetStore>(store: &mut O, offset: &Offset) {
    let error = store.save(offset).await.unwrap_err();
    assert!(matches!(&error, Error::Superseded { connector, .. } if connector == CONNECTOR));
    assert!(error.to_string().contains("another connector"), "{error}");
}

/// Every step of a snapshot can be saved, none can be taken back.
async fn keeps_a_snapshot<O: OffsetStore>(store: &mut O) {
    let steps = [
        in_snapshot(false, None, &[]),
        in_snapshot(true, None, &[]),
        in_snapshot(true, Some(0), &["1", "it's \\ \"odd\" \u{1F980}"]),
        in_snapshot(true, Some(1), &["1", ""]),
        in_snapshot(true, Some(1), &["1", ""]).after_snapshot().unwrap(),
    ];
    for (at, step) in steps.iter().enumerate() {
        store.save(step).await.unwrap();
        assert_eq!(store.load().await.unwrap().as_ref(), Some(step));
        if let Some(before) = at.checked_sub(1) {
            refused(store, &steps[before]).await;
        }
    }
}

async fn keeps_a_bounded_ledger<O: OffsetStore>(store: &mut O, most: usize) {
    let at = |n: u64| Offset {
        at: offset(0).at + SignedDuration::from_millis(i64::try_from(n).unwrap() * 100),
        ..offset(1000 + n)
    };
    for n in 0..2000 {
        store.save(&at(n)).await.unwrap();
    }
    let all = store.ledger(usize::MAX >> 8).await.unwrap();
    // one line a second of ten offsets, the newest first
    assert!((100..=most).contains(&all.len()), "{}", all.len());
    assert_eq!(all[0], at(1990));
    assert_eq!(all[1], at(1980));
    assert_eq!(store.ledger(3).await.unwrap(), all[..3]);
    assert_eq!(store.load().await.unwrap(), Some(at(1999)));
}

fn redis_store(redis: &Redis, config: &OffsetConfig) -> RedisOffsetStore {
    let link = RedisLink::new(redis.url().parse().unwrap(), Duration::from_secs(5));
    RedisOffsetStore::new(link, CONNECTOR, config)
}

fn postgres_store(source: &Source, config: &OffsetConfig) -> PostgresOffsetStore {
    PostgresOffsetStore::new(source.config.connect.clone(), CONNECTOR, config)
}

#[tokio::test]
async fn redis_never_goes_back() {
    let redis = Redis::builder().start().await.unwrap();
    let config = config(100, Duration::ZERO);
    obeys(&mut redis_store(&redis, &config), &mut redis_store(&redis, &config)).await;
}

#[tokio::test]
async fn c57_the_same_lsn_with_a_smaller_index_is_refused_in_redis() {
    let redis = Redis::builder().start().await.unwrap();
    let config = config(100, Duration::ZERO);
    let mut zombie = redis_store(&redis, &config);
    compares_the_index_too(&mut redis_store(&redis, &config), &mut zombie).await;
}

#[tokio::test]
async fn redis_keeps_a_snapshot() {
    let redis = Redis::builder().start().await.unwrap();
    keeps_a_snapshot(&mut redis_store(&redis, &config(100, Duration::ZERO))).await;
}

#[tokio::test]
async fn redis_keeps_one_record_and_a_bounded_ledger() {
    let redis = Redis::builder().start().await.unwrap();
    let config = config(100, Duration::from_secs(1));
    // Redis trims whole nodes of the stream, 100 lines at a time
    keeps_a_bounded_ledger(&mut redis_store(&redis, &config), 300).await;
    let mut connection = redis.connect().await.unwrap();
    let length: usize =
        redis::cmd("XLEN").arg(offset_key(CONNECTOR)).query_async(&mut connection).await.unwrap();
    assert_eq!(length, 1);
}

#[tokio::test]
async fn postgres_never_goes_back() {
    let source = Source::start().await;
    let config = config(100, Duration::ZERO);
    let mut zombie = postgres_store(&source, &config);
    obeys(&mut postgres_store(&source, &config), &mut zombie).await;
}

#[tokio::test]
async fn c57_the_same_lsn_with_a_smaller_index_is_refused_in_postgres() {
    let source = Source::start().await;
    let config = config(100, Duration::ZERO);
    let mut zombie = postgres_store(&source, &config);
    compares_the_index_too(&mut postgres_store(&source, &config), &mut zombie).await;
}

#[tokio::test]
async fn postgres_keeps_a_snapshot() {
    let source = Source::start().await;
    keeps_a_snapshot(&mut postgres_store(&source, &config(100, Duration::ZERO))).await;
}

#[tokio::test]
async fn postgres_keeps_a_bounded_ledger() {
    let source = Source::start().await;
    let config = config(100, Duration::from_secs(1));
    keeps_a_bounded_ledger(&mut postgres_store(&source, &config), 100).await;
}

#[tokio::test]
async fn a_restart_does_not_hasten_the_ledger() {
    let redis = Redis::builder().start().await.unwrap();
    let config = config(100, Duration::from_secs(3600));
    for lsn in [100, 200] {
        let mut store = redis_store(&redis, &config);
        store.load().await.unwrap();
        store.save(&offset(lsn)).await.unwrap();
    }
    assert_eq!(redis_store(&redis, &config).ledger(10).await.unwrap(), [offset(100)]);
}

#[tokio::test]
async fn a_store_outlives_its_connection() {
    let redis = Redis::builder().appendonly(outflow_sandbox::Fsync::Always).start().await.unwrap();
    let mut store = redis_store(&redis, &config(100, Duration::ZERO));
    store.save(&offset(100)).await.unwrap();
    redis.kill().await.unwrap();
    let error = store.save(&offset(200)).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Transient, "{error}");
    assert!(store.load().await.is_err());
    redis.start_again().await.unwrap();
    assert_eq!(store.load().await.unwrap(), Some(offset(100)));
    store.save(&offset(200)).await.unwrap();
}

async fn redis_command(redis: &Redis, command: &[&str]) {
    let mut connection = redis.connect().await.unwrap();
    let mut all = redis::cmd(command[0]);
    for part in &command[1..] {
        all.arg(part);
    }
    let _: redis::Value = all.query_async(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_record_that_is_not_ours_is_named() {
    let redis = Redis::builder().start().await.unwrap();
    let config = config(100, Duration::ZERO);
    let key = offset_key(CONNECTOR);
    let load = async || redis_store(&redis, &config).load().await.unwrap_err();

    redis_command(&redis, &["SET", &key, "x"]).await;
    let error = load().await;
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    redis_command(&redis, &["DEL", &key]).await;

    redis_command(&redis, &["XADD", &key, "100-0", "foo", "bar"]).await;
    let error = load().await.to_string();
    assert!(error.contains(&key) && error.contains("`system_identifier`"), "{error}");
    redis_command(&redis, &["DEL", &key]).await;

    // edited by hand: the id is what fences, the fields are what is resumed from
    let mut store = redis_store(&redis, &config);
    store.save(&offset(100)).await.unwrap();
    redis_command(&redis, &["XTRIM", &key, "MAXLEN", "0"]).await;
    let error = load().await.to_string();
    assert!(error.contains("its record was removed"), "{error}");
    assert!(error.contains("`outflow offsets reset --from-rows`"), "{error}");
    let fields: Vec<(&str, String)> = offset(100).to_fields();
    let mut command = vec!["XADD", &key, "777-0"];
    command.extend(fields.iter().flat_map(|(name, value)| [*name, value.as_str()]));
    redis_command(&redis, &command).await;
    let error = load().await.to_string();
    assert!(error.contains("777-0") && error.contains("different positions"), "{error}");
}

#[tokio::test]
async fn a_ledger_that_cannot_be_written_does_not_hold_up_the_offset() {
    let redis = Redis::builder().start().await.unwrap();
    let mut store = redis_store(&redis, &config(100, Duration::ZERO));
    redis_command(&redis, &["SET", &ledger_key(CONNECTOR), "x"]).await;
    store.save(&offset(100)).await.unwrap();
    redis_command(&redis, &["DEL", &ledger_key(CONNECTOR)]).await;
    assert_eq!(store.load().await.unwrap(), Some(offset(100)));
}

#[tokio::test]
async fn tables_that_are_missing_or_forbidden_are_named() {
    let bare = Source::bare(Postgres::builder()).await;
    let config = config(100, Duration::ZERO);
    let mut store = postgres_store(&bare, &config);
    for error in [store.load().await.unwrap_err(), store.save(&offset(1)).await.unwrap_err()] {
        assert_eq!(error.retry(), Retry::Fatal);
        assert!(error.to_string().contains("outflow init"), "{error}");
    }

    let source = Source::start().await;
    source.run("CREATE ROLE stranger LOGIN REPLICATION").await;
    let stranger = source.pg.url_as("stranger", source.config.connect.database());
    let stranger = ConnectOptions::parse(&stranger).unwrap();
    let mut store = PostgresOffsetStore::new(stranger, CONNECTOR, &config);
    for error in [store.load().await.unwrap_err(), store.save(&offset(1)).await.unwrap_err()] {
        assert_eq!(error.retry(), Retry::Fatal);
        assert!(error.to_string().contains("GRANT outflow_connector"), "{error}");
    }

    // the grants of sql/producer are enough
    source.run("GRANT outflow_connector TO stranger").await;
    store.save(&full()).await.unwrap();
    assert_eq!(store.load().await.unwrap(), Some(full()));
}

#[tokio::test]
async fn a_store_in_postgresql_outlives_its_session() {
    let source = Source::start().await;
    let mut store = postgres_store(&source, &config(100, Duration::ZERO));
    store.save(&offset(100)).await.unwrap();
    source
        .run(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    // the first call may be the one that finds out
    if let Err(error) = store.save(&offset(200)).await {
        assert_eq!(error.retry(), Retry::Transient, "{error}");
        store.save(&offset(200)).await.unwrap();
    }
    assert_eq!(store.load().await.unwrap(), Some(offset(200)));
}

#[tokio::test]
async fn an_offset_outlives_the_server_whatever_the_role_sets() {
    let source = Source::start().await;
    source.run("ALTER ROLE postgres SET synchronous_commit = off").await;
    let mut store = postgres_store(&source, &config(100, Duration::ZERO));
    store.save(&offset(100)).await.unwrap();
    source.pg.kill().await.unwrap();
    assert!(store.save(&offset(200)).await.is_err());
    source.pg.start_again().await.unwrap();
    let mut store = postgres_store(&source, &config(100, Duration::ZERO));
    assert_eq!(store.load().await.unwrap(), Some(offset(100)));
}
