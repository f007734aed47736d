//! Workers that are killed in each gap between two durable steps.

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Bed, PATIENCE, seen, start};
use outflow_inbox::{ConsumerOptions, Start, connect_no_tls};

const REACHED: &str = "the failpoint is reached";

/// The worker that is killed: it stops for good when it reaches a failpoint for the n-th time.
#[tokio::test]
#[ignore = "run by the other tests of this file, as a process of its own"]
async fn child() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let hits = AtomicU32::new(variable("CHILD_HIT").parse().unwrap());
    fail::cfg_callback(variable("CHILD_POINT"), move || {
        if hits.fetch_sub(1, Ordering::SeqCst) == 1 {
            println!("{REACHED}");
            loop {
                std::thread::park();
            }
        }
    })
    .unwrap();
    let options = ConsumerOptions {
        consumer_id: "accounting".to_owned(),
        redis: variable("CHILD_REDIS").parse().unwrap(),
        streams: vec![variable("CHILD_STREAM")],
        from: Some(Start::Beginning),
        batch: 10,
        ..ConsumerOptions::default()
    };
    let running = start(options, connect_no_tls(&variable("CHILD_DATABASE")), seen());
    running.end().await.unwrap();
}

async fn killed_at(bed: &Bed, point: &str, hit: u32) {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored", "--nocapture"])
        .env("CHILD_POINT", point)
        .env("CHILD_HIT", hit.to_string())
        .env("CHILD_REDIS", bed.redis_server.url())
        .env("CHILD_STREAM", &bed.stream)
        .env("CHILD_DATABASE", &bed.database.url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reached = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(REACHED) {
                return;
            }
        }
        panic!("the child ended before it reached {point}");
    };
    tokio::time::timeout(PATIENCE, reached).await.expect(point);
    child.kill().await.unwrap();
}

/// Kills at `point` in the second batch, then lets `worker` finish.
async fn survives(point: &str, worker: &str) {
    let mut bed = Bed::new().await;
    bed.add_many(1..=60, 4).await;
    killed_at(&bed, point, 2).await;
    let options = ConsumerOptions {
        worker: worker.to_owned(),
        claim_interval: Duration::from_millis(20),
        claim_min_idle: Duration::from_millis(1),
        ..bed.options()
    };
    let mut running = bed.start(options, seen());
    bed.until_true("SELECT count(*) >= 60 FROM outflow.inbox").await;
    running.until_status(|status| status.lag_entries == Some(0)).await;
    let summary = running.stop().await;
    assert_eq!(summary.counts.conflicts, 0);
    bed.assert_exactly_once(60).await;
    bed.assert_order_within_aggregates().await;
}

macro_rules! gaps {
    ($($name:ident: $point:literal,)*) => {$(
        mod $name {
            #[tokio::test]
            async fn c72_the_same_worker_goes_on() {
                super::survives(concat!("inbox::", $point), "worker-1").await;
            }

            #[tokio::test]
            async fn c72_another_worker_goes_on() {
                super::survives(concat!("inbox::", $point), "worker-2").await;
            }
        }
    )*};
}

gaps! {
    after_read: "after_read",
    after_insert: "after_insert",
    after_handler: "after_handler",
    before_commit: "before_commit",
    c83_after_commit: "after_commit",
    after_ack: "after_ack",
}
