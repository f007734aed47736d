use outflow_sandbox::{Postgres, shared_postgres};
use serde_json::Value;
use tempfile::tempdir;

use crate::{Ran, run};

fn init(args: &[&str]) -> Ran {
    run(tempdir().unwrap().path(), ["init"].iter().chain(args))
}

/// `outcome` of each step of each database.
fn outcomes(report: &Value) -> Vec<String> {
    let databases = report["databases"].as_array().unwrap().iter();
    let steps = databases.flat_map(|database| database["steps"].as_array().unwrap());
    steps.map(|step| step["outcome"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn init_twice_changes_nothing_the_second_time() {
    let server = shared_postgres().await.unwrap();
    let (source, books) =
        (server.fresh_database().await.unwrap(), server.fresh_database().await.unwrap());
    let args = ["--source", &source.url, "--consumer", &books.url, "--demo", "--json"];
    let dry: Vec<_> = args.iter().copied().chain(["--dry-run"]).collect();
    let report = init(&dry).json();
    assert!(outcomes(&report).iter().all(|outcome| outcome == "pending"), "{report}");
    let report = init(&args).json();
    assert_eq!(report["ready"], true, "{report}");
    assert!(outcomes(&report).len() >= 10, "{report}");
    assert!(outcomes(&report).iter().all(|outcome| outcome == "applied"), "{report}");

    let client = server.connect_to(&source.name).await.unwrap();
    let record =
        "SELECT string_agg(side || version || checksum || applied_at, ',' ORDER BY side, version)
                  FROM outflow.migration";
    let before: String = client.query_one(record, &[]).await.unwrap().get(0);
    let report = init(&args).json();
    assert!(outcomes(&report).iter().all(|outcome| outcome == "present"), "{report}");
    let after: String = client.query_one(record, &[]).await.unwrap().get(0);
    assert_eq!(before, after);

    // and what was made works
    client
        .execute("SELECT ledger.post('j1', 'cash', 'sales', 'c-17', 'EUR', 12345)", &[])
        .await
        .unwrap();
    let row = client
        .query_one("SELECT aggregate_id, seq, payload FROM outflow.outbox", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), ("c-17", 1));
    assert_eq!(
        row.get::<_, Value>(2),
        serde_json::json!({"journal_id": "j1", "consumer": "c-17", "currency": "EUR", "amount": 12345})
    );
}

#[tokio::test]
async fn inits_at_the_same_time_do_not_disturb_each_other() {
    let server = shared_postgres().await.unwrap();
    let source = server.fresh_database().await.unwrap();
    let url = source.url.clone();
    let one = move || {
        let url = url.clone();
        tokio::task::spawn_blocking(move || init(&["--source", &url, "--json"]).json())
    };
    let (a, b, c) = tokio::join!(one(), one(), one());
    let reports = [a.unwrap(), b.unwrap(), c.unwrap()];
    let applied = reports.iter().flat_map(outcomes).filter(|outcome| outcome == "applied").count();
    assert_eq!(applied, outcomes(&reports[0]).len(), "{reports:?}");
}

#[tokio::test]
async fn the_printed_script_is_what_init_does() {
    let server = shared_postgres().await.unwrap();
    let database = server.fresh_database().await.unwrap();
    let script = init(&["--print-sql", "--demo"]).ok();
    let client = server.connect_to(&database.name).await.unwrap();
    for _ in 0..2 {
        client.batch_execute(&script).await.unwrap();
    }
    let report =
        init(&["--source", &database.url, "--consumer", &database.url, "--demo", "--json"]).json();
    assert!(outcomes(&report).iter().all(|outcome| outcome == "present"), "{report}");

    let consumer_only = init(&["--print-sql", "--consumer", &database.url]).ok();
    assert!(
        consumer_only.contains("outflow.inbox") && !consumer_only.contains("TABLE outflow.outbox")
    );
}

#[tokio::test]
async fn missing_privileges_are_named_with_their_grants() {
    let server = shared_postgres().await.unwrap();
    let database = server.fresh_database().await.unwrap();
    let admin = server.connect_to(&database.name).await.unwrap();
    let role = format!("poor_{}", database.name);
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let url = server.url_as(&role, &database.name);

    let error = init(&["--source", &url]).failed(3);
    let grant = format!("GRANT CREATE ON DATABASE \"{}\" TO \"{role}\";", database.name);
    assert!(
        error.contains("may not create the schema outflow") && error.contains(&grant),
        "{error}"
    );

    // with exactly that grant it works; roles are somebody else's matter, and that is said
    admin.batch_execute(&grant).await.unwrap();
    let roles = "SELECT count(*) FROM pg_roles WHERE rolname = 'outflow_connector'";
    let roles: i64 = admin.query_one(roles, &[]).await.unwrap().get(0);
    let report = init(&["--source", &url, "--json"]).json();
    assert!(outcomes(&report).iter().all(|outcome| outcome == "applied"), "{report}");
    let notes = report["databases"][0]["notes"].to_string();
    assert!(notes.contains("REPLICATION"), "{notes}");
    assert_eq!(roles == 0, notes.contains("role outflow_connector is missing"), "{notes}");

    // a second role that may use nothing of it
    let other = format!("other_{}", database.name);
    admin.batch_execute(&format!("CREATE ROLE {other} LOGIN")).await.unwrap();
    let error = init(&["--source", &server.url_as(&other, &database.name)]).failed(3);
    assert!(error.contains("GRANT USAGE ON SCHEMA outflow"), "{error}");
    admin.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}, {other}")).await.unwrap();
}

#[tokio::test]
async fn a_server_without_logical_decoding_gets_the_statement_for_it() {
    let server = Postgres::builder().setting("wal_level", "replica").start().await.unwrap();
    let database = server.fresh_database().await.unwrap();
    let ran = init(&["--source", &database.url]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.contains("ALTER SYSTEM SET wal_level = logical;"), "{ran:?}");
    assert!(ran.stdout.contains("restart PostgreSQL"), "{ran:?}");
    let report = init(&["--source", &database.url, "--json"]).json();
    assert_eq!(report["ready"], false);
    // the files are applied all the same
    assert!(outcomes(&report).iter().all(|outcome| outcome == "present"), "{report}");
}

#[tokio::test]
async fn an_outbox_of_another_name_gets_a_publication_and_nothing_else() {
    let server = shared_postgres().await.unwrap();
    let database = server.fresh_database().await.unwrap();
    let client = server.connect_to(&database.name).await.unwrap();
    client
        .batch_execute("CREATE SCHEMA app; CREATE TABLE app.outboxevent (id uuid PRIMARY KEY)")
        .await
        .unwrap();
    let own = ["--set=source.table=app.outboxevent", "--set=source.publication=dbz"];
    let args: Vec<_> = ["--source", &database.url, "--json"].into_iter().chain(own).collect();
    let report = init(&args).json();
    assert_eq!(report["ready"], true, "{report}");
    assert!(outcomes(&report).iter().all(|outcome| outcome == "applied"), "{report}");
    let published = "SELECT string_agg(format('%s %s.%s', pubname, schemaname, tablename), ',')
                     FROM pg_publication_tables";
    let published: String = client.query_one(published, &[]).await.unwrap().get(0);
    assert_eq!(published, "dbz app.outboxevent");
    let inserts_only =
        "SELECT pubinsert AND NOT (pubupdate OR pubdelete OR pubtruncate) FROM pg_publication";
    assert!(client.query_one(inserts_only, &[]).await.unwrap().get::<_, bool>(0));
    let outbox = "SELECT to_regclass('outflow.outbox') IS NULL";
    assert!(client.query_one(outbox, &[]).await.unwrap().get::<_, bool>(0));
    assert!(outcomes(&init(&args).json()).iter().all(|outcome| outcome == "present"));
}
