//! Everything under the roles of compose.yaml, which have the least that they need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outflow_sandbox::{Fsync, Postgres, Redis};
use serde_json::Value;
use tempfile::tempdir;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::running::{Process, Variables, log, until};
use crate::{Ran, outflow, ran};

/// As in the image: the password of everybody, but of the one who sets it up.
const HBA: &str = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256";
const STREAM: &str = "outflow:journal";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A server with the databases and the roles that docker/postgres/init.sh makes.
async fn server() -> Postgres {
    let server = Postgres::builder().pg_hba(HBA).start().await.unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [server.bin_dir().to_owned()].into_iter().chain(std::env::split_paths(&path));
    let done = Command::new("bash")
        .arg(repository("docker/postgres/init.sh"))
        .env("PATH", std::env::join_paths(folders).unwrap())
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", server.port().to_string())
        .env("CONNECTOR_PASSWORD", "c")
        .env("ACCOUNTING_PASSWORD", "a")
        .env("SHOP_PASSWORD", "s")
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    server
}

async fn connect(server: &Postgres, role: &str, database: &str) -> Client {
    let url = server.url_as(role, database);
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    config.password(&role[..1]);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn run_as(folder: &Path, args: &[&str], variables: &Variables) -> Ran {
    ran(&outflow(folder).args(args).envs(variables.iter().cloned()).output().unwrap())
}

/// Writes events as the application does.
async fn emit(shop: &Client, customer: &str, seqs: &[i64]) {
    for seq in seqs {
        let payload = serde_json::json!({"consumer": customer, "currency": "EUR", "amount": 100});
        let emit = "SELECT outflow.emit('journal', $1, 'Posted', $2, $1 || '-' || $3::bigint, $3)";
        shop.execute(emit, &[&customer, &payload, seq]).await.unwrap();
    }
}

/// Adds an entry as a confused producer does.
async fn add(redis: &Redis, event_id: &str, customer: &str, amount: &str) {
    let payload =
        format!("{{\"consumer\": \"{customer}\", \"currency\": \"EUR\", \"amount\": {amount}}}");
    let fields =
        [("event_id", event_id), ("aggregate_type", "journal"), ("aggregate_id", customer)];
    let mut command = redis::cmd("XADD");
    command
        .arg(STREAM)
        .arg("*")
        .arg(&fields)
        .arg(&[("event_type", "Posted"), ("payload", &payload)]);
    command.exec_async(&mut redis.connect().await.unwrap()).await.unwrap();
}

/// Warnings and errors of a process.
fn complaints(folder: &Path, command: &str) -> Vec<String> {
    let text = log(folder, command);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let bad = lines.filter(|line| line["level"] == "WARN" || line["level"] == "ERROR");
    bad.map(|line| line["message"].to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_of_compose_yaml_are_enough_for_everything() {
    let server = server().await;
    let redis = Redis::builder().password("r").appendonly(Fsync::EverySec).start().await.unwrap();
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::copy(repository("docker/outflow.toml"), path.join("outflow.toml")).unwrap();
    let of = |role: &str, database: &str| server.url_as(role, database);
    let sink = [("OUTFLOW_SINK__URL", redis.url()), ("OUTFLOW_HTTP__LISTEN", String::new())];
    let init = [
        ("OUTFLOW_SOURCE__URL", of("postgres", "shop")),
        ("OUTFLOW_CONSUMER__URL", of("postgres", "books")),
    ];
    let relay = [("OUTFLOW_SOURCE__URL", of("connector", "shop")), ("PGPASSWORD", "c".to_owned())];
    let relay = [&relay[..], &sink].concat();
    let projection = repository("sql/demo/consumer/projection.sql").display().to_string();
    let consume = [
        ("OUTFLOW_CONSUMER__URL", of("accounting", "books")),
        ("PGPASSWORD", "a".to_owned()),
        ("OUTFLOW_CONSUMER__PROJECTION", projection),
        ("OUTFLOW_CONSUMER__ON_GAP", "warn".to_owned()),
        ("OUTFLOW_CONSUMER__MAX_ATTEMPTS", "1".to_owned()),
    ];
    let consume = [&consume[..], &sink].concat();
    run_as(path, &["init", "--demo"], &init).ok();

    // a snapshot, what follows it, a connector that starts again
    let (shop, books) =
        (connect(&server, "shop", "shop").await, connect(&server, "accounting", "books").await);
    let applied = |journals: i64| {
        let query = "SELECT coalesce(sum(journals), 0)::bigint FROM turnover";
        let row = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(books.query_one(query, &[]))
        });
        row.unwrap().get::<_, i64>(0) == journals
    };
    emit(&shop, "c-1", &[1, 2]).await;
    let mut connector = Process::start_as(path, &["relay"], &relay);
    let mut consumer = Process::start_as(path, &["consume"], &consume);
    until("the snapshot", path, || applied(2));
    emit(&shop, "c-1", &[3]).await;
    until("an event", path, || applied(3));
    connector.signal("-TERM");
    assert_eq!(connector.ended(), Some(0), "{}", log(path, "relay"));
    assert_eq!(complaints(path, "relay"), [""; 0]);
    emit(&shop, "c-2", &[1, 2]).await;
    let mut connector = Process::start_as(path, &["relay"], &relay);
    until("events of a connector that was started again", path, || applied(5));

    // a gap, an event that fails, a conflict
    emit(&shop, "c-1", &[5]).await;
    until("the gap", path, || applied(6));
    add(&redis, "poison", "c-9", "\"none\"").await;
    add(&redis, "c-1-1", "c-1", "7").await;
    let open = |what: &str| run_as(path, &[what, "list", "--json"], &consume).json();
    until("the dead letter", path, || open("dead-letters")[0]["event_id"] == "poison");
    until("the conflict", path, || open("conflicts")["conflicts"][0]["event_id"] == "c-1-1");
    let replace = ["conflicts", "resolve", "replace", "--reason", "a test", "1"];
    run_as(path, &replace, &consume).ok();
    assert!(applied(7));
    let retry = ["dead-letters", "retry", "poison", "--wait", "30"];
    assert_eq!(run_as(path, &retry, &consume).code, Some(1), "it fails again");
    run_as(path, &["dead-letters", "discard", "poison", "--note", "a test"], &consume).ok();

    // what an operator looks at
    for (args, variables) in
        [(&["status"][..], &relay), (&["offsets"], &relay), (&["status"], &consume)]
    {
        let ran = run_as(path, args, variables);
        let text = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!text.contains("denied") && !text.contains("GRANT"), "{args:?}: {text}");
    }
    connector.signal("-TERM");
    consumer.signal("-TERM");
    assert_eq!((connector.ended(), consumer.ended()), (Some(0), Some(0)), "{}", log(path, "relay"));
    assert_eq!(complaints(path, "relay"), [""; 0]);
    let said = complaints(path, "consume");
    let expected = ["gap: ", "is a dead letter now", "conflict: "];
    let unexpected: Vec<_> =
        said.iter().filter(|line| !expected.iter().any(|text| line.contains(text))).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");

    // and none of them may do what it need not
    let connector = connect(&server, "connector", "shop").await;
    for (who, sql) in [
        (&shop, "DELETE FROM outflow.outbox"),
        (&shop, "UPDATE outflow.outbox SET payload = NULL"),
        (&shop, "SELECT payload FROM outflow.outbox"),
        (&shop, "SELECT 1 FROM outflow.connector_offset"),
        (&connector, "SELECT outflow.emit('journal', 'c', 'Posted', '{}')"),
        (&connector, "DELETE FROM outflow.outbox"),
        (&connector, "SELECT 1 FROM ledger.journal"),
        (&books, "DELETE FROM outflow.inbox"),
        (&books, "UPDATE outflow.inbox SET payload = NULL"),
        (&books, "DELETE FROM outflow.dead_letter"),
        (&books, "DELETE FROM turnover"),
        (&books, "CREATE TABLE outflow.mine ()"),
    ] {
        let error = who.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{sql}: {error}");
    }
}
