//! The whole lab, step by step: every file and key, repeats, the crash.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::World;

#[tokio::test]
async fn every_step_leaves_what_the_table_says() {
    let world = World::new().await;
    world.run(&["init"]).ok();
    tables_are_there(&world);

    world.run(&["dual-write"]).ok();
    let line = world.first_line("dualwrite.out");
    let (orders, published) =
        line.strip_prefix("INCONSISTENT orders=").unwrap().split_once(" published=").unwrap();
    assert_ne!(orders, published, "{line}");
    assert_eq!(world.redis::<String>(&["LLEN", "dualwrite.events"]).await, published);

    for placed in 1..=3 {
        world.run(&["place-order"]).ok();
        assert_eq!((world.count("orders"), world.count("outbox")), (placed, placed));
    }
    let said = world.run(&["place-order", "--fail"]).ok();
    assert!(said.contains("NOT NULL constraint failed: outbox.payload"), "{said}");
    assert_eq!((world.count("orders"), world.count("outbox")), (3, 3));
    assert_eq!(world.column("SELECT DISTINCT status FROM outbox"), ["PENDING"]);

    world.run(&["relay"]).ok();
    assert_eq!(world.list().await, ["order-1.1", "order-2.1", "order-3.1"]);
    assert_eq!(world.column("SELECT DISTINCT status FROM outbox"), ["PUBLISHED"]);
    world.run(&["relay"]).ok();
    assert_eq!(world.list().await.len(), 3);

    world.run(&["order-check"]).ok();
    order_is_kept(&world).await;

    let crash = world.run(&["relay-crash", "--json"]);
    let crash = crash.json();
    let id = crash["event_id"].as_str().unwrap();
    assert_eq!(world.first_line("atleastonce.out"), format!("DUPLICATE event_id={id} count=2"));
    let list = world.list().await;
    assert_eq!(list.iter().filter(|there| *there == id).count(), 2, "{list:?}");
    assert!(!Path::new(&format!("/proc/{}", crash["killed_pid"])).exists());
    assert_eq!(world.column("SELECT DISTINCT status FROM outbox"), ["PUBLISHED"]);

    world.run(&["consume"]).ok();
    let distinct: HashSet<_> = list.iter().collect();
    assert_eq!(world.redis::<usize>(&["LLEN", "outbox.events"]).await, 0);
    assert_eq!(world.redis::<usize>(&["HLEN", "processed"]).await, distinct.len());
    for id in &distinct {
        assert_eq!(world.redis::<u8>(&["HEXISTS", "processed", id]).await, 1, "{id}");
    }

    world.run(&["report"]).ok();
    let report = format!("orders=4\noutbox=7\nenqueued={}\nprocessed_unique=7\n", list.len());
    assert_eq!((list.len(), world.file("report.txt")), (8, report));
    assert_eq!(world.off(), [""; 0]);
}

fn tables_are_there(world: &World) {
    let columns = |table| {
        world.column(&format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid"))
    };
    assert_eq!(columns("orders"), ["id", "sku", "qty"]);
    let outbox = ["event_id", "aggregate_id", "seq", "event_type", "payload", "status"];
    assert_eq!(columns("outbox"), outbox);
    let default = "SELECT dflt_value FROM pragma_table_info('outbox') WHERE name = 'status'";
    assert_eq!(world.column(default), ["'PENDING'"]);
    let partial = "SELECT name FROM pragma_index_list('outbox') WHERE partial";
    assert_eq!(world.column(partial), ["outbox_pending"]);
    let database = world.database();
    let plan: String = database
        .query_row(
            "EXPLAIN QUERY PLAN SELECT * FROM outbox WHERE status = 'PENDING' \
             ORDER BY aggregate_id, seq",
            [],
            |row| row.get(3),
        )
        .unwrap();
    assert!(plan.contains("outbox_pending"), "{plan}");
}

/// One aggregate's events carry one timestamp, were inserted in another order, and left by `seq`.
async fn order_is_kept(world: &World) {
    assert_eq!(world.first_line("order_check.out"), "ORDER OK");
    let inserted = "SELECT seq || '' FROM outbox WHERE aggregate_id = 'order-1' ORDER BY rowid";
    assert_eq!(world.column(inserted), ["1", "4", "2", "3"]);
    let at =
        "SELECT DISTINCT payload ->> 'at' FROM outbox WHERE aggregate_id = 'order-1' AND seq > 1";
    assert_eq!(world.column(at).len(), 1);
    let entries = world.entries().await;
    let of_first = entries.iter().filter(|entry| entry["aggregate_id"] == "order-1");
    let left: Vec<_> = of_first.map(|entry| entry["seq"].as_i64().unwrap()).collect();
    assert_eq!(left, [1, 2, 3, 4]);
}

#[tokio::test]
async fn all_runs_every_step_and_may_be_repeated() {
    let world = World::new().await;
    let told = world.run(&["all"]).ok();
    for step in ["init", "dual-write", "place-order", "relay", "order-check", "relay-crash"] {
        assert!(told.contains(&format!("\n{step}: ")) || told.starts_with(step), "{step}: {told}");
    }
    assert!(told.contains("every outcome is as it must be"), "{told}");
    assert!(told.contains("redis-cli -u redis://127.0.0.1:"), "{told}");
    assert_eq!(world.off(), [""; 0]);

    let again = world.run(&["all", "--json"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    let again = again.json();
    assert_eq!(again["check"]["ok"], true, "{again}");
    let steps = again["steps"].as_array().unwrap();
    assert!(steps.iter().all(|step| step["ok"] == true && step["happened"].is_array()));
    // three orders, and one for each crash
    assert_eq!(world.count("orders"), 5);
}

#[tokio::test]
async fn every_step_may_be_repeated() {
    let world = World::new().await;
    for step in ["init", "dual-write", "place-order", "place-order", "place-order", "relay"] {
        world.run(&[step]).ok();
        world.run(&[step]).ok();
    }
    assert_eq!((world.count("orders"), world.list().await.len()), (3, 3));
    for step in ["order-check", "relay-crash", "consume", "report", "check"] {
        world.run(&[step]).ok();
        world.run(&[step]).ok();
    }
    // and once more, in another order
    for step in ["report", "consume", "order-check", "relay", "dual-write", "init", "check"] {
        world.run(&[step]).ok();
    }
    assert_eq!(world.off(), [""; 0]);
}

#[tokio::test]
async fn a_relay_that_dies_before_the_mark_leaves_the_row_pending_and_the_entry_pushed() {
    let world = World::new().await;
    for step in ["init", "place-order"] {
        world.run(&[step]).ok();
    }
    let died = world.command(&["relay", "--die-before-mark"]).status().unwrap();
    assert_eq!(died.signal(), Some(9));
    assert_eq!(world.list().await, ["order-1.1"]);
    assert_eq!(world.column("SELECT status FROM outbox"), ["PENDING"]);
    world.run(&["relay"]).ok();
    assert_eq!(world.list().await, ["order-1.1", "order-1.1"]);
    assert_eq!(world.column("SELECT status FROM outbox"), ["PUBLISHED"]);
}

#[tokio::test]
async fn what_is_no_event_or_another_one_under_a_known_id_is_set_aside() {
    let world = World::finished().await;
    let other = r#"{"event_id":"order-1.1","aggregate_id":"order-1","seq":1,"event_type":"OrderPlaced","payload":{"order_id":1,"qty":99}}"#;
    for entry in ["junk", other] {
        let _: u64 = world.redis(&["RPUSH", "outbox.events", entry]).await;
    }
    let before: String = world.redis(&["HGET", "processed", "order-1.1"]).await;
    let consumed = world.run(&["consume", "--json"]).json();
    assert_eq!(consumed["dead_letters"], 2, "{consumed}");
    let dead: Vec<String> = world.redis(&["LRANGE", "outbox.dead-letters", "0", "-1"]).await;
    assert_eq!(dead, ["junk", other]);
    let after: String = world.redis(&["HGET", "processed", "order-1.1"]).await;
    assert_eq!(before, after);
    assert_eq!(world.redis::<usize>(&["LLEN", "outbox.events"]).await, 0);
}

#[tokio::test]
async fn an_order_of_ones_own_goes_all_the_way() {
    let world = World::finished().await;
    world.run(&["place-order", "--sku", "apple", "--qty", "7"]).ok();
    for step in ["relay", "consume", "report"] {
        world.run(&[step]).ok();
    }
    assert_eq!(world.column("SELECT sku FROM orders WHERE qty = 7"), ["apple"]);
    assert_eq!(world.off(), [""; 0]);
}
