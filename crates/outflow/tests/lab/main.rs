//! `outflow lab` as a learner uses it: the program, a folder, SQLite and a real Redis.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test; clippy.toml allows it in tests, not in their helpers"
)]

mod faults;
mod own_redis;
mod refusals;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use outflow_sandbox::Redis;
use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// How a run ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Standard output of a run that was fine and said nothing on standard error.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self.stdout
    }

    /// Standard error of a run that ended with `code`.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stderr
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// `outflow lab`, with none of this process's own settings.
fn outflow_lab(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outflow"));
    command.arg("lab").arg("--dir").arg(dir).env_remove("OUTFLOW_LAB_REDIS");
    command
}

/// A folder for a lab, and a Redis that the user names.
struct World {
    folder: TempDir,
    redis: Redis,
}

impl World {
    async fn new() -> Self {
        let redis = Redis::builder().start().await.unwrap();
        Self { folder: tempfile::tempdir().unwrap(), redis }
    }

    /// A lab in which every step has been run.
    async fn finished() -> Self {
        let world = Self::new().await;
        world.run(&["all"]).ok();
        world
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("lab")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = outflow_lab(&self.dir());
        command.args(["--redis", &self.redis.url()]).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    async fn connection(&self) -> MultiplexedConnection {
        self.redis.connect().await.unwrap()
    }

    /// The event ids in the list.
    async fn list(&self) -> Vec<String> {
        let entries = self.entries().await;
        entries.iter().map(|entry| entry["event_id"].as_str().unwrap().to_owned()).collect()
    }

    /// The list.
    async fn entries(&self) -> Vec<Value> {
        let mut connection = self.connection().await;
        let range = redis::cmd("LRANGE").arg("outbox.events").arg(&[0, -1]).to_owned();
        let entries: Vec<String> = range.query_async(&mut connection).await.unwrap();
        entries.iter().map(|entry| serde_json::from_str(entry).unwrap()).collect()
    }

    async fn redis<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = self.connection().await;
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await.unwrap()
    }

    fn sql(&self, sql: &str) {
        self.database().execute_batch(sql).unwrap();
    }

    fn database(&self) -> Connection {
        Connection::open(self.dir().join("app.db")).unwrap()
    }

    fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.database().query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    fn column(&self, sql: &str) -> Vec<String> {
        let database = self.database();
        let mut statement = database.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap()
    }

    fn first_line(&self, name: &str) -> String {
        self.file(name).lines().next().unwrap().to_owned()
    }

    /// The steps that `check` finds off.
    #[track_caller]
    fn off(&self) -> Vec<String> {
        let ran = self.run(&["check", "--json"]);
        let check = ran.json();
        let outcomes = check["outcomes"].as_array().unwrap();
        assert_eq!(outcomes.len(), 8, "{check}");
        let off = outcomes.iter().filter(|outcome| outcome["ok"] == false);
        let off: Vec<_> = off.map(|outcome| outcome["step"].as_str().unwrap().to_owned()).collect();
        assert_eq!(check["ok"], off.is_empty(), "{check}");
        assert_eq!(ran.code, Some(i32::from(!off.is_empty())), "{check}");
        off
    }
}
