use std::fs;

use outflow_sandbox::shared_postgres;
use tempfile::{TempDir, tempdir};
use tokio_postgres::Client;

use crate::{outflow, ran, run};

/// A consumer's database with `conflicts` open conflicts, and a folder that names it.
async fn books(conflicts: i64) -> (TempDir, Client) {
    let server = shared_postgres().await.unwrap();
    let books = server.fresh_database().await.unwrap();
    let folder = tempdir().unwrap();
    let text = format!("[consumer]\nid = \"accounting\"\nurl = \"{}\"\n", books.url);
    fs::write(folder.path().join("outflow.toml"), text).unwrap();
    run(folder.path(), ["init", "--consumer", &books.url]).ok();
    let sql = server.connect_to(&books.name).await.unwrap();
    sql.execute(
        "INSERT INTO outflow.conflict (consumer_id, event_id, stream, entry_id, aggregate_type, aggregate_id,
                                       event_type, payload, applied_stream, applied_entry_id, applied_payload,
                                       applied_at)
         SELECT 'accounting', 'e' || n, 'outflow:order', n || '-1', 'order', (n % 2)::text, 'T',
                '{\"amount\": 9007199254740993}', 'outflow:order', n || '-0', '{\"amount\": 9007199254740992}', now()
         FROM generate_series(1, $1::bigint) AS n",
        &[&conflicts],
    )
    .await
    .unwrap();
    (folder, sql)
}

#[tokio::test]
async fn c66_conflicts_are_listed_shown_and_settled() {
    let (folder, sql) = books(3).await;
    let folder = folder.path();
    let list = run(folder, ["conflicts", "--json"]).json();
    assert_eq!(list["conflicts"].as_array().unwrap().len(), 3, "{list}");
    let some = run(folder, ["conflicts", "list", "--aggregate", "1", "--limit", "1"]).ok();
    assert!(some.contains("e1") && some.contains("raise --limit"), "{some}");

    let shown = run(folder, ["conflicts", "show", "1"]).ok();
    assert!(shown.contains("/amount") && shown.contains("9007199254740993"), "{shown}");
    let json = run(folder, ["conflicts", "show", "1", "--json"]).json();
    assert_eq!(json["differences"][0]["applied"], "9007199254740992", "{json}");
    assert!(run(folder, ["conflicts", "show", "99"]).failed(3).contains("no conflict 99"));

    let keep = ["conflicts", "resolve", "keep", "--reason", "a draft", "--by", "ada"];
    let dry = run(folder, [&keep[..], &["--aggregate", "1", "--dry-run"]].concat()).ok();
    assert!(dry.contains("conflict 3: would be settled, keep"), "{dry}");
    let open = "SELECT count(*) FROM outflow.conflict WHERE resolved_at IS NULL";
    assert_eq!(sql.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 3);

    // nobody settles everything by leaving something out
    assert!(run(folder, keep).failed(3).contains("--all"));
    fs::write(folder.join("ids"), "1\n3\n99\n").unwrap();
    let settled = run(folder, [&keep[..], &["--ids-from", "ids", "--json"]].concat()).json();
    assert_eq!(settled["conflicts"], serde_json::json!([1, 3]), "{settled}");
    assert_eq!(settled["not_open"], serde_json::json!([99]), "{settled}");
    run(folder, [&keep[..], &["1"]].concat()).failed(3);

    let row = sql
        .query_one(
            "SELECT resolution, resolved_by, reason FROM outflow.conflict WHERE conflict_id = 1",
            &[],
        )
        .await
        .unwrap();
    let row: [String; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(row, ["keep", "ada", "a draft"]);
    assert_eq!(sql.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 1);
}

#[tokio::test]
async fn who_settled_a_conflict_is_known_without_being_asked() {
    let (folder, sql) = books(1).await;
    let mut command = outflow(folder.path());
    command.env("USER", "ada").env_remove("SUDO_USER");
    command.args(["conflicts", "resolve", "keep", "--all", "--reason", "tests"]);
    ran(&command.output().unwrap()).ok();
    let row = sql.query_one("SELECT resolved_by FROM outflow.conflict", &[]).await.unwrap();
    let by: String = row.get(0);
    assert!(by.starts_with("ada (database role "), "{by}");
}

#[tokio::test]
async fn a_consumer_that_is_not_named_is_asked_for() {
    let folder = tempdir().unwrap();
    let said = run(folder.path(), ["conflicts"]).failed(2);
    assert!(said.contains("consumer.id") && said.contains("OUTFLOW_CONSUMER__ID"), "{said}");
}
