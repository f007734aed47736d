//! `outflow drill` as a script sees it: real servers, real processes, real faults. The fast drills
//! only; `make drill` runs all of them.

#![expect(clippy::unwrap_used, reason = "what helps a test may fail it")]

mod given;

use std::process::{Command, Output};

use serde_json::Value;

fn drill(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outflow")).arg("drill").args(args).output().unwrap()
}

/// Runs drills; ends with their own account of what happened, if one fails.
fn passes(names: &[&str]) -> Vec<Value> {
    let output = drill(&[names, &["--json", "--seed", "7"]].concat());
    let account = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {said}\n{account}", output.status);
    let objects: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let drilled: Vec<_> = objects.iter().map(|object| object["drill"].as_str().unwrap()).collect();
    assert_eq!(drilled, names, "{account}");
    for object in &objects {
        assert_eq!(object["passed"], true, "{object}");
        for none in ["lost", "doubled", "reordered"] {
            assert_eq!(object[none], 0, "{none} in {object}");
        }
        assert!(object["faults"].as_u64().unwrap() > 0, "nothing was injected: {object}");
        assert!(object["events"].as_u64().unwrap() > 0, "nothing was committed: {object}");
        assert!(object["seconds"].as_f64().unwrap() > 0.0, "{object}");
        assert_eq!(object["seed"], 7, "{object}");
    }
    objects
}

#[test]
fn what_is_published_and_not_marked_is_published_again_or_refused() {
    let objects = passes(&["publish-unmarked"]);
    let observed = objects[0]["observed"].as_array().unwrap();
    let found = |at: &str| {
        let check = observed.iter().find(|check| check["at"] == at);
        check.unwrap_or_else(|| panic!("{at} in {observed:?}"))["found"].to_string()
    };
    let polling = found("polling, after the restart");
    assert!(polling.contains("entries 2 (event ids 1)"), "{polling}");
    let lsn = found("connector, entry_id=lsn, offset in PostgreSQL, after the restart");
    assert!(lsn.contains("entries 1 (event ids 1)"), "{lsn}");
}

#[test]
fn the_windows_of_a_consumer_pass() {
    let objects = passes(&["consume-rollback", "commit-unacked"]);
    // a reason is looked for wherever somebody would
    for place in ["consume says why", "metrics of consume", "outflow status on consume"] {
        let observed = objects[0]["observed"].as_array().unwrap();
        assert!(observed.iter().any(|check| check["at"] == place), "{place} in {observed:?}");
    }
}

#[test]
fn the_windows_of_an_event_id_pass() {
    let objects = passes(&["same-id-new-entry", "same-id-other-payload"]);
    let text = objects[1]["observed"].to_string();
    assert!(text.contains("conflicts 1") && text.contains("turnover 100"), "{text}");
}

#[test]
fn a_zombie_that_wakes_up_after_its_successor_changes_nothing() {
    passes(&["zombie-connector"]);
}

#[test]
fn a_soak_draws_the_same_again_from_the_same_seed_and_from_all_if_none_is_named() {
    let drawn = |names: &[&str]| {
        // over before the first drill is: one is drawn
        let output = drill(&[names, &["--soak", "100ms", "--seed", SEED, "--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        (object["drill"].clone(), object["seed"].clone())
    };
    // one that draws a quick drill
    const SEED: &str = "3";
    assert_eq!(drawn(&[]), drawn(&["all"]));
}

#[test]
fn what_cannot_be_drilled_has_failed_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_outflow"))
        .args(["drill", "commit-unacked", "--json"])
        .env("OUTFLOW_REDIS_BIN", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["passed"], false);
    assert!(object["problems"].to_string().contains("redis-server"), "{object}");
}

#[test]
fn the_list_names_every_drill_and_a_wrong_name_is_refused() {
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let list = drill(&["list"]);
    assert!(list.status.success());
    for name in ["windows:", "kills:", "postgres:", "redis:", "publish-unmarked", "kill-random"] {
        assert!(said(&list).contains(name), "{name} in {}", said(&list));
    }
    let explained = said(&drill(&["list", "--explain"]));
    assert!(explained.contains("why: "), "{explained}");
    let wrong = drill(&["comit-unacked"]);
    assert_eq!(wrong.status.code(), Some(2));
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(error.contains("commit-unacked"), "{error}");
}
