//! Tables of any shape, and both relays on one.

use outflow_relay::config::{Column, ColumnNames, EntryIdMode, TableName};

use crate::support::{RawEntry, World};
use crate::world::{polling, until_all_published, world};

#[tokio::test]
async fn a_table_without_the_columns_is_refused_with_the_way_there() {
    let world = World::start().await;
    let refused = world.poll(polling("r")).failure().await.to_string();
    assert!(refused.contains("outflow init --polling"), "{refused}");
}

#[tokio::test]
async fn a_table_of_debeziums_form_is_polled_under_its_own_names() {
    let mut world = World::start().await;
    world
        .execute(
            "CREATE TABLE public.outbox_events (id uuid PRIMARY KEY, aggregatetype text NOT NULL, \
               aggregateid text NOT NULL, type text NOT NULL, payload jsonb, tracingspan text, \
               at timestamptz NOT NULL DEFAULT clock_timestamp())",
        )
        .await;
    world.config.source.table = TableName { schema: "public".into(), name: "outbox_events".into() };
    world.config.source.columns = ColumnNames {
        event_id: "id".into(),
        aggregate_type: "aggregatetype".into(),
        aggregate_id: "aggregateid".into(),
        event_type: "type".into(),
        payload: "payload".into(),
        seq: Column::None,
        headers: Column::None,
        created_at: Column::None,
        omit: Vec::new(),
    };
    let mut settings = polling("r");
    settings.columns.published_at = "sent".into();
    let refused = world.poll(settings.clone()).failure().await.to_string();
    let alter = "ALTER TABLE \"public\".\"outbox_events\" ADD COLUMN IF NOT EXISTS \"claimed_by\" \
                 text, ADD COLUMN IF NOT EXISTS \"claimed_until\" timestamptz, ADD COLUMN IF NOT \
                 EXISTS \"sent\" timestamptz";
    assert!(refused.contains(alter), "{refused}");
    world.execute(alter).await;
    let refused = world.poll(settings.clone()).failure().await.to_string();
    assert!(refused.contains("source.order_by"), "{refused}");
    world.config.source.order_by = vec!["at".into()];
    world
        .execute(
            "INSERT INTO outbox_events VALUES \
             ('00000000-0000-0000-0000-00000000000b', 'order', '1', 'T', '{\"n\": 1.10}', 's'), \
             ('00000000-0000-0000-0000-00000000000a', 'order', '1', 'T', NULL, NULL)",
        )
        .await;
    let running = world.poll(settings);
    let ids = ["00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000a"];
    world.expect_ids("outflow:order", &ids).await;
    running.stop().await;
    let entry = &world.entries("outflow:order").await[0];
    assert_eq!(entry.get("payload"), Some("{\"n\": 1.10}"));
    assert_eq!(entry.get("tracingspan"), Some("s"));
    assert_eq!(entry.get("sent"), None);
    let left = "SELECT count(*) FROM outbox_events WHERE sent IS NULL";
    assert_eq!(world.sql.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_missing_privilege_is_named_with_its_grant() {
    let mut world = world().await;
    world.execute("CREATE ROLE poller LOGIN; GRANT USAGE ON SCHEMA outflow TO poller").await;
    let url = world.pg.url_as("poller", &world.database.name);
    world.config.source.connect = outflow_pgoutput::ConnectOptions::parse(&url).unwrap();
    let refused = world.poll(polling("r")).failure().await.to_string();
    assert!(refused.contains("GRANT SELECT, UPDATE"), "{refused}");
    world.execute("GRANT outflow_polling TO poller").await;
    let running = world.poll(polling("r"));
    world.emit("a").await;
    world.expect_ids("outflow:order", &["a"]).await;
    until_all_published(&world).await;
    running.stop().await;
}

#[tokio::test]
async fn c90_both_relays_at_once_make_the_same_event_of_a_row() {
    let mut world = world().await;
    world.config.sink.entry_id = EntryIdMode::Auto;
    let connector = world.connector().await;
    let poller = world.poll(polling("r"));
    world
        .execute(
            "SELECT outflow.emit('order', '1', 'T', \
               '{\"n\": 1.10, \"big\": 12345678901234567890.123, \"u\": \"\\u00e9\", \"b\": true}', \
               'a', 7, '{\"trace\": null}')",
        )
        .await;
    world.emit("b").await;
    until_all_published(&world).await;
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    while world.entries("outflow:order").await.len() < 4 {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let entries = world.entries("outflow:order").await;
    assert_eq!(entries.len(), 4, "each event once from each relay");
    for id in ["a", "b"] {
        let both: Vec<&RawEntry> =
            entries.iter().filter(|entry| entry.get("event_id") == Some(id)).collect();
        let event = |entry: &RawEntry| {
            let mut fields = entry.fields.clone();
            fields.retain(|(name, _)| name != "position" && name != "commit_time");
            fields
        };
        assert_eq!(event(both[0]), event(both[1]), "a consumer would see a conflict");
    }
    connector.stop().await;
    poller.stop().await;
}
