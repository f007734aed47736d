//! Workers that the kernel stops, that are replaced, and that wake up.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::{Bed, PATIENCE, gated, seen, start};
use outflow_inbox::{ConsumerOptions, connect_no_tls};

const REACHED: &str = "stopped";
const LET_GO: &str = "let go";
/// The worker that is stopped, and another one.
const ITSELF: &str = "worker-1";
const ANOTHER: &str = "worker-2";

/// The worker that is stopped by the kernel when it comes to a point for the second time.
#[tokio::test]
#[ignore = "run by the other tests of this file, as a process of its own"]
async fn child() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let go = PathBuf::from(variable("CHILD_GO"));
    let hits = AtomicU32::new(2);
    fail::cfg_callback(variable("CHILD_POINT"), move || {
        if hits.fetch_sub(1, Ordering::SeqCst) == 1 {
            println!("{REACHED}");
            while !go.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    })
    .unwrap();
    fail::cfg_callback("inbox::let_go", || println!("{LET_GO}")).unwrap();
    let options = ConsumerOptions {
        consumer_id: "accounting".to_owned(),
        worker: ITSELF.to_owned(),
        redis: variable("CHILD_REDIS").parse().unwrap(),
        streams: vec![variable("CHILD_STREAM")],
        batch: 10,
        block: Duration::from_millis(200),
        lease: Duration::from_secs(1),
        from: Some(outflow_inbox::Start::Beginning),
        ..ConsumerOptions::default()
    };
    let running = start(options, connect_no_tls(&variable("CHILD_DATABASE")), seen());
    running.end().await.unwrap();
}

/// A process that is stopped, until it is woken up.
struct Paused {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Where it looks for the file that lets it go on.
    folder: TempDir,
}

impl Paused {
    async fn at(bed: &Bed, point: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "paused::child", "--ignored", "--nocapture"])
            .env("CHILD_REDIS", bed.redis_server.url())
            .env("CHILD_STREAM", &bed.stream)
            .env("CHILD_DATABASE", &bed.database.url)
            .env("CHILD_POINT", point)
            .env("CHILD_GO", folder.path().join("go"))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut paused = Self { child, lines, folder };
        paused.until_line(REACHED).await;
        paused.signal("-STOP").await;
        paused
    }

    async fn wake_up(&self) {
        std::fs::write(self.folder.path().join("go"), "").unwrap();
        self.signal("-CONT").await;
    }

    async fn end(mut self) {
        self.child.kill().await.unwrap();
    }

    async fn until_line(&mut self, text: &str) {
        let wait = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return;
                }
            }
            panic!("it ended before it said `{text}`");
        };
        tokio::time::timeout(PATIENCE, wait).await.expect(text);
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
    }
}

fn successor(bed: &Bed, worker: &str) -> ConsumerOptions {
    // one of the same name waits until the other one's time is over
    bed.log.expect_warn("another process has the name");
    let lease = Duration::from_secs(1);
    ConsumerOptions { worker: worker.to_owned(), lease, ..bed.options() }
}

#[tokio::test]
async fn a_worker_that_is_stopped_in_mid_transaction_holds_nobody_up() {
    holds_nobody_up("inbox::after_insert", ANOTHER).await;
}

#[tokio::test]
async fn a_worker_that_is_stopped_before_its_commit_holds_nobody_up() {
    holds_nobody_up("inbox::before_commit", ANOTHER).await;
}

#[tokio::test]
async fn a_worker_that_hangs_in_mid_transaction_is_replaced_under_its_own_name() {
    holds_nobody_up("inbox::after_insert", ITSELF).await;
}

async fn holds_nobody_up(point: &str, worker: &str) {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 4).await;
    let mut paused = Paused::at(&bed, point).await;
    bed.log.expect_warn("stands still in the middle of a transaction");
    let mut second = bed.start(successor(&bed, worker), seen());
    bed.until_true("SELECT count(*) = 60 FROM seen").await;
    second.until_status(|status| status.lag_entries == Some(0)).await;
    paused.wake_up().await;
    paused.until_line(LET_GO).await;
    assert_eq!((bed.count("seen").await, bed.count("outflow.inbox").await), (60, 60));
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.pending().await, 0);
    paused.end().await;
    second.stop().await;
}

#[tokio::test]
async fn a_worker_that_was_stopped_past_its_lease_wakes_up_and_changes_nothing() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 4).await;
    let mut paused = Paused::at(&bed, "inbox::before_apply").await;
    let mut second = bed.start(successor(&bed, ANOTHER), seen());
    bed.until_true("SELECT count(*) = 60 FROM seen").await;
    second.until_status(|status| status.lag_entries == Some(0)).await;
    // even if the inbox had forgotten them
    bed.sql.batch_execute("DELETE FROM outflow.inbox").await.unwrap();
    paused.wake_up().await;
    paused.until_line(LET_GO).await;
    assert_eq!(bed.count("seen").await, 60);
    assert_eq!(bed.count("outflow.inbox").await, 0);
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.pending().await, 0);
    paused.end().await;
    second.stop().await;
}

#[tokio::test]
async fn entries_that_a_worker_is_given_after_its_lease_are_not_overtaken() {
    late_read(ANOTHER).await;
}

#[tokio::test]
async fn entries_that_a_worker_is_given_after_its_lease_are_not_overtaken_under_its_own_name() {
    late_read(ITSELF).await;
}

/// A worker is stopped between its look at the lease and its read, and reads when it wakes up.
async fn late_read(worker: &str) {
    let mut bed = Bed::new().await;
    let paused = Paused::at(&bed, "inbox::before_read").await;
    let (slow, mut entered, gate) = gated();
    let second = bed.start(successor(&bed, worker), slow);
    // one batch in work and one ahead: the successor reads no more for now
    bed.add_many(1..=1, 2).await;
    assert_eq!(entered.recv().await, Some(1));
    bed.add_many(2..=2, 2).await;
    bed.until_pending(2).await;
    bed.add_many(3..=6, 2).await;
    paused.wake_up().await;
    bed.until_pending(6).await;
    bed.add_many(7..=10, 2).await;
    gate.add_permits(1_000);
    bed.until_true("SELECT count(*) = 10 FROM seen").await;
    bed.until_pending(0).await;
    assert_eq!(second.stop().await.counts.lost, 0);
    bed.assert_exactly_once(10).await;
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.count("outflow.lost_entries").await, 0);
    paused.end().await;
}
