use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{outflow, ran, run};

#[test]
fn flags_outrank_variables_outrank_the_file() {
    let folder = tempdir().unwrap();
    let file = "[sink]\nbatch_entries = 1\ntimeout = \"1s\"\npartitions = 1\n";
    fs::write(folder.path().join("outflow.toml"), file).unwrap();
    let output = outflow(folder.path())
        .args(["config", "--json", "--set", "sink.timeout=3s"])
        .env("OUTFLOW_SINK__BATCH_ENTRIES", "2")
        .env("OUTFLOW_SINK__TIMEOUT", "2s")
        .output()
        .unwrap();
    let config = ran(&output).json();
    let show = |key: &str| format!("{} ({})", config[key]["value"], config[key]["origin"]);
    assert_eq!(show("sink.partitions"), "1 (\"outflow.toml:4\")");
    assert_eq!(show("sink.batch_entries"), "2 (\"variable OUTFLOW_SINK__BATCH_ENTRIES\")");
    assert_eq!(show("sink.timeout"), "\"3s\" (\"flag --set\")");
    assert_eq!(show("sink.durability"), "\"memory\" (\"default\")");
}

#[test]
fn another_file_may_be_named_and_must_exist() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("outflow.toml"), "connector = \"here\"").unwrap();
    fs::write(folder.path().join("b.toml"), "connector = \"b\"").unwrap();
    let connector = |args: &[&str]| -> Value {
        run(folder.path(), args.iter().chain(&["config", "--json"])).json()["connector"]["value"]
            .take()
    };
    assert_eq!(connector(&[]), "here");
    assert_eq!(connector(&["--config", "b.toml"]), "b");
    let by_variable =
        outflow(folder.path()).arg("config").env("OUTFLOW_CONFIG", "b.toml").output().unwrap();
    assert!(ran(&by_variable).ok().contains("connector = \"b\""));
    let error = run(folder.path(), ["config", "-c", "none.toml"]).failed(2);
    assert!(error.contains("none.toml: cannot be read"), "{error}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let folder = tempdir().unwrap();
    let file = "conector = \"a\"\n[sink]\nentry_id = \"clock\"\nbatch_entries = 0\n";
    fs::write(folder.path().join("outflow.toml"), file).unwrap();
    let error = run(folder.path(), ["relay", "--set", "source.max_payload=16MB"]).failed(2);
    for part in [
        "conector (outflow.toml:1): no such key, did you mean `connector`?",
        "sink.entry_id = \"clock\" (outflow.toml:3): expected \"lsn\" or \"auto\"",
        "sink.batch_entries = 0 (outflow.toml:4): expected a whole number from 1 to 100000",
        "source.max_payload = \"16MB\" (flag --set): expected a size from 1KiB to 512MiB",
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn secrets_are_never_shown() {
    let folder = tempdir().unwrap();
    let file = "[source]\nurl = \"postgres://u:hunter2@h/d\"\n\
                [sink]\nurl = \"redis://:hunter2@h\"\n\
                [consumer]\nurl = \"host=h user=u password=hunter2\"\n";
    fs::write(folder.path().join("outflow.toml"), file).unwrap();
    for args in [&["config"][..], &["config", "--json"]] {
        let shown = run(folder.path(), args).ok();
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("postgres://u:***@h/d"), "{shown}");
    }
    // nor in errors, about the very value or when the server cannot be reached
    let bad = "--set=source.url=postgres://u:hunter2@h:port/d";
    let error = run(folder.path(), ["config", bad]).failed(2);
    assert!(!error.contains("hunter2"), "{error}");
    let unreachable = "postgres://u:hunter2@127.0.0.1:1/d";
    let error =
        run(folder.path(), ["init", "--source", unreachable, "--set=consumer.url="]).failed(1);
    assert!(error.contains("127.0.0.1:1") && !error.contains("hunter2"), "{error}");
}

#[test]
fn the_shown_configuration_is_a_configuration() {
    let folder = tempdir().unwrap();
    let shown = run(folder.path(), ["config"]).ok();
    fs::write(folder.path().join("outflow.toml"), &shown).unwrap();
    run(folder.path(), ["config"]).ok();
}

#[test]
fn a_variable_without_double_underscores_is_suspected_only_if_it_resembles_a_setting() {
    let folder = tempdir().unwrap();
    // what Kubernetes sets for a service that is named outflow
    let kubernetes = outflow(folder.path())
        .arg("config")
        .env("OUTFLOW_SERVICE_HOST", "10.0.0.1")
        .env("OUTFLOW_PORT_9187_TCP", "tcp://10.0.0.1:9187")
        .output()
        .unwrap();
    ran(&kubernetes).ok();
    let slip = outflow(folder.path()).arg("config").env("OUTFLOW_SINK_URL", "x").output().unwrap();
    let error = ran(&slip).failed(2);
    assert!(error.contains("use OUTFLOW_SINK__URL"), "{error}");
}

#[test]
fn a_bad_filter_in_rust_log_is_said() {
    let folder = tempdir().unwrap();
    let output = outflow(folder.path())
        .args(["relay", "--source", "postgres://u@127.0.0.1:1/d"])
        .env("RUST_LOG", "info,[broken")
        .output()
        .unwrap();
    let error = ran(&output).failed(1);
    assert!(error.contains("RUST_LOG"), "{error}");
}
