//! Out of a refusal with `outflow offsets reset`, on real servers and with the program itself.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what helps a test may fail it")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outflow_sandbox::{Postgres, Redis};
use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::Client;

const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    _postgres: Postgres,
    redis: Redis,
    folder: TempDir,
    sql: Client,
}

/// A relay that ends with the test.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Exit code, standard output, standard error.
fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outflow"));
    let output = command.current_dir(folder).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

impl World {
    /// A connector that has published `a` and stopped.
    async fn stopped(store: &str) -> Self {
        let (postgres, redis) =
            tokio::try_join!(Postgres::builder().start(), Redis::builder().start()).unwrap();
        let source = postgres.create_database("shop").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[source]\nurl = \"{source}\"\nrewind_interval = \"0s\"\n[sink]\nurl = \"{}\"\n[offset]\nstore = \"{store}\"\n",
            redis.url()
        );
        std::fs::write(folder.path().join("outflow.toml"), text).unwrap();
        let sql = postgres.connect_to("shop").await.unwrap();
        let world = Self { _postgres: postgres, redis, folder, sql };
        world.ok(&["init"]);
        let relay = world.relay();
        world.emit("a").await;
        world.expect(&["a"]).await;
        world.stop(relay).await;
        world
    }

    fn ok(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = run(self.folder.path(), args);
        assert_eq!(code, Some(0), "{args:?}: {stdout}{stderr}");
        stdout
    }

    /// What a refused command says.
    fn refused(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = run(self.folder.path(), args);
        assert_eq!(code, Some(3), "{args:?}: {stdout}{stderr}");
        format!("{stdout}{stderr}")
    }

    fn relay(&self) -> Relay {
        let log = std::fs::File::create(self.folder.path().join("relay.log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_outflow"));
        let command = command.current_dir(self.folder.path()).arg("relay");
        Relay(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    async fn stop(&self, mut relay: Relay) {
        let pid = relay.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let since = Instant::now();
        while relay.0.try_wait().unwrap().is_none() {
            assert!(since.elapsed() < PATIENCE, "it does not end: {}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("relay.log")).unwrap()
    }

    async fn emit(&self, event_id: &str) {
        let sql = "SELECT outflow.emit('order', '1', 'T', '{}', $1)";
        self.sql.execute(sql, &[&event_id]).await.unwrap();
    }

    async fn run_sql(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap();
    }

    /// Waits until the stream holds exactly these events.
    async fn expect(&self, expected: &[&str]) {
        let since = Instant::now();
        let mut redis = self.redis.connect().await.unwrap();
        loop {
            let mut range = redis::cmd("XRANGE");
            range.arg("outflow:order").arg("-").arg("+");
            let entries: Vec<(String, Vec<(String, String)>)> =
                range.query_async(&mut redis).await.unwrap();
            let ids: Vec<String> = entries
                .into_iter()
                .filter_map(|(_, fields)| fields.into_iter().find(|(name, _)| name == "event_id"))
                .map(|(_, value)| value)
                .collect();
            if ids == expected {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{ids:?}, not {expected:?}: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn offsets(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[&["offsets", "--json"], args].concat())).unwrap()
    }
}

async fn a_gap_is_filled_from_rows(store: &str) {
    let world = World::stopped(store).await;
    let before = world.offsets(&[]);
    assert_eq!(before["stored"]["log"], "streams", "{before}");
    assert_eq!(before["stored"]["published_count"], 1, "{before}");

    world.run_sql("SELECT pg_drop_replication_slot('outflow')").await;
    world.emit("gap").await;
    let refusal = world.refused(&["relay"]);
    assert!(refusal.contains("outflow offsets reset --from-rows"), "{refusal}");
    let none = world.refused(&["offsets", "reset", "--from-slot", "--yes"]);
    assert!(none.contains("does not exist"), "{none}");

    // the plan changes nothing
    let plan = world.refused(&["offsets", "reset", "--from-rows"]);
    assert!(plan.contains("(2 now)") && plan.contains("--yes"), "{plan}");
    assert_eq!(world.offsets(&[])["stored"], {
        let mut stored = before["stored"].clone();
        stored["log"] = "unknown".into();
        stored
    });

    let done = world.ok(&["offsets", "reset", "--from-rows", "--yes"]);
    assert!(done.contains("stay in epoch 0"), "{done}");
    let after = world.offsets(&[]);
    assert_eq!(after["stored"]["snapshot"], true, "{after}");
    assert!(after["ledger"].as_array().unwrap().len() >= 2, "{after}");
    let relay = world.relay();
    world.expect(&["a", "a", "gap"]).await;
    world.emit("b").await;
    world.expect(&["a", "a", "gap", "b"]).await;
    let busy = world.refused(&["offsets", "reset", "--from-rows", "--yes"]);
    assert!(busy.contains("stop"), "{busy}");
    world.stop(relay).await;
}

#[tokio::test]
async fn c39_a_gap_is_filled_from_rows_offset_in_redis() {
    a_gap_is_filled_from_rows("redis").await;
}

#[tokio::test]
async fn c39_a_gap_is_filled_from_rows_offset_in_postgres() {
    a_gap_is_filled_from_rows("postgres").await;
}

async fn a_gap_is_given_up(store: &str) {
    let world = World::stopped(store).await;
    let nothing = world.refused(&["offsets", "reset", "--from-slot", "--yes"]);
    assert!(nothing.contains("nothing to reset"), "{nothing}");
    world.run_sql("SELECT pg_drop_replication_slot('outflow')").await;
    world.emit("gap").await;
    world.run_sql("SELECT pg_create_logical_replication_slot('outflow', 'pgoutput')").await;
    world.emit("b").await;
    let refusal = world.refused(&["relay"]);
    assert!(refusal.contains("outflow offsets reset --from-slot"), "{refusal}");
    let plan = world.refused(&["offsets", "reset", "--from-slot"]);
    assert!(plan.contains("NOT DELIVERED") && plan.contains("of log"), "{plan}");
    let done = world.ok(&["offsets", "reset", "--from-slot", "--yes", "--json"]);
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!(done["done"], true, "{done}");
    assert!(done["gap"]["bytes"].as_u64().unwrap() > 0, "{done}");
    assert_eq!(world.offsets(&[])["stored"]["log"], "streams");
    let relay = world.relay();
    world.expect(&["a", "b"]).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn c39_a_gap_is_given_up_offset_in_redis() {
    a_gap_is_given_up("redis").await;
}

#[tokio::test]
async fn c39_a_gap_is_given_up_offset_in_postgres() {
    a_gap_is_given_up("postgres").await;
}

#[tokio::test]
async fn a_lost_record_is_written_anew_and_times_map_to_lines() {
    let world = World::stopped("redis").await;
    let line = world.offsets(&["--limit", "1"])["ledger"][0].clone();
    let at = line["at"].as_str().unwrap().to_owned();
    assert_eq!(world.offsets(&["--at", &at])["ledger"][0], line);
    let early = world.offsets(&["--at", "2000-01-01T00:00:00Z"]);
    assert_eq!(early["ledger"], serde_json::json!([]));
    let table = world.ok(&["offsets", "list"]);
    assert!(table.contains("stored") && table.contains("go forward"), "{table}");

    let mut redis = world.redis.connect().await.unwrap();
    let mut trim = redis::cmd("XTRIM");
    trim.arg("outflow:offset:{outflow}").arg("MAXLEN").arg(0);
    trim.exec_async(&mut redis).await.unwrap();
    assert!(world.ok(&["offsets"]).contains("problem: "));
    world.ok(&["offsets", "reset", "--from-rows", "--yes"]);
    world.emit("b").await;
    let relay = world.relay();
    world.expect(&["a", "a", "b"]).await;
    world.stop(relay).await;
}
