//! `check` finds what was planted, names its step, and is content again when it is mended.

use std::fs;

use crate::World;

#[tokio::test]
async fn a_removed_mark_is_found() {
    let world = World::finished().await;
    world.sql("UPDATE outbox SET status = 'PENDING' WHERE event_id = 'order-2.1'");
    assert_eq!(world.off(), ["relay"]);
    let told = world.run(&["check"]);
    assert_eq!(told.code, Some(1));
    assert!(told.stdout.contains("order-2.1 was delivered and is PENDING"), "{}", told.stdout);
    assert!(told.stdout.contains("outflow lab relay --dir"), "{}", told.stdout);
    // what the remedy says: it comes twice, is filtered, and counted
    world.run(&["relay"]).ok();
    assert_eq!(world.off(), ["consume", "report"]);
    world.run(&["consume"]).ok();
    world.run(&["report"]).ok();
    assert_eq!(world.off(), [""; 0]);
}

#[tokio::test]
async fn a_file_that_is_changed_or_missing_is_found() {
    let world = World::finished().await;
    for (name, step) in [
        ("dualwrite.out", "dual-write"),
        ("order_check.out", "order-check"),
        ("atleastonce.out", "relay-crash"),
        ("report.txt", "report"),
    ] {
        let text = world.file(name);
        let digit = text.find(|c: char| c.is_ascii_digit()).unwrap();
        let mut changed = text.clone();
        changed.replace_range(digit..=digit, "77");
        if name == "order_check.out" {
            changed = text.replace("OK", "WRONG");
        }
        fs::write(world.dir().join(name), changed).unwrap();
        assert_eq!(world.off(), [step], "{name} was changed");
        fs::remove_file(world.dir().join(name)).unwrap();
        assert_eq!(world.off(), [step], "{name} was removed");
        fs::write(world.dir().join(name), text).unwrap();
        assert_eq!(world.off(), [""; 0]);
    }
}

#[tokio::test]
async fn an_extra_list_item_is_found() {
    let world = World::finished().await;
    for extra in
        ["junk", r#"{"event_id":"x","aggregate_id":"y","seq":1,"event_type":"z","payload":1}"#]
    {
        let _: u64 = world.redis(&["RPUSH", "outbox.events", extra]).await;
        let off = world.off();
        assert!(
            off.contains(&"consume".to_owned()) && off.contains(&"report".to_owned()),
            "{off:?}"
        );
        let _: u64 = world.redis(&["LREM", "outbox.events", "0", extra]).await;
        assert_eq!(world.off(), [""; 0]);
    }
    let _: u64 = world.redis(&["RPUSH", "dualwrite.events", "extra"]).await;
    assert_eq!(world.off(), ["dual-write"]);
    world.run(&["dual-write"]).ok();
    assert_eq!(world.off(), [""; 0]);
}

#[tokio::test]
async fn a_result_that_is_missing_or_foreign_is_found() {
    let world = World::finished().await;
    let _: u64 = world.redis(&["HSET", "processed", "other", "done"]).await;
    assert_eq!(world.off(), ["consume", "report"]);
    let _: u64 = world.redis(&["HDEL", "processed", "other"]).await;
    let _: u64 = world.redis(&["HDEL", "processed", "order-3.1"]).await;
    assert_eq!(world.off(), ["relay", "consume", "report"]);
}

#[tokio::test]
async fn an_order_without_event_and_an_event_without_order_are_found() {
    let world = World::finished().await;
    world.sql("INSERT INTO orders VALUES (50, 'nut', 1)");
    assert_eq!(world.off(), ["place-order", "consume", "report"]);
    world.sql("DELETE FROM orders WHERE id = 50");
    assert_eq!(world.off(), [""; 0]);
    world.sql(
        "INSERT INTO outbox VALUES ('order-60.1', 'order-60', 1, 'OrderPlaced', '{}', 'PENDING')",
    );
    assert_eq!(world.off(), ["place-order", "relay", "report"]);
}

#[tokio::test]
async fn a_table_that_is_changed_is_found() {
    let world = World::finished().await;
    world.sql("DROP INDEX outbox_pending");
    assert_eq!(world.off(), ["init"]);
    world.run(&["init"]).ok();
    assert_eq!(world.off(), [""; 0]);
    world.sql("ALTER TABLE orders ADD COLUMN note TEXT");
    assert_eq!(world.off(), ["init"]);
    world.sql("DROP TABLE orders");
    assert!(world.off().contains(&"init".to_owned()));
}

#[tokio::test]
async fn a_lost_redis_is_found() {
    let world = World::finished().await;
    let _: () = world.redis(&["FLUSHALL"]).await;
    let off = world.off();
    for step in ["dual-write", "relay", "relay-crash", "consume", "report"] {
        assert!(off.contains(&step.to_owned()), "{step}: {off:?}");
    }
}

#[tokio::test]
async fn what_was_not_run_is_off_and_named() {
    let world = World::new().await;
    world.run(&["init"]).ok();
    let off = world.off();
    let all =
        ["dual-write", "place-order", "relay", "order-check", "relay-crash", "consume", "report"];
    assert_eq!(off, all);
}
