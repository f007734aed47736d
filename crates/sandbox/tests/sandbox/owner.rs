//! What is left when the owner of the servers ends: nothing.
//!
//! The owner is this test program again, running one of the tests marked as ignored.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use outflow_sandbox::{Postgres, Redis, shared_postgres, shared_redis};

const SOON: Duration = Duration::from_secs(15);
/// Only set for owners, so that `--ignored` on its own runs nothing.
const ROLE: &str = "OUTFLOW_SANDBOX_TEST_OWNER";

/// A server as its owner reported it.
#[derive(Debug)]
struct Report {
    pid: u32,
    folder: PathBuf,
}

fn report(pid: Option<u32>, folder: &Path) {
    println!("\nserver {} {}", pid.unwrap(), folder.display());
}

/// A process that owns servers.
struct Owner {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Owner {
    /// Runs the ignored test `name` in a process of its own.
    fn run(name: &str, tmp: Option<&Path>) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture"]);
        command.env(ROLE, "1").stdout(Stdio::piped());
        if let Some(tmp) = tmp {
            command.env("TMPDIR", tmp);
        }
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// Reads `count` reports.
    fn reports(&mut self, count: usize) -> Vec<Report> {
        let lines = self.output.by_ref().lines().map(Result::unwrap);
        let reports: Vec<Report> =
            lines.filter_map(|line| Report::read(&line)).take(count).collect();
        assert_eq!(reports.len(), count);
        reports
    }

    /// Waits until the process has ended well.
    fn succeeds(mut self) {
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Report {
    fn read(line: &str) -> Option<Self> {
        let (pid, folder) = line.strip_prefix("server ")?.split_once(' ')?;
        Some(Self { pid: pid.parse().unwrap(), folder: folder.into() })
    }
}

fn runs(pid: u32) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    let state = String::from_utf8(output.stdout).unwrap();
    !state.trim().is_empty() && !state.starts_with('Z')
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn all_gone(reports: &[Report]) {
    for report in reports {
        wait_until(&format!("{report:?} still runs"), || !runs(report.pid));
        let gone = PathBuf::from(format!("{}.gone", report.folder.display()));
        wait_until(&format!("{report:?} has a folder"), || {
            !report.folder.exists() && !gone.exists()
        });
    }
}

#[tokio::test]
#[ignore = "run by the tests below, in a process of its own"]
async fn owner_of_both() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let postgres = Postgres::builder().start().await.unwrap();
    let redis = Redis::builder().start().await.unwrap();
    // one that its owner has paused must go as well
    let paused = Redis::builder().start().await.unwrap();
    paused.sigstop().unwrap();
    report(postgres.pid(), postgres.data_dir().parent().unwrap());
    report(redis.pid(), redis.dir());
    report(paused.pid(), paused.dir());
    std::future::pending().await
}

#[test]
fn a_killed_owner_leaves_nothing() {
    let mut owner = Owner::run("owner::owner_of_both", None);
    let reports = owner.reports(3);
    assert!(reports.iter().all(|report| runs(report.pid) && report.folder.exists()));
    owner.process.kill().unwrap();
    owner.process.wait().unwrap();
    all_gone(&reports);
}

#[tokio::test]
#[ignore = "run by the tests below, in a process of its own"]
async fn owner_with_statics() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let postgres = shared_postgres().await.unwrap();
    let redis = shared_redis().await.unwrap();
    report(postgres.pid(), postgres.data_dir().parent().unwrap());
    report(redis.pid(), redis.dir());
}

#[test]
fn servers_in_statics_end_with_the_process() {
    let mut owner = Owner::run("owner::owner_with_statics", None);
    let reports = owner.reports(2);
    owner.succeeds();
    all_gone(&reports);
}

#[tokio::test]
#[ignore = "run by the tests below, in a process of its own"]
async fn owner_that_gives_up() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let redis = Redis::builder().start().await.unwrap();
    report(redis.pid(), redis.dir());
    let _ = redis.leave_running();
}

#[test]
fn a_server_that_was_given_up_runs_on() {
    let mut owner = Owner::run("owner::owner_that_gives_up", None);
    let reports = owner.reports(1);
    let Report { pid, folder } = &reports[0];
    owner.succeeds();
    // longer than a guardian needs
    std::thread::sleep(Duration::from_millis(300));
    let left = (runs(*pid), folder.exists());
    Command::new("kill").arg(pid.to_string()).status().unwrap();
    wait_until("it ends when asked", || !runs(*pid));
    fs::remove_dir_all(folder).unwrap();
    assert_eq!(left, (true, true));
}

#[tokio::test]
#[ignore = "run by the tests below, in a process of its own"]
async fn owner_of_postgres() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let postgres = Postgres::builder().start().await.unwrap();
    let client = postgres.connect().await.unwrap();
    client.batch_execute("CREATE TABLE t ()").await.unwrap();
    report(postgres.pid(), postgres.data_dir().parent().unwrap());
}

#[test]
fn processes_that_start_at_once_share_one_template() {
    let memory = Path::new("/dev/shm");
    let parent = if memory.exists() { memory.into() } else { env::temp_dir() };
    let tmp = tempfile::tempdir_in(parent).unwrap();
    fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut owners = [(); 4].map(|()| Owner::run("owner::owner_of_postgres", Some(tmp.path())));
    let reports: Vec<Report> = owners.iter_mut().flat_map(|owner| owner.reports(1)).collect();
    for owner in owners {
        owner.succeeds();
    }
    all_gone(&reports);
    let cache = fs::read_dir(tmp.path()).unwrap().next().unwrap().unwrap().path();
    let mut templates: Vec<String> = fs::read_dir(cache.join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    templates.sort();
    assert_eq!(templates.len(), 2, "one template and its lock: {templates:?}");

    // a cleaner of temporary folders took an empty folder away: the template is made again
    fs::remove_dir(cache.join("templates").join(&templates[0]).join("data/pg_notify")).unwrap();
    Owner::run("owner::owner_of_postgres", Some(tmp.path())).succeeds();
}
