//! `outflow demo` as a script sees it: real servers, real processes, real kills.

#![expect(clippy::unwrap_used, reason = "what helps a test may fail it")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outflow"));
    command.arg("demo");
    command
}

/// Ends with the demo's own account of what happened, if something is not as it should be.
fn run(args: &[&str]) -> (Output, Value) {
    let output = demo().args(args).output().unwrap();
    let account = String::from_utf8_lossy(&output.stderr);
    let proof = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(proof.lines().count(), 1, "{proof}\n{account}");
    let proof = serde_json::from_str(&proof).unwrap();
    assert!(output.status.success(), "{}: {proof}\n{account}", output.status);
    (output, proof)
}

#[test]
fn every_committed_event_arrives_exactly_once_though_both_sides_are_killed() {
    let args = ["--json", "--events", "3000", "--kills", "1", "--seed", "7", "--patience", "60"];
    let (_, proof) = run(&args);
    for name in ["committed", "entries", "inbox", "projected"] {
        assert_eq!(proof[name], 3000, "{name} in {proof}");
    }
    for name in ["lost", "doubled", "reordered", "conflicts"] {
        assert_eq!(proof[name], 0, "{name} in {proof}");
    }
    assert_eq!(proof["kills"], 2, "{proof}");
    assert!(proof["seconds"].as_f64().unwrap() > 0.0, "{proof}");
    assert_eq!(proof.as_object().unwrap().len(), 10, "{proof}");
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    // the servers' account must be able to enter it
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).unwrap();
    let mut child = demo()
        .args(["--events", "1000000", "--kills", "0"])
        .env("TMPDIR", folder.path())
        .env("OUTFLOW_SANDBOX_DIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let busy = lines.by_ref().find(|line| line.contains("producers at work"));
    assert!(busy.is_some(), "it ended before it began");
    assert!(!left_in(folder.path()).is_empty());
    assert!(!processes_of(folder.path()).is_empty());

    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert_eq!(left_in(folder.path()), Vec::<String>::new());
    assert_eq!(processes_of(folder.path()), Vec::<String>::new());
}

/// What stands in the folder, but for the cache of the sandbox, which is meant to stay.
fn left_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| !name.starts_with("outflow-sandbox-")).collect()
}

/// Command lines that name the folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let output = Command::new("ps").args(["-eo", "args"]).output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let folder = folder.to_str().unwrap();
    lines.lines().filter(|line| line.contains(folder)).map(str::to_owned).collect()
}
