//! `outflow dead-letters` beside a running consumer.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use outflow_sandbox::{shared_postgres, shared_redis};
use tempfile::tempdir;

use crate::{outflow, run};

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_listed_shown_tried_again_and_given_up() {
    let server = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    let books = server.fresh_database().await.unwrap();
    let client = server.connect_to(&books.name).await.unwrap();
    let folder = tempdir().unwrap();
    let path = folder.path();
    let name = &books.name;
    fs::write(path.join("seen.sql"), "INSERT INTO seen SELECT event_id FROM events").unwrap();
    let text = format!(
        "[sink]\nurl = \"{}\"\nstream_prefix = \"{name}:\"\n\
         [consumer]\nid = \"accounting\"\nurl = \"{}\"\nstreams = [\"order\"]\n\
         projection = \"seen.sql\"\nblock = \"200ms\"\nmax_attempts = 1\nfrom = \"beginning\"\n",
        redis.url(),
        books.url
    );
    fs::write(path.join("outflow.toml"), text).unwrap();
    let sql = "CREATE TABLE seen (event_id text CONSTRAINT no_one CHECK (event_id NOT IN ('e1', 'e3', '1')))";
    client.batch_execute(sql).await.unwrap();
    run(path, ["init"]).ok();
    let mut connection = redis.connect().await.unwrap();
    for (event, aggregate) in [("e1", "a"), ("e2", "a"), ("e3", "b"), ("e4", "c"), ("1", "d")] {
        let fields =
            [("event_id", event), ("aggregate_type", "order"), ("aggregate_id", aggregate)];
        let mut command = redis::cmd("XADD");
        command.arg(format!("{name}:order")).arg("*").arg(&fields);
        command.arg(&[("event_type", "Placed"), ("payload", "{\"total\": 0.10}")]);
        command.exec_async(&mut connection).await.unwrap();
    }
    let mut consume = outflow(path);
    consume.arg("consume").stdout(Stdio::null()).stderr(Stdio::null());
    let _consume = Process(consume.spawn().unwrap());
    let since = Instant::now();
    let open = || run(path, ["dead-letters", "--json"]).json();
    while open().as_array().map(Vec::len) != Some(3) {
        assert!(since.elapsed() < Duration::from_secs(30), "{}", open());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let table = run(path, ["dead-letters"]).ok();
    assert!(table.contains("order/a") && table.contains("no_one"), "{table}");
    let shown = run(path, ["dead-letters", "show", "e1", "--json"]).json();
    assert_eq!(shown[0]["payload"], "{\"total\": 0.10}", "{shown}");
    assert_eq!(
        (&shown[0]["behind"], &shown[0]["sqlstate"]),
        (&1.into(), &"23514".into()),
        "{shown}"
    );
    assert!(run(path, ["dead-letters", "show", "e1"]).ok().contains("waiting behind"));
    assert!(run(path, ["dead-letters", "show", "e2"]).failed(3).contains("no dead letter e2"));

    assert!(run(path, ["dead-letters", "retry"]).failed(3).contains("--every"));
    let dry = run(path, ["dead-letters", "retry", "--reason", "no_one", "--dry-run"]).ok();
    assert!(dry.contains("dry run: 3 would be"), "{dry}");
    let again = run(path, ["dead-letters", "retry", "e1", "--wait", "30", "--by", "ann"]);
    assert_eq!(again.code, Some(1), "it fails again: {again:?}");
    // 1 is the number of e1's letter, and an event id
    let unclear = run(path, ["dead-letters", "discard", "1", "--note", "which?"]).failed(3);
    assert!(unclear.contains("--letter 1 or --event 1"), "{unclear}");
    let discarded = run(path, ["dead-letters", "discard", "--event", "1", "--note", "a test"]).ok();
    assert!(discarded.contains("1 discarded"), "{discarded}");
    assert_eq!(
        run(path, ["dead-letters", "show", "--letter", "1", "--json"]).json()[0]["state"],
        "open"
    );
    client.batch_execute("ALTER TABLE seen DROP CONSTRAINT no_one").await.unwrap();
    fs::write(path.join("ids"), "e1\n\n").unwrap();
    let args = ["dead-letters", "retry", "--ids-from", "ids", "--wait", "30", "--json"];
    let report = run(path, args).json();
    assert_eq!(
        (&report["done"], &report["letters"][0]["state"]),
        (&1.into(), &"applied".into()),
        "{report}"
    );
    let discarded = run(path, ["dead-letters", "discard", "e3", "--note", "a test"]).ok();
    assert!(discarded.contains("1 discarded"), "{discarded}");
    assert!(run(path, ["dead-letters"]).ok().contains("no open dead letters"));
    let all =
        run(path, ["dead-letters", "list", "--all", "--aggregate", "order/b", "--json"]).json();
    assert_eq!(all[0]["state"], "discarded", "{all}");
    let since = Instant::now();
    loop {
        let row =
            client.query_one("SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM seen", &[]);
        let seen: Option<String> = row.await.unwrap().get(0);
        if seen.as_deref() == Some("e1 e2 e4") {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
