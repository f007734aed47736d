//! Drills on servers that were given: real ones, which have to be as they were afterwards.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outflow_sandbox::{Postgres, Redis};
use redis::aio::MultiplexedConnection;
use serde_json::Value;
use tokio_postgres::Client;

use crate::drill;

/// Servers that are somebody else's.
struct Servers {
    postgres: Postgres,
    redis: Redis,
    sql: Client,
    keys: MultiplexedConnection,
}

impl Servers {
    async fn start() -> Self {
        let (postgres, redis) = tokio::join!(Postgres::builder().start(), Redis::builder().start());
        let (postgres, redis) = (postgres.unwrap(), redis.unwrap());
        let (sql, keys) = tokio::join!(postgres.connect(), redis.connect());
        Self { sql: sql.unwrap(), keys: keys.unwrap(), postgres, redis }
    }

    fn flags(&self) -> [String; 4] {
        ["--postgres".into(), self.postgres.url(), "--redis".into(), self.redis.url()]
    }

    /// `outflow drill` on them: its exit code, objects and standard error.
    fn drill(&self, args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
        let flags = self.flags();
        let flags = flags.iter().map(String::as_str);
        let args: Vec<_> = args.iter().copied().chain(flags).chain(["--json"]).collect();
        let output = drill(&args);
        let said = String::from_utf8(output.stdout).unwrap();
        let objects = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code(), objects, String::from_utf8(output.stderr).unwrap())
    }

    /// Starts drills that take long, and waits until they are at work on these servers.
    async fn begin(&self) -> Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outflow"))
            .args(["drill", "kill-random", "--times", "100000"])
            .args(self.flags())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let since = Instant::now();
        let at_work = "SELECT FROM pg_replication_slots WHERE active";
        while self.sql.query(at_work, &[]).await.unwrap().is_empty() {
            assert_eq!(child.try_wait().unwrap(), None, "the drill has ended");
            assert!(since.elapsed() < Duration::from_secs(60), "the drill does not begin");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        child
    }

    /// Everything on them that a stranger would notice.
    async fn contents(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for sql in [
            "SELECT datname::text FROM pg_database WHERE NOT datistemplate ORDER BY 1",
            "SELECT slot_name::text FROM pg_replication_slots ORDER BY 1",
            "SELECT rolname::text FROM pg_roles WHERE rolname !~ '^pg_' ORDER BY 1",
        ] {
            let rows = self.sql.query(sql, &[]).await.unwrap();
            all.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        }
        let mut keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut self.keys).await.unwrap();
        keys.sort_unstable();
        all.extend(keys);
        all
    }

    async fn set(&mut self, key: &str) {
        redis::cmd("SET").arg(key).arg(1).exec_async(&mut self.keys).await.unwrap();
    }
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn given_servers_are_left_as_they_were_and_not_broken_themselves() {
    let mut servers = Servers::start().await;
    let (code, objects, account) = servers.drill(&["commit-unacked", "pg-kill", "redis-oom"]);
    assert_eq!(code, Some(0), "{objects:?}\n{account}");
    assert_eq!(objects.len(), 3, "{account}");
    for (object, skipped) in objects.iter().zip([None, Some("PostgreSQL"), Some("Redis")]) {
        assert_eq!(object["passed"], true, "{object}");
        let why = object["skipped"].as_str().unwrap_or_default();
        assert!(why.contains(skipped.unwrap_or_default()), "{object}");
        assert_eq!(object["faults"].as_u64() > Some(0), skipped.is_none(), "{object}");
    }
    assert_eq!(servers.contents().await, ["postgres", "postgres"], "{account}");

    // by the hand of an operator: in the middle of it, and gone at once
    let mut interrupted = servers.begin().await;
    let (code, _, refused) = servers.drill(&["commit-unacked"]);
    assert_eq!(code, Some(3), "{refused}");
    assert!(refused.contains("another drill is at work"), "{refused}");
    signal(&interrupted, "-INT");
    assert_eq!(interrupted.wait().unwrap().code(), Some(130));
    assert_eq!(servers.contents().await, ["postgres", "postgres"]);

    let mut killed = servers.begin().await;
    signal(&killed, "-KILL");
    killed.wait().unwrap();
    assert!(servers.contents().await.len() > 2, "nothing was left to clean up");
    let (code, objects, account) = servers.drill(&["same-id-new-entry"]);
    assert_eq!(code, Some(0), "{objects:?}\n{account}");
    let left = servers.contents().await;
    assert!(!left.iter().any(|name| name.contains("outflow_drill")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_hold_anything_are_refused_and_untouched_unless_they_are_marked() {
    let mut servers = Servers::start().await;
    servers.sql.batch_execute("CREATE DATABASE invoices").await.unwrap();
    servers.set("session").await;
    let before = servers.contents().await;
    let (code, objects, refused) = servers.drill(&["commit-unacked"]);
    assert_eq!((code, objects.len()), (Some(3), 0), "{refused}");
    for expected in ["database invoices", "key session", "--disposable"] {
        assert!(refused.contains(expected), "{expected} in {refused}");
    }
    assert_eq!(servers.contents().await, before);

    // each of them is reason enough
    servers.sql.batch_execute("DROP DATABASE invoices").await.unwrap();
    let (code, _, refused) = servers.drill(&["commit-unacked"]);
    assert_eq!(code, Some(3), "{refused}");
    assert!(refused.contains("key session") && !refused.contains("invoices"), "{refused}");

    servers.sql.batch_execute("CREATE TABLE invoices (id int)").await.unwrap();
    let before = servers.contents().await;
    let (code, objects, account) = servers.drill(&["commit-unacked", "--disposable"]);
    assert_eq!(code, Some(0), "{objects:?}\n{account}");
    assert!(account.contains("DROP DATABASE outflow_disposable"), "{account}");
    assert!(account.contains("DEL outflow_disposable"), "{account}");
    let mut marked = servers.contents().await;
    marked.retain(|name| name != "outflow_disposable");
    assert_eq!(marked, before, "what is not a drill's is left alone");
    // the mark holds, also where a drill flushes everything
    let (code, objects, account) = servers.drill(&["redis-flushall"]);
    assert_eq!(code, Some(0), "{objects:?}\n{account}");
    let after = servers.contents().await;
    assert_eq!(after.iter().filter(|name| *name == "outflow_disposable").count(), 2, "{after:?}");
    assert!(!after.contains(&"session".to_owned()), "FLUSHALL is FLUSHALL: {after:?}");
}

#[test]
fn servers_that_no_proxy_can_stand_before_are_refused() {
    for (args, expected) in [
        (&["--redis", "rediss://cache"][..], "proxy"),
        (&["--postgres", "postgres://u@a,b/x"], "one host"),
    ] {
        let output = drill(&[&["commit-unacked"], args].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{error}");
    }
    let alone = drill(&["commit-unacked", "--disposable"]);
    assert_eq!(alone.status.code(), Some(2));
}
