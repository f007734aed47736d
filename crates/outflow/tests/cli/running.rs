use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use outflow_sandbox::{Postgres, Redis, shared_postgres, shared_redis};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{outflow, run};

const PATIENCE: Duration = Duration::from_secs(30);

/// Names and values.
pub(crate) type Variables = [(&'static str, String)];

/// A process that ends with the test.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(folder: &Path, args: &[&str]) -> Self {
        Self::start_as(folder, args, &[])
    }

    pub(crate) fn start_as(folder: &Path, args: &[&str], variables: &Variables) -> Self {
        let log = fs::File::create(folder.join(format!("{}.log", args[0]))).unwrap();
        let mut command = outflow(folder);
        command.args(args).envs(variables.iter().cloned());
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn ended(&mut self) -> Option<i32> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(since.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a configuration for databases of its own.
pub(crate) async fn folder(
    server: &Postgres,
    redis: &Redis,
    listen: &str,
) -> (TempDir, String, String) {
    let folder = tempdir().unwrap();
    let source = server.fresh_database().await.unwrap();
    let books = server.fresh_database().await.unwrap();
    let projection = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sql/demo/consumer/projection.sql");
    let name = &source.name;
    let text = format!(
        "connector = \"{name}\"\n[source]\nurl = \"{}\"\ncheck_interval = \"200ms\"\n\
         [sink]\nurl = \"{}\"\nstream_prefix = \"{name}:\"\n\
         [consumer]\nid = \"accounting\"\nurl = \"{}\"\nstreams = [\"journal\"]\n\
         projection = \"{projection}\"\nfrom = \"beginning\"\nblock = \"200ms\"\n[http]\nlisten = \"{listen}\"\n",
        source.url,
        redis.url(),
        books.url
    );
    fs::write(folder.path().join("outflow.toml"), text).unwrap();
    run(folder.path(), ["init", "--demo"]).ok();
    (folder, source.name, books.name)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn log(folder: &Path, command: &str) -> String {
    fs::read_to_string(folder.join(format!("{command}.log"))).unwrap_or_default()
}

/// `GET path`: status line and body.
fn get(port: u16, path: &str) -> Option<(String, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

pub(crate) fn until(what: &str, folder: &Path, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(
            since.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}\n{}\n{}",
            log(folder, "relay"),
            log(folder, "consume")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn status(folder: &Path) -> (Option<i32>, Value) {
    let ran = run(folder, ["status", "--json"]);
    (ran.code, ran.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_travel_and_status_follows_them() {
    let server = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    let port = free_port();
    let (folder, source, books) = folder(server, redis, &format!("127.0.0.1:{port}")).await;
    let path = folder.path();
    let client = server.connect_to(&source).await.unwrap();
    for number in 0..3 {
        let id = format!("j{number}");
        client
            .execute("SELECT ledger.post($1, 'cash', 'sales', 'c-17', 'EUR', 100)", &[&id])
            .await
            .unwrap();
    }

    let (code, report) = status(path);
    assert_eq!(code, Some(1), "nothing runs yet: {report}");
    assert_eq!(report["healthy"], false);
    assert!(report["problems"].to_string().contains("no process answers"), "{report}");

    let mut relay = Process::start(path, &["relay"]);
    let consumer_port = free_port();
    let listen = format!("127.0.0.1:{consumer_port}");
    let mut consume = Process::start(path, &["consume", "--listen", &listen]);
    let books = server.connect_to(&books).await.unwrap();
    let applied = || {
        let rows = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current()
                .block_on(books.query("SELECT amount::bigint FROM turnover", &[]))
        });
        rows.is_ok_and(|rows| rows.first().is_some_and(|row| row.get::<_, i64>(0) == 300))
    };
    until("the projection", path, applied);

    until("readiness", path, || {
        get(port, "/readyz").is_some_and(|(head, _)| head.contains(" 200 "))
    });
    assert_eq!(get(port, "/healthz").unwrap().1, "ok\n");
    let (_, metrics) = get(port, "/metrics").unwrap();
    assert!(metrics.contains("outflow_published_events_total 3"), "{metrics}");
    let (_, metrics) = get(consumer_port, "/metrics").unwrap();
    let applied =
        metrics.lines().find(|line| line.starts_with("outflow_events_applied_total")).unwrap();
    assert!(applied.ends_with(" 3"), "{applied}");
    let (_, own) = get(port, "/status").unwrap();
    let own: Value = serde_json::from_str(&own).unwrap();
    assert_eq!(
        (own["command"].as_str(), own["ready"].as_bool()),
        (Some("relay"), Some(true)),
        "{own}"
    );

    until("health", path, || status(path).0 == Some(0));
    let (_, report) = status(path);
    assert_eq!(report["problems"], serde_json::json!([]), "{report}");
    assert_eq!(report["offset"]["found"]["published_count"], 3, "{report}");
    assert_eq!(report["source"]["found"]["slot_active"], true, "{report}");
    let stream = &report["broker"]["found"]["streams"][0];
    assert_eq!(stream["entries"], 3, "{report}");
    assert_eq!(stream["groups"][0]["name"], "accounting", "{report}");
    assert_eq!(stream["groups"][0]["pending"], 0, "{report}");
    assert_eq!(report["consumer"]["found"]["applied"], 3, "{report}");
    let table = run(path, ["status"]).ok();
    assert!(table.contains("accounting") && table.ends_with("healthy\n"), "{table}");

    relay.signal("-TERM");
    consume.signal("-INT");
    assert_eq!(relay.ended(), Some(0), "{}", log(path, "relay"));
    assert_eq!(consume.ended(), Some(0), "{}", log(path, "consume"));
    // not a terminal: one JSON object a line
    for line in log(path, "relay").lines() {
        let line: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    let (code, report) = status(path);
    assert_eq!(code, Some(1));
    assert!(report["problems"].to_string().contains("no connector is connected"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_says_why_it_stands_still_and_a_second_signal_ends_at_once() {
    let server = shared_postgres().await.unwrap();
    let redis = Redis::builder().start().await.unwrap();
    let port = free_port();
    let (folder, source, _) = folder(server, &redis, &format!("127.0.0.1:{port}")).await;
    let path = folder.path();
    let mut relay = Process::start(path, &["relay", "--set", "sink.timeout=1s"]);
    let ready = |code: &'static str| {
        move || get(port, "/readyz").is_some_and(|(head, _)| head.contains(code))
    };
    until("readiness", path, ready(" 200 "));
    redis.sigstop().unwrap();
    let client = server.connect_to(&source).await.unwrap();
    client.execute("SELECT outflow.emit('order', '1', 'Placed', '{}')", &[]).await.unwrap();
    until("unreadiness", path, ready(" 503 "));
    let (_, body) = get(port, "/readyz").unwrap();
    assert!(body.contains("sink"), "{body}");
    assert_eq!(get(port, "/healthz").unwrap().1, "ok\n");

    relay.signal("-TERM");
    std::thread::sleep(Duration::from_millis(300));
    relay.signal("-TERM");
    assert_eq!(relay.ended(), Some(130), "{}", log(path, "relay"));
    redis.sigcont().unwrap();
}

#[tokio::test]
async fn a_refusal_ends_with_3_and_says_what_to_run() {
    let server = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    let database = server.fresh_database().await.unwrap();
    let folder = tempdir().unwrap();
    let (url, redis) = (database.url.clone(), redis.url());
    // nothing was initialised
    let ran = tokio::task::spawn_blocking(move || {
        run(folder.path(), ["relay", "--source", &url, "--sink", &redis, "--set=connector=refused"])
    });
    let error = ran.await.unwrap().failed(3);
    assert!(error.contains("outflow.outbox"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c75_a_new_consumer_on_old_streams_ends_with_3_and_the_choices() {
    let server = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    let (folder, source, _) = folder(server, redis, "").await;
    let path = folder.path();
    let stream = format!("{source}:journal");
    let fields =
        ["event_id", "e", "aggregate_type", "journal", "aggregate_id", "1", "event_type", "T"];
    let mut redis = redis.connect().await.unwrap();
    redis::cmd("XADD").arg(&stream).arg("*").arg(&fields).exec_async(&mut redis).await.unwrap();
    let error = run(path, ["consume", "--from="]).failed(3);
    assert!(error.contains(&format!("new to {stream} (1 entries)")), "{error}");
    assert!(error.contains("--from beginning") && error.contains("--from now"), "{error}");
    let error = run(path, ["consume", "--from", "yesterday"]).failed(2);
    assert!(error.contains("2026-01-31T12:00:00Z"), "{error}");
    // once it has begun, the flag has no effect
    for from in ["now", "beginning"] {
        let mut consume = Process::start(path, &["consume", "--from", from]);
        until("the group", path, || log(path, "consume").contains("consumer starts"));
        until("no lag", path, || {
            let (_, report) = status(path);
            report["broker"]["found"]["streams"][0]["groups"][0]["lag"] == 0
        });
        consume.signal("-TERM");
        assert_eq!(consume.ended(), Some(0), "{}", log(path, "consume"));
        let (_, report) = status(path);
        assert_eq!(report["consumer"]["found"]["applied"], 0, "{report}");
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempdir().unwrap();
    let args = ["relay", "--source", "postgres://u@127.0.0.1:1/d", "--listen", &address];
    let error = run(folder.path(), args).failed(1);
    assert!(error.contains(&format!("http.listen = \"{address}\" cannot be used")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_what_was_applied_and_names_what_holds_the_rest() {
    let server = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    let (folder, source, books) = folder(server, redis, "").await;
    let path = folder.path();
    let nothing = run(path, ["retention", "show"]).ok();
    assert!(nothing.contains("everything is kept"), "{nothing}");
    assert_eq!(run(path, ["retention", "show", "--json"]).json()["consumer"], Value::Null);
    assert!(run(path, ["retention", "run"]).failed(2).contains("everything is kept"));

    let client = server.connect_to(&source).await.unwrap();
    let mut relay = Process::start(path, &["relay"]);
    // rows of a snapshot have no commit time, and stay until something newer stands behind them
    until("streaming", path, || log(path, "relay").contains("\"streaming\""));
    let post = "SELECT ledger.post('j' || n, 'cash', 'sales', 'c', 'EUR', 100) FROM generate_series(1, 9) n";
    client.execute(post, &[]).await.unwrap();
    until("the stream", path, || status(path).1["broker"]["found"]["streams"][0]["entries"] == 9);
    let everything = ["--outbox", "1s", "--streams", "1s", "--inbox", "1s", "--settled", "1s"];
    let held = [&["retention", "run", "--wait", "1s"][..], &everything[..]].concat();
    let held = run(path, held).ok();
    assert!(held.contains("no consumer has a group"), "{held}");
    let rows = "SELECT count(*) FROM outflow.outbox";
    assert_eq!(client.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 9);

    let mut consume = Process::start(path, &["consume"]);
    until("the projection", path, || status(path).1["consumer"]["found"]["applied"] == 9);
    until("no lag", path, || {
        let stream = &status(path).1["broker"]["found"]["streams"][0]["groups"][0];
        stream["lag"] == 0 && stream["pending"] == 0
    });
    let run_now = [&["retention", "run", "--json"][..], &everything[..]].concat();
    let books = server.connect_to(&books).await.unwrap();
    for (what, sql, table) in
        [("the outbox", &client, "outflow.outbox"), ("the inbox", &books, "outflow.inbox")]
    {
        let left = format!("SELECT count(*) FROM {table}");
        until(what, path, || {
            run(path, &run_now).ok();
            let rows = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(sql.query_one(&left, &[]))
            });
            rows.unwrap().get::<_, i64>(0) == 0
        });
    }
    relay.signal("-TERM");
    consume.signal("-TERM");
    assert_eq!((relay.ended(), consume.ended()), (Some(0), Some(0)), "{}", log(path, "consume"));
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_runs_by_itself_in_relay_and_consumer() {
    let server = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    let (folder, source, books) = folder(server, redis, "").await;
    let path = folder.path();
    let ages = "\n[retention]\noutbox = \"1s\"\nstreams = \"1s\"\ninbox = \"1s\"\nsettled = \"1s\"\ninterval = \"1s\"\n";
    let config = fs::read_to_string(path.join("outflow.toml")).unwrap();
    fs::write(path.join("outflow.toml"), config + ages).unwrap();
    let client = server.connect_to(&source).await.unwrap();
    let books = server.connect_to(&books).await.unwrap();
    let mut relay = Process::start(path, &["relay"]);
    let mut consume = Process::start(path, &["consume"]);
    // rows of a snapshot have no commit time, and stay until something newer stands behind them
    until("streaming", path, || log(path, "relay").contains("\"streaming\""));
    let post = "SELECT ledger.post('j' || n, 'cash', 'sales', 'c', 'EUR', 100) FROM generate_series(1, 9) n";
    client.execute(post, &[]).await.unwrap();
    for (what, sql, query) in [
        ("the projection", &books, "SELECT coalesce(sum(journals), 0) = 9 FROM turnover"),
        ("the outbox", &client, "SELECT count(*) = 0 FROM outflow.outbox"),
        ("the inbox", &books, "SELECT count(*) = 0 FROM outflow.inbox"),
    ] {
        until(what, path, || {
            let row = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(sql.query_one(query, &[]))
            });
            row.unwrap().get(0)
        });
    }
    until("the stream", path, || status(path).1["broker"]["found"]["streams"][0]["entries"] == 0);
    relay.signal("-TERM");
    consume.signal("-TERM");
    assert_eq!((relay.ended(), consume.ended()), (Some(0), Some(0)), "{}", log(path, "consume"));
    for (command, said) in [
        ("relay", "retention: entries were trimmed"),
        ("consume", "retention: rows of inbox were removed"),
    ] {
        assert!(log(path, command).contains(said), "{}", log(path, command));
    }
    let applied = "SELECT sum(journals) = 9 FROM turnover";
    assert!(books.query_one(applied, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_refuses_is_said_in_its_own_words() {
    let server = shared_postgres().await.unwrap();
    let redis = Redis::builder().password("hush").start().await.unwrap();
    let (folder, _, _) = folder(server, &redis, "127.0.0.1:0").await;
    let file = folder.path().join("outflow.toml");
    let without = fs::read_to_string(&file).unwrap().replace(":hush@", "");
    fs::write(&file, without).unwrap();
    let (code, report) = status(folder.path());
    assert_eq!(code, Some(1));
    let error = report["broker"]["error"].as_str().unwrap();
    assert!(error.contains("Authentication required"), "{error}");
    assert!(!error.contains("Incompatible type"), "{error}");
}
