//! The lab's own Redis: found again, started again, ended.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{Ran, outflow_lab};

/// A lab with a Redis of its own, which ends with the test.
struct Own {
    folder: TempDir,
}

impl Own {
    fn new() -> Self {
        Self { folder: tempdir().unwrap() }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("lab")
    }

    fn run(&self, args: &[&str]) -> Ran {
        outflow_lab(&self.dir()).args(args).output().unwrap().into()
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.dir().join("redis/redis.pid")).unwrap().trim().to_owned()
    }

    fn cli(&self, args: &[&str]) -> String {
        let socket = self.dir().join("redis/redis.sock");
        let mut command = with_redis_tools("redis-cli");
        let output = command.arg("-s").arg(socket).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// A command that finds `redis-cli` beside the server that the tests use.
fn with_redis_tools(program: &str) -> Command {
    let folders = std::env::var_os("OUTFLOW_REDIS_BIN").map(PathBuf::from).into_iter();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
    let mut command = Command::new("env");
    command.env("PATH", path).arg(program);
    command
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.dir().exists() {
            drop(outflow_lab(&self.dir()).arg("stop").output());
        }
    }
}

fn runs(pid: &str) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let state = String::from_utf8(output.stdout).unwrap();
    !state.trim().is_empty() && !state.starts_with('Z')
}

#[track_caller]
fn ends_soon(pid: &str) {
    let since = Instant::now();
    while runs(pid) {
        assert!(since.elapsed() < Duration::from_secs(15), "pid {pid} still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_next_step_finds_it_and_every_way_to_look_works() {
    let lab = Own::new();
    for step in ["init", "place-order", "place-order", "place-order"] {
        lab.run(&[step]).ok();
    }
    assert!(!lab.dir().join("redis").exists(), "nothing needed a Redis yet");
    // an empty variable names no Redis
    let mut relay = outflow_lab(&lab.dir());
    relay.args(["relay", "--json"]).env("OUTFLOW_LAB_REDIS", "");
    let relay = Ran::from(relay.output().unwrap()).json();
    let pid = lab.pid();
    assert_eq!(relay["redis"]["pid"].to_string(), pid);
    assert!(relay["redis"]["stop"].as_str().unwrap().contains("outflow lab stop --dir"), "{relay}");
    lab.run(&["relay"]).ok();
    assert_eq!(lab.pid(), pid);
    assert_eq!(lab.cli(&["LLEN", "outbox.events"]), "3");
    // sqlite3 is not needed for anything else, and may not be installed
    let sqlite3 = Command::new("sqlite3").arg("--version").output().is_ok();
    for line in relay["look"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()) {
        if line.starts_with("sqlite3 ") && !sqlite3 {
            continue;
        }
        let shown = with_redis_tools("sh").args(["-c", line]).output().unwrap();
        assert!(shown.status.success(), "{line}: {shown:?}");
        assert!(String::from_utf8_lossy(&shown.stdout).contains("order-3.1"), "{line}: {shown:?}");
    }
    lab.run(&["clean"]).ok();
    ends_soon(&pid);
    assert!(!lab.dir().exists());
}

#[test]
fn it_comes_back_with_its_data_whatever_ended_it() {
    let lab = Own::new();
    for told in [lab.run(&["all"]).ok(), lab.run(&["all", "--json"]).ok()] {
        assert!(told.contains("outflow lab stop --dir") && told.contains(&lab.pid()), "{told}");
    }
    let first = lab.pid();
    let stopped: Value = lab.run(&["stop", "--json"]).json();
    assert_eq!(stopped["stopped"], true);
    ends_soon(&first);
    assert_eq!(lab.run(&["stop", "--json"]).json()["stopped"], false);

    lab.run(&["check"]).ok();
    let second = lab.pid();
    assert_ne!(first, second);
    assert!(Command::new("kill").args(["-KILL", &second]).status().unwrap().success());
    ends_soon(&second);
    lab.run(&["check"]).ok();
    let third = lab.pid();

    // and it ends with its folder, if nobody says stop
    fs::remove_dir_all(lab.dir()).unwrap();
    ends_soon(&third);
}

#[test]
fn a_lab_may_be_moved_while_its_redis_runs() {
    let lab = Own::new();
    lab.run(&["all"]).ok();
    let pid = lab.pid();
    let moved = lab.folder.path().join("moved lab");
    fs::rename(lab.dir(), &moved).unwrap();
    let check: Ran = outflow_lab(&moved).arg("check").output().unwrap().into();
    check.ok();
    let all: Ran = outflow_lab(&moved).arg("all").output().unwrap().into();
    let told = all.ok();
    assert!(told.contains("moved lab/redis/redis.sock'"), "{told}");
    let clean: Ran = outflow_lab(&moved).arg("clean").output().unwrap().into();
    clean.ok();
    ends_soon(&pid);
}

#[test]
fn without_a_redis_server_it_says_what_to_install_or_to_name() {
    let lab = Own::new();
    let ran: Ran = outflow_lab(&lab.dir())
        .arg("all")
        .env("OUTFLOW_REDIS_BIN", lab.folder.path())
        .output()
        .unwrap()
        .into();
    let error = ran.failed(1);
    for text in ["redis-server was not found", "apt-get install redis-server", "--redis URL"] {
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_folder_too_deep_for_a_socket_is_named() {
    let lab = Own::new();
    let deep = lab.folder.path().join("d".repeat(120));
    let ran: Ran = outflow_lab(&deep).arg("all").output().unwrap().into();
    let error = ran.failed(1);
    assert!(error.contains("longer than the path of a socket may be"), "{error}");
}
