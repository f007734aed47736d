//! The ways of the runbook between polling and the connector, walked while producers and a consumer go
//! on.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outflow_sandbox::{shared_postgres, shared_redis};
use redis::streams::StreamRangeReply;
use tokio_postgres::Client;

use crate::run;
use crate::running::{Process, folder, log, status, until};

/// Events between two steps.
const STRETCH: u64 = 60;

/// Posts to the ledgers of three consumers in turn, one transaction each, until it is stopped; says
/// how many it has committed.
async fn produce(client: Client, stop: Arc<AtomicBool>) -> u64 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let (id, customer) = (format!("j{number}"), format!("c-{}", number % 3));
        client
            .execute("SELECT ledger.post($1, 'cash', 'sales', $2, 'EUR', 100)", &[&id, &customer])
            .await
            .unwrap();
        number += 1;
    }
    number
}

fn applied(path: &Path) -> u64 {
    status(path).1["consumer"]["found"]["applied"].as_u64().unwrap_or(0)
}

fn until_applied(what: &str, path: &Path) {
    let wanted = applied(path) + STRETCH;
    until(what, path, || applied(path) >= wanted);
}

fn stop(mut relay: Process, path: &Path) {
    relay.signal("-TERM");
    assert_eq!(relay.ended(), Some(0), "{}", log(path, "relay"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn from_polling_to_the_connector_and_back_nothing_is_lost_and_nothing_conflicts() {
    let (server, redis) = (shared_postgres().await.unwrap(), shared_redis().await.unwrap());
    let (folder, source, books) = folder(server, redis, "").await;
    let path = folder.path();
    run(path, ["init", "--demo", "--polling"]).ok();
    let sql = server.connect_to(&source).await.unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let client = server.connect_to(&source).await.unwrap();
    let producer = tokio::spawn(produce(client, Arc::clone(&stopped)));

    let poller = Process::start(path, &["relay", "--polling"]);
    let mut consume = Process::start(path, &["consume"]);
    until_applied("polling", path);
    let (_, report) = status(path);
    assert_eq!(report["healthy"], true, "no slot, and none is needed: {report}");

    // to the connector: "From polling to the connector"
    let published = "DELETE FROM outflow.outbox WHERE published_at IS NOT NULL";
    assert!(sql.execute(published, &[]).await.unwrap() > 0);
    stop(poller, path);
    let auto = ["relay", "--set=sink.entry_id=auto", "--set=source.snapshot=initial"];
    let connector = Process::start(path, &auto);
    until("streaming", path, || log(path, "relay").contains("\"streaming\""));
    until_applied("the connector", path);

    // both at once
    let poller = Process::start(path, &["relay", "--polling", "--set=polling.relay=second"]);
    until_applied("both", path);

    // and back: "From the connector to polling"
    let past = "UPDATE outflow.outbox SET published_at = now() WHERE created_at < now() - interval '1 hour'";
    sql.execute(past, &[]).await.unwrap();
    stop(connector, path);
    sql.execute("SELECT pg_drop_replication_slot($1)", &[&source]).await.unwrap();
    until_applied("polling again", path);
    stopped.store(true, Ordering::Relaxed);
    let events = producer.await.unwrap();
    until("everything", path, || applied(path) == events);
    until("health", path, || status(path).0 == Some(0));
    let table = run(path, ["status"]).ok();
    assert!(table.contains("to be polled") && !table.contains("log end"), "{table}");
    stop(poller, path);
    consume.signal("-TERM");
    assert_eq!(consume.ended(), Some(0), "{}", log(path, "consume"));

    let books = server.connect_to(&books).await.unwrap();
    let one = |sql: &'static str| {
        let books = &books;
        async move { books.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) }
    };
    assert_eq!(one("SELECT count(*) FROM outflow.conflict").await, 0);
    assert_eq!(one("SELECT count(*) FROM outflow.dead_letter").await, 0);
    let sum = i64::try_from(events).unwrap() * 100;
    assert_eq!(one("SELECT sum(amount)::bigint FROM turnover").await, sum);
    check_order(redis, &format!("{source}:journal"), events).await;
}

/// Every event is there, and first deliveries follow the order of each aggregate.
async fn check_order(redis: &outflow_sandbox::Redis, stream: &str, events: u64) {
    let mut connection = redis.connect().await.unwrap();
    let reply: StreamRangeReply =
        redis::cmd("XRANGE").arg(&[stream, "-", "+"]).query_async(&mut connection).await.unwrap();
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    for entry in &reply.ids {
        let field = |name| entry.get::<String>(name).unwrap();
        let seq: u64 = field("seq").parse().unwrap();
        if seen.insert(field("event_id")) {
            let before = last.insert(field("aggregate_id"), seq).unwrap_or(0);
            assert_eq!(seq, before + 1, "{entry:?}");
        }
    }
    assert_eq!(seen.len() as u64, events);
    assert!(reply.ids.len() > seen.len(), "both relays have published the events of a while");
}
