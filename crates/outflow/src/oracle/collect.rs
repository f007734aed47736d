//! Reads the facts of the demo ledger from both databases and from Redis, page by page.
//!
//! The ledger itself is the producers' record: every journal line is one event. Its event is a row of
//! the outbox, or, where the journal id ends in [`MESSAGE_MARK`], a logical message without a row,
//! whose event id is [`MESSAGE_EVENT`] and the journal id.

use std::collections::{BTreeMap, HashSet};

use anyhow::Context;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio_postgres::{Client, Row};

use super::check::{Applied, Checker, Committed, Projection, Record, Rules};
use super::verdict::Verdict;

/// Ends the ids of journal lines whose event has no outbox row.
pub(crate) const MESSAGE_MARK: &str = "m";
/// Begins the ids of their events.
pub(crate) const MESSAGE_EVENT: &str = "message-";

const OUTBOX: &str = "\
SELECT id, event_id, aggregate_type, aggregate_id, seq, event_type, payload::text, headers::text
FROM outflow.outbox WHERE id > $1 ORDER BY id LIMIT 10000";

const JOURNAL: &str = "\
SELECT journal_id, customer, seq,
       jsonb_build_object('journal_id', journal_id, 'consumer', customer, 'currency', currency,
                          'amount', amount)::text
FROM ledger.journal JOIN ledger.entries USING (journal_id)
WHERE amount > 0 AND journal_id > $1 ORDER BY journal_id LIMIT 10000";

const EXPECTED: &str = "\
SELECT customer, currency, sum(amount)::text, count(*)
FROM ledger.journal JOIN ledger.entries USING (journal_id)
WHERE amount > 0 GROUP BY 1, 2";

const PROJECTION: &str =
    "SELECT consumer, currency, trim_scale(amount)::text, journals FROM turnover";

// the time of the commit, where the server keeps it; else that of the transaction's start
const INBOX: &str = "\
SELECT event_id, stream, entry_id, payload::text, payload_raw,
       (extract(epoch FROM CASE WHEN current_setting('track_commit_timestamp') = 'on'
                                THEN pg_xact_commit_timestamp(xmin) ELSE applied_at END)
        * 1000000)::bigint
FROM outflow.inbox WHERE consumer_id = $1 AND event_id > $2 ORDER BY event_id LIMIT 10000";

const SET_ASIDE: [(&str, Aside); 2] = [
    (
        "SELECT event_id, stream, entry_id, 'open since ' || detected_at::text
         FROM outflow.conflict WHERE consumer_id = $1 ORDER BY conflict_id",
        Checker::conflict,
    ),
    (
        "SELECT coalesce(event_id, '(malformed)'), stream, entry_id, reason
         FROM outflow.dead_letter WHERE consumer_id = $1 ORDER BY dead_letter_id",
        Checker::dead_letter,
    ),
];

type Aside = fn(&mut Checker, String);

/// Streams of the connector's own.
const BOOKKEEPING: [&str; 2] = ["outflow:offset:", "outflow:ledger:"];
const CONNECTOR_DEAD_LETTERS: &str = "outflow:dead-letters:";

/// Where the facts are.
pub(crate) struct Sources<'a> {
    /// The database with outbox and ledger.
    pub(crate) producer: &'a Client,
    /// The database with inbox and projection.
    pub(crate) consumer: &'a Client,
    /// The broker.
    pub(crate) redis: MultiplexedConnection,
    /// Glob pattern of the keys that belong to the check: every stream among them.
    pub(crate) keys: &'a str,
    /// Whose inbox.
    pub(crate) consumer_id: &'a str,
    /// What the relay promises.
    pub(crate) rules: Rules,
}

/// Reads and checks everything. Producers, connector and consumer should be done: what is under way
/// counts as lost.
///
/// # Errors
/// A server that cannot be read. Faults are no errors: they stand in the verdict.
pub(crate) async fn examine(sources: Sources<'_>, record: Record) -> anyhow::Result<Verdict> {
    let Sources { producer, consumer, mut redis, keys, consumer_id, rules } = sources;
    let mut checker = Checker::new(record, rules)?;
    read_producer(producer, &mut checker)
        .await
        .context("the producer's database cannot be read")?;
    read_streams(&mut redis, keys, &mut checker).await.context("the streams cannot be read")?;
    read_inbox(consumer, consumer_id, &mut checker).await.context("the inbox cannot be read")?;
    let expected =
        read_projection(producer, EXPECTED).await.context("the ledger cannot be read")?;
    let found =
        read_projection(consumer, PROJECTION).await.context("the projection cannot be read")?;
    checker.projection(&expected, &found);
    Ok(checker.finish())
}

async fn read_producer(client: &Client, checker: &mut Checker) -> anyhow::Result<()> {
    let mut after = i64::MIN;
    loop {
        let rows = client.query(OUTBOX, &[&after]).await?;
        let Some(last) = rows.last() else { break };
        after = last.try_get(0)?;
        for row in &rows {
            checker.committed(&Committed {
                event_id: row.try_get(1)?,
                aggregate_type: row.try_get(2)?,
                aggregate_id: row.try_get(3)?,
                seq: row.try_get(4)?,
                event_type: row.try_get(5)?,
                payload: row.try_get(6)?,
                headers: row.try_get(7)?,
            });
        }
    }
    let mut journal = HashSet::new();
    let mut after = String::new();
    loop {
        let rows = client.query(JOURNAL, &[&after]).await?;
        let Some(last) = rows.last() else { break };
        after = last.try_get(0)?;
        for row in &rows {
            let journal_id: String = row.try_get(0)?;
            if journal_id.ends_with(MESSAGE_MARK) {
                checker.committed(&message_event(&journal_id, row)?);
            }
            journal.insert(journal_id);
        }
    }
    checker.producer_facts(&journal);
    Ok(())
}

fn message_event(journal_id: &str, row: &Row) -> anyhow::Result<Committed> {
    Ok(Committed {
        event_id: format!("{MESSAGE_EVENT}{journal_id}"),
        aggregate_type: "journal".to_owned(),
        aggregate_id: row.try_get(1)?,
        seq: row.try_get(2)?,
        event_type: "Posted".to_owned(),
        payload: row.try_get(3)?,
        headers: None,
    })
}

async fn read_streams(
    redis: &mut MultiplexedConnection,
    pattern: &str,
    checker: &mut Checker,
) -> anyhow::Result<()> {
    for stream in stream_keys(redis, pattern).await? {
        if BOOKKEEPING.iter().any(|prefix| stream.starts_with(prefix)) {
            continue;
        }
        let mut from = "-".to_owned();
        loop {
            let reply: Vec<Value> = redis::cmd("XRANGE")
                .arg((&stream, &from, "+", "COUNT", 1000))
                .query_async(redis)
                .await?;
            if reply.is_empty() {
                break;
            }
            for record in reply {
                let (id, fields) = take_apart(record)
                    .with_context(|| format!("{stream} holds something that is no record"))?;
                if stream.starts_with(CONNECTOR_DEAD_LETTERS) {
                    checker.dead_letter(format!("{id} of {stream}, set aside by the connector"));
                } else {
                    checker.entry(&stream, &id, &fields);
                }
                from = format!("({id}");
            }
        }
    }
    Ok(())
}

async fn stream_keys(
    redis: &mut MultiplexedConnection,
    pattern: &str,
) -> anyhow::Result<Vec<String>> {
    let mut keys = HashSet::new();
    let mut cursor = 0_u64;
    loop {
        let (next, page): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg((cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "stream"))
            .query_async(redis)
            .await?;
        keys.extend(page);
        if next == 0 {
            let mut keys: Vec<_> = keys.into_iter().collect();
            keys.sort_unstable();
            return Ok(keys);
        }
        cursor = next;
    }
}

type RawRecord = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// A record as Redis replies with it: an id, and names and values in turn.
fn take_apart(record: Value) -> Option<RawRecord> {
    let Value::Array(parts) = record else { return None };
    let mut parts = parts.into_iter();
    let (id, Some(Value::Array(flat)), None) = (parts.next()?, parts.next(), parts.next()) else {
        return None;
    };
    let id = String::from_utf8(bytes(id)?).ok()?;
    let mut flat = flat.into_iter();
    let mut fields = Vec::new();
    while let Some(name) = flat.next() {
        fields.push((bytes(name)?, bytes(flat.next()?)?));
    }
    Some((id, fields))
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

async fn read_inbox(
    client: &Client,
    consumer_id: &str,
    checker: &mut Checker,
) -> anyhow::Result<()> {
    let mut after = String::new();
    loop {
        let rows = client.query(INBOX, &[&consumer_id, &after]).await?;
        let Some(last) = rows.last() else { break };
        after = last.try_get(0)?;
        for row in &rows {
            let payload: Option<String> = row.try_get(3)?;
            checker.applied(&Applied {
                event_id: row.try_get(0)?,
                stream: row.try_get(1)?,
                entry_id: row.try_get(2)?,
                payload: payload.map(String::into_bytes).or(row.try_get(4)?),
                committed_at: row.try_get(5)?,
            });
        }
    }
    for (sql, aside) in SET_ASIDE {
        for row in client.query(sql, &[&consumer_id]).await? {
            let (event_id, stream, entry_id, why): (String, String, String, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            aside(checker, format!("event {event_id}, entry {entry_id} of {stream}: {why}"));
        }
    }
    Ok(())
}

async fn read_projection(client: &Client, sql: &str) -> anyhow::Result<Projection> {
    let rows = client.query(sql, &[]).await?;
    let read = |row: &Row| {
        anyhow::Ok(((row.try_get(0)?, row.try_get(1)?), (row.try_get(2)?, row.try_get(3)?)))
    };
    rows.iter().map(read).collect::<anyhow::Result<BTreeMap<_, _>>>()
}
