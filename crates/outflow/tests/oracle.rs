//! The oracle on real servers: it reads what stands there, and faults that are planted there show.
//! Events are moved by hand, so that nothing of outflow but the oracle is needed.

#![expect(clippy::unwrap_used, reason = "what helps a test may fail it")]

#[path = "../src/oracle/mod.rs"]
mod oracle;

use std::collections::HashSet;
use std::process::Command;

use oracle::check::{Record, Rules};
use oracle::collect::{MESSAGE_EVENT, Sources, examine};
use oracle::verdict::{Fault, Verdict};
use outflow_sandbox::{Postgres, Redis};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

const POST: &str = "SELECT ledger.post($1, 'receivable:' || $2::text, 'revenue', $2, 'EUR', $3)";

/// What a connector would publish, in commit order, and where; then what a consumer would do.
const EVENTS: &str = "\
SELECT event_id, aggregate_type, aggregate_id, event_type, seq::text, payload::text
FROM outflow.outbox ORDER BY id";
const APPLY: &str = "\
WITH applied AS (
    INSERT INTO outflow.inbox (consumer_id, event_id, aggregate_type, aggregate_id, seq, event_type,
                               payload, stream, entry_id)
    VALUES ('books', $1, $2, $3, $4::text::bigint, $5, $6::text::jsonb, 'outflow:journal', $7)
    RETURNING payload
)
INSERT INTO turnover AS known (consumer, currency, amount, journals)
SELECT payload ->> 'consumer', payload ->> 'currency', (payload ->> 'amount')::numeric, 1 FROM applied
ON CONFLICT (consumer, currency) DO UPDATE
SET amount = known.amount + excluded.amount, journals = known.journals + 1";

struct World {
    _postgres: Postgres,
    _redis: Redis,
    producer: Client,
    consumer: Client,
    broker: MultiplexedConnection,
    record: Record,
}

impl World {
    /// Twelve events of three customers, one rolled back, everything moved and applied.
    async fn sound() -> Self {
        let (postgres, redis) =
            tokio::try_join!(Postgres::builder().start(), Redis::builder().start()).unwrap();
        let producer_url = postgres.create_database("shop").await.unwrap();
        let consumer_url = postgres.create_database("books").await.unwrap();
        let init = Command::new(env!("CARGO_BIN_EXE_outflow"))
            .args(["init", "--demo", "--source", &producer_url, "--consumer", &consumer_url])
            .output()
            .unwrap();
        assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
        let mut world = Self {
            producer: postgres.connect_to("shop").await.unwrap(),
            consumer: postgres.connect_to("books").await.unwrap(),
            broker: redis.connect().await.unwrap(),
            record: Record::default(),
            _postgres: postgres,
            _redis: redis,
        };
        for number in 0..12_i64 {
            world.post(&format!("j{number}"), &format!("c-{}", number % 3), number + 1).await;
        }
        world.move_all().await;
        world
    }

    async fn post(&mut self, journal_id: &str, customer: &str, amount: i64) {
        self.producer.execute(POST, &[&journal_id, &customer, &amount]).await.unwrap();
        self.record.committed.insert(journal_id.to_owned());
    }

    async fn move_all(&mut self) {
        for (index, row) in self.producer.query(EVENTS, &[]).await.unwrap().iter().enumerate() {
            let text = |column: usize| row.get::<_, String>(column);
            let names =
                ["event_id", "aggregate_type", "aggregate_id", "event_type", "seq", "payload"];
            let mut fields: Vec<_> =
                names.iter().enumerate().map(|(n, name)| (*name, text(n))).collect();
            fields.push(("position", format!("0/10:{index}")));
            let id = format!("16-{index}");
            self.add(&id, &fields).await;
            let applied = [text(0), text(1), text(2), text(4), text(3), text(5), id];
            let [a, b, c, d, e, f, g] = &applied;
            self.consumer.execute(APPLY, &[a, b, c, d, e, f, g]).await.unwrap();
        }
    }

    async fn add(&mut self, id: &str, fields: &[(&str, String)]) {
        let mut add = redis::cmd("XADD");
        add.arg("outflow:journal").arg(id).arg(fields);
        add.exec_async(&mut self.broker).await.unwrap();
    }

    async fn in_books(&self, sql: &str) {
        self.consumer.batch_execute(sql).await.unwrap();
    }

    async fn judge(&self) -> Verdict {
        let sources = Sources {
            producer: &self.producer,
            consumer: &self.consumer,
            redis: self.broker.clone(),
            keys: "*",
            consumer_id: "books",
            rules: Rules { lsn_ids: true, may_repeat: false },
        };
        examine(sources, self.record.clone()).await.unwrap()
    }
}

#[tokio::test]
async fn what_is_sound_holds_and_what_is_planted_shows() {
    let mut world = World::sound().await;
    let verdict = world.judge().await;
    assert!(verdict.holds(), "{verdict}");
    assert_eq!([verdict.committed, verdict.inbox, verdict.latency.len()], [12, 12, 0]);

    // committed, but nothing of it ever moved: a row, and a message that only the log knew
    world.post("j12", "c-0", 1).await;
    let message = "\
        BEGIN;
        INSERT INTO ledger.journal (journal_id, customer, seq) VALUES ('j13m', 'c-9', 1);
        INSERT INTO ledger.entries VALUES ('j13m', 1, 'a', 'EUR', 7), ('j13m', 2, 'b', 'EUR', -7);
        COMMIT";
    world.producer.batch_execute(message).await.unwrap();
    // acknowledged, but not there; rolled back, but there
    world.record.committed.insert("j99".to_owned());
    world.record.rolled_back = HashSet::from(["j3".to_owned(), "j98".to_owned()]);
    // an entry again, and one that nobody committed
    let row = world.producer.query_one(&format!("{EVENTS} LIMIT 1"), &[]).await.unwrap();
    let mut again = vec![("event_id", row.get::<_, String>(0))];
    world.add("17-0", &again).await;
    again = vec![("event_id", "unknown".to_owned())];
    again.push(("payload", r#"{"journal_id": "j98"}"#.to_owned()));
    world.add("17-1", &again).await;
    // the consumer's side
    world
        .in_books(
            "DELETE FROM outflow.inbox WHERE payload ->> 'journal_id' = 'j1';
             UPDATE outflow.inbox SET payload = '{}' WHERE payload ->> 'journal_id' = 'j2';
             UPDATE turnover SET amount = amount + 1 WHERE consumer = 'c-2';
             INSERT INTO outflow.dead_letter (consumer_id, stream, entry_id, reason)
             VALUES ('books', 'outflow:journal', '16-4', 'too bad');
             INSERT INTO outflow.conflict (consumer_id, event_id, stream, entry_id, aggregate_type,
                 aggregate_id, event_type, applied_stream, applied_entry_id, applied_at)
             VALUES ('books', 'e', 'outflow:journal', '16-5', 'journal', 'c-1', 'Posted', '', '', now())",
        )
        .await;

    let verdict = world.judge().await;
    let counts: Vec<_> =
        verdict.faults.iter().map(|(fault, found)| (*fault, found.count)).collect();
    assert_eq!(
        counts,
        [
            (Fault::Forgotten, 1),
            (Fault::Lost, 2),
            (Fault::NotApplied, 1),
            (Fault::Doubled, 1),
            (Fault::Altered, 1),
            (Fault::Leaked, 2),
            (Fault::Conflict, 1),
            (Fault::DeadLetter, 1),
            (Fault::Projection, 3),
        ],
        "{verdict}"
    );
    assert_eq!((verdict.lost(), verdict.doubled(), verdict.holds()), (3, 1, false));
    let said = verdict.to_string();
    for what in [
        "j98 was rolled back",
        "j3: rolled back, but in the producer's database",
        "j99: its commit was acknowledged",
        "c-2 EUR: 31 from 4 events, expected 30 from 4 events",
        &format!("event {MESSAGE_EVENT}j13m"),
        "entry 16-4 of outflow:journal: too bad",
    ] {
        assert!(said.contains(what), "{what}\n{said}");
    }
}
