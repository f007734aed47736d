//! Bad input at the start and while running: found, named, and given a remedy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test"
)]

mod source;

use std::time::Duration;

use outflow_event::StreamNaming;
use outflow_relay::config::{Column, Durability, EntryIdMode, SinkConfig, SnapshotMode, TableName};
use outflow_relay::preflight::{
    Due, Finding, Report, Severity, check_broker, check_source, explain,
    explain_missing_publication,
};
use outflow_relay::sink::connection::RedisLink;
use outflow_relay::status::Reporter;
use outflow_relay::watch::{self, WatchReport};
use outflow_relay::{Error, Retry};
use outflow_sandbox::{Fsync, Postgres, Redis, Shutdown};
use source::{MemoryStore, PATIENCE, Source};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const FIRST_START: Due = Due { slot: true, snapshot: true };

async fn check(source: &Source, due: Due) -> Report {
    check_source(&source.config, &source.sql, due).await.unwrap()
}

/// The finding of this kind, which must be there, with all that its text must name.
async fn finds(source: &Source, due: Due, severity: Severity, code: &str, names: &[&str]) {
    let report = check(source, due).await;
    assert_finding(&report.findings, severity, code, names);
    if severity == Severity::Refuse {
        let error = report.obstacle().unwrap();
        assert_eq!(error.retry(), Retry::Fatal);
        assert!(error.to_string().contains(names[0]), "{error}");
    }
}

fn assert_finding(findings: &[Finding], severity: Severity, code: &str, names: &[&str]) {
    let found = findings.iter().find(|f| f.code == code && f.severity == severity);
    let found = found.unwrap_or_else(|| panic!("no {severity:?} {code} in {findings:?}"));
    let text = found.to_string();
    for name in names {
        assert!(text.contains(name), "`{name}` is not in: {text}");
    }
}

async fn finds_nothing(source: &Source, due: Due) {
    assert_eq!(check(source, due).await, Report::default());
}

#[tokio::test]
async fn a_source_as_init_makes_it_has_no_finding() {
    let source = Source::start().await;
    finds_nothing(&source, FIRST_START).await;
    source.begin(&mut MemoryStore::default()).await.unwrap();
    finds_nothing(&source, Due::default()).await;
}

#[tokio::test]
async fn settings_of_the_server_are_named() {
    let builder = Postgres::builder().setting("max_replication_slots", 1);
    let source = Source::with(builder).await;
    source.run("SELECT pg_create_physical_replication_slot('forgotten')").await;
    let slots = ["max_replication_slots", "`outflow`", "inactive now: forgotten", "ALTER SYSTEM"];
    finds(&source, FIRST_START, Severity::Refuse, "max_replication_slots", &slots).await;
    finds_nothing(&source, Due::default()).await;
    source.run("SELECT pg_drop_replication_slot('forgotten')").await;

    source.pg.alter_system("wal_level", "replica").await.unwrap();
    source.pg.stop(Shutdown::Fast, PATIENCE).await.unwrap();
    source.pg.start_again().await.unwrap();
    let source = Source { sql: source.session().await, ..source };
    let level = ["wal_level", "replica", "ALTER SYSTEM SET wal_level = 'logical'", "restart"];
    finds(&source, FIRST_START, Severity::Refuse, "wal_level", &level).await;
}

#[tokio::test]
async fn walsenders_that_run_out_are_named() {
    let source = Source::with(Postgres::builder().setting("max_wal_senders", 1)).await;
    finds_nothing(&source, Due::default()).await;
    let _link = source.link().await;
    source::until("the link counts", || async {
        check(&source, Due::default()).await.has("max_wal_senders")
    })
    .await;
    finds(&source, Due::default(), Severity::Warn, "max_wal_senders", &["all 1 of"]).await;
}

#[tokio::test]
async fn a_role_needs_replication_and_for_a_snapshot_select() {
    let mut source = Source::start().await;
    source.run("CREATE ROLE app LOGIN").await;
    let stranger = source.session().await;
    stranger.batch_execute("SET ROLE app").await.unwrap();
    source.sql = stranger;
    finds(
        &source,
        FIRST_START,
        Severity::Refuse,
        "role_replication",
        &["ALTER ROLE \"app\" REPLICATION"],
    )
    .await;
    let grant = ["outflow.outbox", "GRANT SELECT ON \"outflow\".\"outbox\"", "\"never\""];
    finds(&source, FIRST_START, Severity::Refuse, "table_select", &grant).await;
    assert!(!check(&source, Due { slot: true, snapshot: false }).await.has("table_select"));

    source
        .run("RESET ROLE; ALTER ROLE app REPLICATION; GRANT outflow_connector TO app; SET ROLE app")
        .await;
    finds_nothing(&source, FIRST_START).await;
}

#[tokio::test]
async fn the_table_and_its_columns_are_checked() {
    let mut source = Source::start().await;
    let due = Due::default();
    source.config.table.name = "outbux".into();
    finds(&source, due, Severity::Refuse, "table_missing", &["outflow.outbux", "source.table"])
        .await;
    source.config.table.name = "outbox".into();

    source.config.columns.payload = "body".into();
    finds(
        &source,
        due,
        Severity::Refuse,
        "column_missing",
        &["body", "payload", "[source.columns]"],
    )
    .await;
    source.config.columns.payload = "payload".into();
    source.config.columns.seq = Column::Required("number".into());
    finds(&source, due, Severity::Refuse, "column_missing", &["number"]).await;
    source.config.columns.seq = Column::IfPresent("number".into());
    finds_nothing(&source, due).await;

    source.run("ALTER TABLE outflow.outbox ALTER aggregate_id DROP NOT NULL").await;
    let null = ["`aggregate_id`", "dead letters", "SET NOT NULL"];
    finds(&source, due, Severity::Warn, "column_nullable", &null).await;
    assert!(check(&source, due).await.obstacle().is_none());
    source.run("ALTER TABLE outflow.outbox ALTER aggregate_id SET NOT NULL").await;

    source.run("ALTER PUBLICATION outflow DROP TABLE outflow.outbox").await;
    source.run("ALTER TABLE outflow.outbox SET UNLOGGED").await;
    finds(&source, due, Severity::Refuse, "table_unlogged", &["SET LOGGED"]).await;
    source.run("CREATE VIEW outflow.seen AS SELECT * FROM outflow.outbox").await;
    source.config.table.name = "seen".into();
    finds(&source, due, Severity::Refuse, "table_kind", &["outflow.seen is not a table"]).await;
}

#[tokio::test]
async fn c16_a_generated_column_is_refused() {
    let mut source = Source::start().await;
    source
        .run(
            "ALTER TABLE outflow.outbox ADD event_type2 text \
              GENERATED ALWAYS AS (payload ->> 'type') STORED",
        )
        .await;
    finds_nothing(&source, Due::default()).await;
    source.config.columns.event_type = "event_type2".into();
    let version = format!("PostgreSQL {}", source.pg.version());
    let names = ["`event_type2`", "generated", version.as_str()];
    finds(&source, Due::default(), Severity::Refuse, "column_generated", &names).await;
}

#[tokio::test]
async fn c17_a_publication_that_hides_something_is_refused() {
    let source = Source::start().await;
    let due = Due::default();
    source.run("ALTER PUBLICATION outflow SET TABLE outflow.outbox (event_id, aggregate_id)").await;
    let columns = ["leaves out aggregate_type, event_type, payload", "SET TABLE"];
    finds(&source, due, Severity::Refuse, "publication_columns", &columns).await;
    let required = "event_id, aggregate_type, aggregate_id, event_type, payload";
    source
        .run(&format!("ALTER PUBLICATION outflow SET TABLE outflow.outbox ({required}, headers)"))
        .await;
    let optional = ["leaves out seq, created_at"];
    finds(&source, due, Severity::Warn, "publication_columns", &optional).await;
    assert!(check(&source, due).await.obstacle().is_none());

    source
        .run("ALTER PUBLICATION outflow SET TABLE outflow.outbox WHERE (aggregate_id <> '1')")
        .await;
    let filter = ["filters the rows", "ALTER PUBLICATION \"outflow\" SET TABLE"];
    finds(&source, due, Severity::Refuse, "publication_row_filter", &filter).await;
    source.run("ALTER PUBLICATION outflow SET TABLE outflow.outbox").await;

    source.run("ALTER PUBLICATION outflow SET (publish = 'truncate')").await;
    let insert = ["does not carry inserts", "publish = 'insert'"];
    finds(&source, due, Severity::Refuse, "publication_insert", &insert).await;
    source.run("ALTER PUBLICATION outflow SET (publish = 'insert')").await;
    finds_nothing(&source, due).await;
}

#[tokio::test]
async fn c92_a_publication_of_more_than_inserts_is_warned_of() {
    let mut source = Source::start().await;
    source.run("CREATE PUBLICATION foreign_all FOR ALL TABLES").await;
    source.config.publication = "foreign_all".into();
    let all = ["FOR ALL TABLES", "primary key"];
    finds(&source, FIRST_START, Severity::Warn, "publication_all_tables", &all).await;

    source.run("CREATE PUBLICATION foreign_one FOR TABLE outflow.outbox").await;
    source.config.publication = "foreign_one".into();
    let one = ["more than inserts: they are ignored", "publish = 'insert'"];
    finds(&source, FIRST_START, Severity::Warn, "publication_operations", &one).await;
    source.run("ALTER TABLE outflow.outbox DROP CONSTRAINT outbox_pkey").await;
    let harm = ["the application's own UPDATE and DELETE fail"];
    finds(&source, FIRST_START, Severity::Warn, "publication_operations", &harm).await;
}

#[tokio::test]
async fn a_publication_that_is_missing_or_has_not_the_table_is_refused() {
    let mut source = Source::start().await;
    source.config.publication = "nothing".into();
    let create = ["nothing", "CREATE PUBLICATION \"nothing\" FOR TABLE \"outflow\".\"outbox\""];
    finds(&source, FIRST_START, Severity::Refuse, "publication_missing", &create).await;
    finds(&source, Due::default(), Severity::Refuse, "publication_missing", &["The slot is older"])
        .await;
    source.config.publication = "outflow".into();
    source.run("ALTER PUBLICATION outflow DROP TABLE outflow.outbox").await;
    let add = ["does not carry outflow.outbox", "ADD TABLE \"outflow\".\"outbox\"", "`outflow"];
    finds(&source, FIRST_START, Severity::Refuse, "publication_table", &add).await;
    if source.pg.version() >= 15 {
        source.run("ALTER PUBLICATION outflow ADD TABLES IN SCHEMA outflow").await;
        finds_nothing(&source, FIRST_START).await;
    }
}

/// The error that streaming from the slot ends with.
async fn streaming_error(source: &Source) -> Error {
    let options =
        outflow_pgoutput::StartOptions::new(&source.config.slot, &source.config.publication);
    let mut stream = match source.link().await.start_replication(options, Default::default()).await
    {
        Ok(stream) => stream,
        Err(error) => return error.into(),
    };
    loop {
        if let Err(error) = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap() {
            return error.into();
        }
    }
}

#[tokio::test]
async fn c18_c19_a_publication_younger_than_the_log_is_explained() {
    let mut source = Source::start().await;
    source.run("SELECT pg_create_logical_replication_slot('outflow', 'pgoutput')").await;
    source.run("DROP PUBLICATION outflow").await;
    source.emit("gap").await;
    source.run("CREATE PUBLICATION outflow FOR TABLE outflow.outbox").await;
    let error = streaming_error(&source).await;
    let text = explain(&error, &source.config).unwrap();
    assert_eq!(text, explain_missing_publication("outflow", "outflow"));
    for name in ["outflow", "created after the slot", "pg_replication_slot_advance"] {
        assert!(text.contains(name), "{text}");
    }
    // what it says to run gets past the gap, once the session that failed has let go of the slot
    source
        .run(
            "DO $$ BEGIN
                 WHILE EXISTS (SELECT FROM pg_replication_slots WHERE active) LOOP
                     PERFORM pg_sleep(0.01);
                 END LOOP;
             END $$",
        )
        .await;
    source.run("SELECT pg_replication_slot_advance('outflow', pg_current_wal_lsn())").await;
    source.emit("b").await;
    let streamed = source.streamed_ids(0.into()).await;
    assert_eq!(streamed.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["b"]);

    source.config.slot = "missing".into();
    let error = streaming_error(&source).await;
    assert_eq!(explain(&error, &source.config), None, "{error}");
}

#[tokio::test]
async fn c15_partitions_must_be_announced_under_their_root() {
    let mut source = Source::start().await;
    source
        .run(
            "CREATE TABLE parted (LIKE outflow.outbox) PARTITION BY RANGE (id); \
              CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10); \
              CREATE PUBLICATION parts FOR TABLE parted WITH (publish = 'insert')",
        )
        .await;
    source.config.publication = "parts".into();
    source.config.table = TableName { schema: "public".into(), name: "parted".into() };
    let root = ["partitioned", "publish_via_partition_root = true"];
    finds(&source, Due::default(), Severity::Refuse, "publication_root", &root).await;
    source.config.table.name = "low".into();
    finds_nothing(&source, Due::default()).await;

    source.run("ALTER PUBLICATION parts SET (publish_via_partition_root = true)").await;
    let leaf = ["is a partition", "source.table = \"public.parted\""];
    finds(&source, Due::default(), Severity::Refuse, "publication_root", &leaf).await;
    source.config.table.name = "parted".into();
    finds_nothing(&source, Due::default()).await;
}

#[tokio::test]
async fn a_snapshot_without_a_telling_order_is_warned_of_and_one_without_any_refused() {
    let mut source = Source::start().await;
    source
        .run("ALTER TABLE outflow.outbox DROP CONSTRAINT outbox_pkey, ALTER created_at DROP NOT NULL")
        .await;
    let arbitrary = ["ordered by event_id", "source.order_by"];
    finds(&source, FIRST_START, Severity::Warn, "snapshot_order", &arbitrary).await;
    assert!(!check(&source, Due::default()).await.has("snapshot_order"));
    source.config.order_by = vec!["nothing".into()];
    finds(&source, FIRST_START, Severity::Refuse, "snapshot_order", &["`nothing`"]).await;
}

fn sink(redis: &Redis, durability: Durability) -> SinkConfig {
    SinkConfig {
        redis: redis.url().parse().unwrap(),
        naming: StreamNaming::new("outflow:", 1),
        entry_id: EntryIdMode::Lsn,
        durability,
        batch_entries: 100,
        batch_bytes: 1 << 20,
        timeout: Duration::from_secs(5),
    }
}

async fn broker(redis: &Redis, durability: Durability) -> Report {
    let sink = sink(redis, durability);
    let mut link = RedisLink::new(sink.redis.clone(), sink.timeout);
    check_broker(&sink, &mut link).await.unwrap()
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn a_durable_broker_has_no_finding_and_a_forgetful_one_is_named() {
    let redis = Redis::builder().appendonly(Fsync::Always).start().await.unwrap();
    for durability in [Durability::Memory, Durability::Fsync] {
        assert_eq!(broker(&redis, durability).await, Report::default());
    }
    // before 7.2 Redis cannot tell when it has written, unless it always does
    redis.config_set("appendfsync", "everysec").await.unwrap();
    let tells = !redis.version().starts_with("7.0");
    assert_eq!(broker(&redis, Durability::Fsync).await.has("redis_fsync"), !tells);

    redis.config_set("appendonly", "no").await.unwrap();
    redis.config_set("save", "").await.unwrap();
    let report = broker(&redis, Durability::Fsync).await;
    let memory = ["nothing to disk", "appendonly yes"];
    assert_finding(&report.findings, Severity::Warn, "redis_persistence", &memory);
    let fsync = ["no append-only file", "appendonly yes"];
    assert_finding(&report.findings, Severity::Refuse, "redis_fsync", &fsync);
    redis.config_set("save", "3600 1").await.unwrap();
    let report = broker(&redis, Durability::Memory).await;
    assert_finding(&report.findings, Severity::Warn, "redis_persistence", &["only snapshots"]);
}

#[tokio::test]
async fn c62_a_policy_that_evicts_streams_is_warned_of() {
    let redis = Redis::builder().appendonly(Fsync::Always).start().await.unwrap();
    redis.config_set("maxmemory-policy", "allkeys-lru").await.unwrap();
    let report = broker(&redis, Durability::Memory).await;
    let policy = ["allkeys-lru", "maxmemory-policy noeviction"];
    assert_finding(&report.findings, Severity::Warn, "redis_eviction", &policy);
    redis.config_set("maxmemory-policy", "volatile-ttl").await.unwrap();
    assert_eq!(broker(&redis, Durability::Memory).await, Report::default());
    redis.config_set("maxmemory", "500kb").await.unwrap();
    assert_eq!(codes(&broker(&redis, Durability::Memory).await), ["redis_memory"]);
}

#[tokio::test]
async fn replicas_must_be_there_and_a_replica_must_not_be_the_target() {
    let primary = Redis::builder().appendonly(Fsync::Always).start().await.unwrap();
    let report = broker(&primary, Durability::Replicas(1)).await;
    let replicas = ["asks for 1", "0 are connected"];
    assert_finding(&report.findings, Severity::Wait, "redis_replicas", &replicas);
    let error = report.obstacle().unwrap();
    assert_eq!(error.retry(), Retry::Transient);
    assert!(matches!(error, Error::SinkUnavailable(_)));

    let replica = Redis::builder().appendonly(Fsync::Always).start().await.unwrap();
    replica.replica_of(&primary).await.unwrap();
    source::until("the replica is online", || async {
        broker(&primary, Durability::Replicas(1)).await.findings.is_empty()
    })
    .await;
    let report = broker(&replica, Durability::Memory).await;
    assert_finding(&report.findings, Severity::Wait, "redis_role", &["replica", "sink.url"]);
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_as_a_single_server() {
    let redis = Redis::builder()
        .appendonly(Fsync::Always)
        .setting("cluster-enabled", "yes")
        .start()
        .await
        .unwrap();
    let report = broker(&redis, Durability::Memory).await;
    let cluster = ["node of a cluster", "redis+cluster://"];
    assert_finding(&report.findings, Severity::Refuse, "redis_cluster", &cluster);
}

#[tokio::test]
async fn a_managed_redis_that_hides_its_configuration_is_not_suspected() {
    let redis = Redis::builder().start().await.unwrap();
    let mut connection = redis.connect().await.unwrap();
    let _: redis::Value = redis::cmd("ACL")
        .arg(&["SETUSER", "app", "on", ">secret", "~*", "+@all", "-config", "-info"])
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut sink = sink(&redis, Durability::Memory);
    sink.redis = redis.url().replace("redis://", "redis://app:secret@").parse().unwrap();
    let mut link = RedisLink::new(sink.redis.clone(), sink.timeout);
    assert_eq!(check_broker(&sink, &mut link).await.unwrap(), Report::default());
}

#[tokio::test]
async fn a_broker_that_cannot_be_asked_is_tried_again() {
    let redis = Redis::builder().start().await.unwrap();
    let sink = sink(&redis, Durability::Memory);
    redis.kill().await.unwrap();
    let mut link = RedisLink::new(sink.redis.clone(), sink.timeout);
    let error = check_broker(&sink, &mut link).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Transient, "{error}");
}

/// A watch over a source that has a slot.
struct Watched {
    source: Source,
    reports: mpsc::UnboundedReceiver<WatchReport>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Watched {
    async fn start(source: Source) -> Self {
        let mut config = source.config.clone();
        config.snapshot = SnapshotMode::Never;
        let source = Source { config, ..source };
        source.begin(&mut MemoryStore::default()).await.unwrap();
        let (send, reports) = mpsc::unbounded_channel();
        let shutdown = CancellationToken::new();
        let (config, stop) = (source.config.clone(), shutdown.clone());
        let task = tokio::spawn(async move {
            let reporter = Reporter::new();
            watch::run(&config, 1, &stop, &reporter, |report| drop(send.send(report))).await;
        });
        let mut watched = Self { source, reports, shutdown, task };
        let first = watched.until(|_| true).await;
        assert_eq!((first.fault(), first.findings), (None, Vec::new()));
        watched
    }

    async fn until(&mut self, holds: impl Fn(&WatchReport) -> bool) -> WatchReport {
        let wait = async {
            loop {
                let report = self.reports.recv().await.expect("the watch goes on");
                if holds(&report) {
                    return report;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("a report in time")
    }

    /// The next fault, which must name all of these.
    async fn fault(&mut self, code: &str, names: &[&str]) {
        let report = self.until(|report| report.fault().is_some()).await;
        assert_finding(&report.findings, Severity::Refuse, code, names);
    }

    async fn healed(&mut self) -> WatchReport {
        self.until(|report| report.fault().is_none()).await
    }
}

#[tokio::test]
async fn c14_a_table_that_is_swapped_is_noticed_and_so_is_its_return() {
    let mut watched = Watched::start(Source::start().await).await;
    let before = watched.healed().await.table;
    watched
        .source
        .run(
            "ALTER TABLE outflow.outbox RENAME TO outbox_old; \
              CREATE TABLE outflow.outbox (LIKE outflow.outbox_old INCLUDING ALL)",
        )
        .await;
    watched.fault("publication_table", &["renamed or replaced", "ADD TABLE", "`outflow"]).await;
    watched.source.run("ALTER PUBLICATION outflow ADD TABLE outflow.outbox").await;
    let healed = watched.healed().await;
    assert_ne!(healed.table, before);
    assert_finding(&healed.findings, Severity::Warn, "table_replaced", &["another table"]);

    watched.source.run("DROP TABLE outflow.outbox").await;
    watched.fault("table_missing", &["outflow.outbox was dropped or renamed"]).await;
    watched.shutdown.cancel();
    tokio::time::timeout(PATIENCE, watched.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn c17_c18_a_publication_that_is_narrowed_or_dropped_is_noticed() {
    let mut watched = Watched::start(Source::start().await).await;
    watched
        .source
        .run("ALTER PUBLICATION outflow SET TABLE outflow.outbox WHERE (aggregate_id <> '1')")
        .await;
    watched.fault("publication_row_filter", &["filters"]).await;
    watched.source.run("ALTER PUBLICATION outflow SET TABLE outflow.outbox").await;
    watched.healed().await;
    watched.source.run("ALTER PUBLICATION outflow SET (publish = 'update')").await;
    watched.fault("publication_insert", &["inserts"]).await;
    watched.source.run("DROP PUBLICATION outflow").await;
    let dropped = |report: &WatchReport| report.fault().is_some_and(|f| f.contains("dropped"));
    let report = watched.until(dropped).await;
    assert_finding(&report.findings, Severity::Refuse, "publication_missing", &["outflow init"]);
}

#[tokio::test]
async fn the_slot_is_looked_after() {
    let mut watched = Watched::start(Source::start().await).await;
    let slot = watched.healed().await.slot.unwrap();
    assert_eq!((slot.active_pid, slot.wal_status.as_deref()), (None, Some("reserved")));
    assert!(slot.retained_bytes.is_some() && slot.confirmed_flush_lsn.is_some());

    // the watch takes process 1 for its own
    let options = outflow_pgoutput::StartOptions::new("outflow", "outflow");
    let link = watched.source.link().await;
    let pid = link.process_id();
    let stream = link.start_replication(options, Default::default()).await.unwrap();
    watched.fault("slot_taken", &[&pid.to_string()]).await;
    stream.stop(PATIENCE).await.unwrap();
    watched.healed().await;
    watched.source.run("SELECT pg_drop_replication_slot('outflow')").await;
    watched.fault("slot_missing", &["was dropped"]).await;
}

#[tokio::test]
async fn c38_a_slot_is_warned_of_before_it_is_lost() {
    let builder = Postgres::builder().setting("max_slot_wal_keep_size", "48MB");
    let mut watched = Watched::start(Source::with(builder).await).await;
    let mut after = async |sql: &str| {
        watched.source.run(sql).await;
        let at = jiff::Timestamp::now();
        watched.until(|report| report.at > at).await
    };
    let mut report = after("SELECT 1").await;
    // without a checkpoint the slot keeps its log beyond the limit
    while !report.findings.iter().any(|finding| finding.code == "slot_unreserved") {
        assert_eq!(report.fault(), None);
        let fill = "SELECT pg_logical_emit_message(false, 'fill', 'x'); SELECT pg_switch_wal()";
        report = after(fill).await;
    }
    let raise = ["more than max_slot_wal_keep_size", "MiB", "raise max_slot_wal_keep_size"];
    assert_finding(&report.findings, Severity::Warn, "slot_unreserved", &raise);
    report = after("CHECKPOINT").await;
    assert_finding(&report.findings, Severity::Refuse, "slot_lost", &["invalidated"]);
}

#[tokio::test]
async fn the_watch_comes_back_after_the_server_was_away() {
    let mut watched = Watched::start(Source::start().await).await;
    watched.source.pg.kill().await.unwrap();
    watched.source.pg.start_again().await.unwrap();
    let at = jiff::Timestamp::now();
    let report = watched.until(|report| report.at > at).await;
    assert_eq!(report.fault(), None);
}
