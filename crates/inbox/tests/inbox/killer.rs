//! Events that end their worker.

use std::process::Stdio;

use tokio::process::Command;

use crate::support::{Bed, PATIENCE, checked, seen, start};
use outflow_inbox::{ConsumerOptions, Delivery, connect_no_tls};

#[tokio::test]
#[ignore = "run by the other test of this file, as a process of its own"]
async fn child() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let options = ConsumerOptions {
        consumer_id: "accounting".to_owned(),
        redis: variable("CHILD_REDIS").parse().unwrap(),
        streams: vec![variable("CHILD_STREAM")],
        from: Some(outflow_inbox::Start::Beginning),
        max_attempts: 3,
        ..ConsumerOptions::default()
    };
    let killer = checked(|events: &[Delivery]| {
        if events.iter().any(|event| event.entry.event.event_id == "e42") {
            std::process::abort();
        }
        Ok(())
    });
    let running = start(options, connect_no_tls(&variable("CHILD_DATABASE")), killer);
    running.end().await.unwrap();
}

#[tokio::test]
async fn an_event_that_ends_its_worker_is_found_and_no_other_is_blamed() {
    let mut bed = Bed::new().await;
    bed.add_many(1..=200, 10).await;
    let mut deaths = 0;
    let rounds = async {
        while bed.count("outflow.dead_letter").await == 0 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "killer::child", "--ignored", "--nocapture"])
                .env("CHILD_REDIS", bed.redis_server.url())
                .env("CHILD_STREAM", &bed.stream)
                .env("CHILD_DATABASE", &bed.database.url)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let dead = "SELECT count(*) = 1 FROM outflow.dead_letter";
            tokio::select! {
                ended = child.wait() => assert!(!ended.unwrap().success()),
                () = bed.until_true(dead) => child.kill().await.unwrap(),
            }
            deaths += 1;
            assert!(deaths < 20, "it kills for ever");
        }
    };
    tokio::time::timeout(2 * PATIENCE, rounds).await.unwrap();
    let row = bed
        .sql
        .query_one("SELECT event_id, attempts, crashes, reason FROM outflow.dead_letter", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1), row.get::<_, i32>(2)), ("e42", 3, 3));
    assert!(row.get::<_, &str>(3).contains("its worker ended without an answer in 3 of 3"));
    // two deaths to come under suspicion, three alone
    assert!(deaths <= 7, "{deaths} deaths");
    // what is not behind it had its effect, and once
    let mut running = bed.start(bed.options(), seen());
    running.until_status(|status| status.lag_entries == Some(0)).await;
    bed.until_true("SELECT count(*) = 184 FROM seen").await;
    running.stop().await;
    assert_eq!(bed.count("outflow.parked WHERE aggregate_id = '2' AND started = 0").await, 15);
    assert_eq!(bed.count("outflow.parked").await, 15);
    assert_eq!(bed.count("outflow.inbox").await, 184);
    assert_eq!(bed.count("outflow.dead_letter").await, 1);
    bed.assert_order_within_aggregates().await;
}
