//! Several workers of one consumer.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::{Bed, PATIENCE, Running, gated, seen, start};
use outflow_inbox::{ConsumerOptions, Retry, connect_no_tls};

fn worker(bed: &Bed, n: usize) -> ConsumerOptions {
    ConsumerOptions { worker: format!("worker-{n}"), ..bed.options() }
}

async fn until_streams(running: &mut Running, streams: usize) {
    running.until_status(|status| status.streams == streams).await;
}

#[tokio::test]
async fn streams_are_shared_out_and_change_hands_in_order() {
    let mut bed = Bed::new().await;
    let keys: Vec<String> = (0..4).map(|n| format!("{}:{n}", bed.stream)).collect();
    let options = |n| ConsumerOptions { streams: keys.clone(), ..worker(&bed, n) };
    let (one, two, three) = (options(1), options(2), options(3));
    let mut first = bed.start(one, seen());
    until_streams(&mut first, 4).await;
    let mut n = 0;
    // each stream has aggregates of its own
    let mut add = async |bed: &mut Bed, rounds: usize| {
        for _ in 0..rounds {
            for key in &keys {
                n += 1;
                let payload = format!("{{\"v\": {n}}}");
                bed.add_to(key, &format!("e{n}"), key, payload.as_bytes()).await;
            }
        }
        i64::from(n)
    };
    add(&mut bed, 20).await;
    let mut second = bed.start(two, seen());
    add(&mut bed, 20).await;
    until_streams(&mut second, 2).await;
    until_streams(&mut first, 2).await;
    let mut third = bed.start(three, seen());
    add(&mut bed, 20).await;
    third.until_status(|status| status.streams >= 1).await;
    first.crash().await;
    add(&mut bed, 20).await;
    until_streams(&mut second, 2).await;
    until_streams(&mut third, 2).await;
    let applied = second.stop().await.counts.applied;
    assert!(applied > 0);
    until_streams(&mut third, 4).await;
    let all = add(&mut bed, 20).await;
    bed.until_true(&format!("SELECT count(*) = {all} FROM outflow.inbox")).await;
    third.stop().await;
    assert_eq!(bed.count("seen").await, all);
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.count("outflow.position WHERE holder IS NOT NULL").await, 0);
}

#[tokio::test]
async fn c72_a_worker_in_reserve_takes_over_what_a_crashed_one_had_in_work() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 3).await;
    let (stuck, mut entered, _gate) = gated();
    let first = bed.start(ConsumerOptions { batch: 10, ..worker(&bed, 1) }, stuck);
    assert_eq!(entered.recv().await, Some(10));
    let mut second = bed.start(worker(&bed, 2), seen());
    // long before the lease is over: the first one's session is gone
    first.crash().await;
    second.until(|counts| counts.applied == 60 && counts.claimed >= 10).await;
    second.stop().await;
    bed.assert_exactly_once(60).await;
    bed.assert_order_within_aggregates().await;
}

#[tokio::test]
async fn c76_a_second_process_of_one_name_is_refused() {
    let mut bed = Bed::new().await;
    bed.log.expect_warn("another process has the name `worker-1`");
    let options = ConsumerOptions { lease: Duration::from_secs(1), ..bed.options() };
    let mut first = bed.start(options.clone(), seen());
    first.until_status(|status| status.streams == 1).await;
    let error = bed.start(options.clone(), seen()).end().await.unwrap_err();
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("is running already, in another process"), "{error}");
    bed.add_many(1..=10, 1).await;
    first.until(|counts| counts.acknowledged == 10).await;
    // and one that died makes room at once
    first.crash().await;
    bed.add_many(11..=20, 1).await;
    bed.run_until(options, seen(), |counts| counts.acknowledged == 10).await;
    bed.assert_exactly_once(20).await;
}

#[tokio::test]
async fn workers_that_are_gone_are_removed_from_the_group_when_they_hold_nothing() {
    let mut bed = Bed::new().await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XGROUP", "CREATE", &stream, "accounting", "0", "MKSTREAM"]).await;
    bed.redis_command(&["XGROUP", "CREATECONSUMER", &stream, "accounting", "gone"]).await;
    let options = ConsumerOptions {
        claim_interval: Duration::from_millis(20),
        claim_min_idle: Duration::from_millis(1),
        ..bed.options()
    };
    let running = bed.start(options, seen());
    let names = async {
        loop {
            let info = bed.redis_command(&["XINFO", "CONSUMERS", &stream, "accounting"]).await;
            if !format!("{info:?}").contains("gone") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, names).await.unwrap();
    running.stop().await;
}

const REACHED: &str = "about to apply";
const LET_GO: &str = "let go";

/// The worker that is stopped by the kernel in its second batch.
#[tokio::test]
#[ignore = "run by the other test of this file, as a process of its own"]
async fn child() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let go = std::path::PathBuf::from(variable("CHILD_GO"));
    let hits = std::sync::atomic::AtomicU32::new(2);
    fail::cfg_callback(variable("CHILD_POINT"), move || {
        if hits.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
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

async fn until_line(lines: &mut Lines<BufReader<ChildStdout>>, text: &str) {
    let wait = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(text) {
                return;
            }
        }
        panic!("it ended before it said `{text}`");
    };
    tokio::time::timeout(PATIENCE, wait).await.expect(text);
}

/// A worker that is stopped at `point` of its second batch, until there is a file `go`.
async fn stopped(bed: &Bed, point: &str, go: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "workers::child", "--ignored", "--nocapture"])
        .env("CHILD_REDIS", bed.redis_server.url())
        .env("CHILD_STREAM", &bed.stream)
        .env("CHILD_DATABASE", &bed.database.url)
        .env("CHILD_POINT", point)
        .env("CHILD_GO", go)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    until_line(&mut lines, REACHED).await;
    signal(&child, "-STOP").await;
    (child, lines)
}

async fn signal(child: &Child, name: &str) {
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
}

#[tokio::test]
async fn a_worker_that_is_stopped_in_mid_transaction_holds_nobody_up() {
    holds_nobody_up("inbox::after_insert").await;
}

#[tokio::test]
async fn a_worker_that_is_stopped_before_its_commit_holds_nobody_up() {
    holds_nobody_up("inbox::before_commit").await;
}

async fn holds_nobody_up(point: &str) {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 4).await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let (mut child, mut lines) = stopped(&bed, point, &go).await;
    bed.log.expect_warn("stands still in the middle of a transaction");
    let options = ConsumerOptions { lease: Duration::from_secs(1), ..worker(&bed, 2) };
    let mut second = bed.start(options, seen());
    bed.until_true("SELECT count(*) = 60 FROM seen").await;
    second.until_status(|status| status.lag_entries == Some(0)).await;
    std::fs::write(&go, "").unwrap();
    signal(&child, "-CONT").await;
    until_line(&mut lines, LET_GO).await;
    assert_eq!((bed.count("seen").await, bed.count("outflow.inbox").await), (60, 60));
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.pending().await, 0);
    child.kill().await.unwrap();
    second.stop().await;
}

#[tokio::test]
async fn a_worker_that_was_stopped_past_its_lease_wakes_up_and_changes_nothing() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 4).await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let (mut child, mut lines) = stopped(&bed, "inbox::before_apply", &go).await;
    let options = ConsumerOptions { lease: Duration::from_secs(1), ..worker(&bed, 2) };
    let mut second = bed.start(options, seen());
    bed.until_true("SELECT count(*) = 60 FROM seen").await;
    second.until_status(|status| status.lag_entries == Some(0)).await;
    // even if the inbox had forgotten them
    bed.sql.batch_execute("DELETE FROM outflow.inbox").await.unwrap();
    std::fs::write(&go, "").unwrap();
    signal(&child, "-CONT").await;
    until_line(&mut lines, LET_GO).await;
    assert_eq!(bed.count("seen").await, 60);
    assert_eq!(bed.count("outflow.inbox").await, 0);
    bed.assert_order_within_aggregates().await;
    assert_eq!(bed.pending().await, 0);
    child.kill().await.unwrap();
    second.stop().await;
}
