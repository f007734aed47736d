use std::fs;
use std::path::Path;

use outflow_sandbox::{Postgres, Redis};
use serde_json::Value;
use tempfile::tempdir;

use crate::run;

/// Sizes at which nothing but the machinery is tested.
const TINY: [&str; 5] = ["compare", "--quick", "--events=1000", "--relays=1", "--json"];

fn figure(report: &Value, scenario: &str, subject: &str, name: &str) -> f64 {
    let figures = report["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| {
        figure["scenario"].as_str().unwrap().starts_with(scenario)
            && figure["subject"] == subject
            && figure["figure"] == name
    });
    let found = found.unwrap_or_else(|| panic!("{scenario}, {subject}, {name}: {figures:?}"));
    found["median"].as_f64().unwrap()
}

fn measure(folder: &Path, more: &[&str]) -> Value {
    let ran = run(folder, TINY.iter().chain(more));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json();
    assert_eq!(report["failures"], serde_json::json!([]));
    report
}

#[test]
fn both_relays_are_measured_and_naive_ones_are_shown_to_lose_events() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let marks =
        ["<!-- results: written by outflow compare --markdown -->", "<!-- end of results -->"];
    let page = format!("# Mine\n\n{}\nold\n{}\n\nkept\n", marks[0], marks[1]);
    fs::write(path.join("page.md"), page).unwrap();
    let report = measure(
        path,
        &["--scenario=late,backlog,burst", "--html=report.html", "--markdown=page.md"],
    );

    for subject in ["connector", "polling 50ms"] {
        assert_eq!(figure(&report, "late", subject, "lost events"), 0.0);
        assert!(figure(&report, "backlog", subject, "throughput") > 0.0);
        assert!(figure(&report, "backlog", subject, "relay memory") > 1.0);
        assert!(figure(&report, "burst", subject, "until all are readable") > 0.0);
    }
    for subject in ["naive: id > last", "naive: created_at > last"] {
        assert!(figure(&report, "late", subject, "lost events") > 0.0, "{subject}");
    }
    // the log is read, the table is written
    assert!(
        figure(&report, "backlog", "polling 50ms", "WAL")
            > 2.0 * figure(&report, "backlog", "connector", "WAL")
    );
    // what waits for the connector is kept for its slot, and nothing for polling
    let kept = |subject| figure(&report, "backlog", subject, "log kept by the slot, most");
    assert!(kept("connector") > 0.0);
    assert_eq!(kept("polling 50ms"), 0.0);
    let summary = report["summary"].to_string();
    assert!(summary.contains("Throughput of a backlog") && summary.contains("lost"), "{summary}");
    assert!(report["beside_the_figures"].to_string().contains("Polling has no slot"));

    let html = fs::read_to_string(path.join("report.html")).unwrap();
    assert!(html.matches("<svg").count() >= 5 && html.contains("Latency by percentile"));
    assert!(html.contains("What polling does better") && html.ends_with("</html>\n"));
    assert!(!html.contains("src=") && !html.contains("href="), "it loads something");
    let markdown = fs::read_to_string(path.join("page.md")).unwrap();
    assert!(markdown.starts_with("# Mine\n\n<!-- results") && markdown.ends_with("\n\nkept\n"));
    assert!(markdown.contains("| throughput |") && !markdown.contains("old\n"), "{markdown}");
}

#[test]
fn killed_relays_lose_nothing_and_what_they_repeat_has_one_effect() {
    let report = measure(tempdir().unwrap().path(), &["--scenario=kill"]);
    let of = |subject, name| figure(&report, "kill", subject, name);
    for subject in ["connector", "polling 50ms"] {
        assert_eq!(of(subject, "lost events"), 0.0, "{subject}");
        let committed = of(subject, "events committed");
        assert_eq!(of(subject, "effects at a consumer"), committed, "{subject}");
        assert_eq!(of(subject, "conflicts at a consumer"), 0.0, "{subject}");
    }
    assert_eq!(of("connector", "repeated entries"), 0.0);
    assert!(of("polling 50ms", "repeated entries") > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn given_servers_are_left_as_they_were_and_refused_when_they_hold_anything() {
    let (postgres, redis) = tokio::join!(Postgres::builder().start(), Redis::builder().start());
    let (postgres, redis) = (postgres.unwrap(), redis.unwrap());
    let folder = tempdir().unwrap();
    let (url, redis_url) = (postgres.url(), redis.url());
    let given = ["--postgres", &url, "--redis", &redis_url];
    let report = measure(folder.path(), &[&given[..], &["--scenario=backlog"]].concat());
    assert_eq!(report["servers"], "given");
    assert!(figure(&report, "backlog", "connector", "throughput") > 0.0);
    assert!(figure(&report, "backlog", "polling 50ms", "throughput") > 0.0);

    let sql = postgres.connect().await.unwrap();
    for left in [
        "SELECT count(*) FROM pg_database WHERE datname LIKE 'outflow%'",
        "SELECT count(*) FROM pg_replication_slots",
        "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'outflow%'",
    ] {
        assert_eq!(sql.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0, "{left}");
    }
    let mut connection = redis.connect().await.unwrap();
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, 0);

    sql.batch_execute("CREATE TABLE invoices (id int)").await.unwrap();
    redis::cmd("SET").arg("session").arg(1).exec_async(&mut connection).await.unwrap();
    let refused = run(folder.path(), TINY.iter().chain(&given));
    let refused = refused.failed(3);
    assert!(refused.contains("table public.invoices; keys in Redis (db0:keys=1"), "{refused}");
    assert!(refused.contains("--allow-shared"), "{refused}");
}

#[test]
fn sizes_have_limits() {
    let folder = tempdir().unwrap();
    for (flag, expected) in [
        ("--interval=0ms", "expected a duration from 1ms to 10s"),
        ("--outage=1day", "expected a duration from 1s to 1h"),
        ("--relays=99", "99 is not in 1..=16"),
        ("--scenario=all", "possible values"),
        ("--postgres=postgres://h/d", "--redis"),
    ] {
        let error = run(folder.path(), ["compare", flag]).failed(2);
        assert!(error.contains(expected), "{flag}: {error}");
    }
}
