//! Events that are held back in the consumer's database: those that failed and will be tried again,
//! those behind them, and the way to the dead letters.
//!
//! What is held back is acknowledged in Redis. There it would stay in the pending list, be claimed
//! and delivered again and again, and grow it without bound; here it is a row, in order, that every
//! worker of the consumer can go on with.

mod entry;
mod overview;

use std::sync::Arc;
use std::time::Duration;

use outflow_event::Event;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};

use crate::config::FailurePolicy;
use crate::delivery::{Delivery, ParkedRow, for_people};
use entry::{fields, parked};
pub use overview::Held;

/// Queues that are taken on in one transaction.
const QUEUES: i64 = 100;

/// An aggregate's type and id.
pub(crate) type Aggregate = (String, String);

/// The statements, prepared once per connection.
pub(crate) struct Parking {
    held: Statement,
    park: Statement,
    fail: Statement,
    bury: Statement,
    unpark: Statement,
    advance: Statement,
    lock: Statement,
    suspect: Statement,
    mark: Statement,
    withdraw: Statement,
    look: Statement,
    queues: Statement,
    sweep: Statement,
    overview: Statement,
}

/// Why events are parked, as the column `cause` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Tried and failed.
    Failed,
    /// Behind an event that is held back.
    Behind,
    /// Delivered again and again: may have ended its workers.
    Suspect,
    /// An earlier one is missing.
    Gap,
}

impl Cause {
    const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Behind => "behind",
            Self::Suspect => "suspect",
            Self::Gap => "gap",
        }
    }
}

/// An attempt that came back with an error.
pub(crate) struct Failed<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) error: String,
    pub(crate) sqlstate: Option<String>,
    /// The attempt was counted when it began.
    pub(crate) marked: bool,
}

/// What an event that failed has come to.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) started: u32,
    pub(crate) is_retry: bool,
    pub(crate) due_in: Duration,
}

/// Whether anything is held back, and when the first of it is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) held: bool,
    pub(crate) due_in: Option<Duration>,
}

/// A page of events that are due, with what is known of each.
pub(crate) type Page = Vec<(Delivery, ParkedRow)>;

impl Parking {
    pub(crate) async fn prepare(client: &Client) -> Result<Self, Error> {
        const WITHDRAW: &str = "SELECT outflow.withdraw($1::text, $2::text[])";
        let (held, park, fail, bury, unpark, advance, lock) = futures_util::try_join!(
            client.prepare(include_str!("sql/held.sql")),
            client.prepare(include_str!("sql/park.sql")),
            client.prepare(include_str!("sql/fail.sql")),
            client.prepare(include_str!("sql/bury.sql")),
            client.prepare(include_str!("sql/unpark.sql")),
            client.prepare(include_str!("sql/advance.sql")),
            client.prepare(include_str!("sql/lock.sql")),
        )?;
        let (suspect, mark, withdraw, look, queues, sweep, overview) = futures_util::try_join!(
            client.prepare(include_str!("sql/suspect.sql")),
            client.prepare(include_str!("sql/mark.sql")),
            client.prepare(WITHDRAW),
            client.prepare(include_str!("sql/look.sql")),
            client.prepare(include_str!("sql/queues.sql")),
            client.prepare(include_str!("sql/sweep.sql")),
            client.prepare(include_str!("sql/overview.sql")),
        )?;
        Ok(Self {
            held,
            park,
            fail,
            bury,
            unpark,
            advance,
            lock,
            suspect,
            mark,
            withdraw,
            look,
            queues,
            sweep,
            overview,
        })
    }

    /// Which aggregates of `deliveries` have events that are held back.
    pub(crate) async fn held(
        &self,
        tx: &Client,
        consumer_id: &str,
        deliveries: &[Delivery],
    ) -> Result<Vec<Aggregate>, Error> {
        let (types, ids) = aggregates(deliveries.iter());
        let rows = tx.query(&self.held, &[&consumer_id, &types, &ids]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Parks deliveries, each due after so many seconds or never by itself. One that is parked
    /// already stays as it is.
    pub(crate) async fn park(
        &self,
        tx: &Client,
        consumer_id: &str,
        cause: Cause,
        parked: &[(&Delivery, Option<f64>)],
    ) -> Result<(), Error> {
        if parked.is_empty() {
            return Ok(());
        }
        let column = |of: for<'x> fn(&'x Event) -> &'x str| -> Vec<&str> {
            parked.iter().map(|(delivery, _)| of(&delivery.entry.event)).collect()
        };
        let (streams, entries) = keys(parked.iter().map(|(delivery, _)| *delivery));
        let seqs: Vec<Option<i64>> = parked.iter().map(|(d, _)| d.entry.event.seq).collect();
        let positions: Vec<Option<String>> =
            parked.iter().map(|(d, _)| d.entry.position.map(|p| p.to_string())).collect();
        let due: Vec<f64> = parked.iter().map(|(_, due)| due.unwrap_or(-1.0)).collect();
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for (row, (delivery, _)) in (1_i64..).zip(parked) {
            for value in fields(delivery) {
                rows.push(row);
                values.push(value);
            }
        }
        let parameters: [&(dyn ToSql + Sync); 14] = [
            &consumer_id,
            &streams,
            &entries,
            &column(|event| &event.event_id),
            &column(|event| &event.aggregate_type),
            &column(|event| &event.aggregate_id),
            &seqs,
            &column(|event| &event.event_type),
            &positions,
            &rows,
            &values,
            &cause.name(),
            &(cause == Cause::Suspect),
            &due,
        ];
        tx.execute(&self.park, &parameters).await.map(drop)
    }

    /// Counts attempts that failed, and says when each is tried again. In the order of `failed`.
    pub(crate) async fn fail(
        &self,
        tx: &Client,
        consumer_id: &str,
        policy: &FailurePolicy,
        failed: &[Failed<'_>],
    ) -> Result<Vec<Option<Counted>>, Error> {
        let (streams, entries) = keys(failed.iter().map(|failed| failed.delivery));
        let errors: Vec<String> = failed.iter().map(|f| for_people(&f.error)).collect();
        let states: Vec<Option<&str>> = failed.iter().map(|f| f.sqlstate.as_deref()).collect();
        let marked: Vec<bool> = failed.iter().map(|failed| failed.marked).collect();
        let (first, longest) =
            (policy.attempt_first.as_secs_f64(), policy.attempt_longest.as_secs_f64());
        let parameters: [&(dyn ToSql + Sync); 8] =
            [&consumer_id, &streams, &entries, &errors, &states, &marked, &first, &longest];
        let rows = tx.query(&self.fail, &parameters).await?;
        let mut counted = vec![None; failed.len()];
        for row in rows {
            let (stream, entry): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            let at = streams.iter().zip(&entries).position(|(s, e)| *s == stream && e == entry);
            let Some(slot) = at.and_then(|at| counted.get_mut(at)) else { continue };
            *slot = Some(Counted {
                started: u32::try_from(row.try_get::<_, i32>(2)?).unwrap_or(0),
                is_retry: row.try_get::<_, Option<i64>>(3)?.is_some(),
                due_in: seconds(row.try_get(4)?),
            });
        }
        Ok(counted)
    }

    /// Makes a parked event a dead letter. Without a `reason` it is that of its last attempt.
    pub(crate) async fn bury(
        &self,
        tx: &Client,
        consumer_id: &str,
        delivery: &Delivery,
        reason: Option<&str>,
        holds: bool,
    ) -> Result<(), Error> {
        let id = delivery.entry.id.to_string();
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &consumer_id,
            &&*delivery.stream,
            &id,
            &delivery.payload_json(),
            &delivery.payload_raw(),
            &delivery.entry.event.headers,
            &reason,
            &holds,
        ];
        tx.execute(&self.bury, &parameters).await.map(drop)
    }

    /// Takes parked events away that are done, and resolves the dead letters that they were.
    pub(crate) async fn unpark(
        &self,
        tx: &Client,
        consumer_id: &str,
        done: &[(&Delivery, &'static str)],
    ) -> Result<(), Error> {
        let (streams, entries) = keys(done.iter().map(|(delivery, _)| *delivery));
        let resolutions: Vec<&str> = done.iter().map(|(_, resolution)| *resolution).collect();
        let parameters: [&(dyn ToSql + Sync); 4] = [&consumer_id, &streams, &entries, &resolutions];
        tx.execute(&self.unpark, &parameters).await.map(drop)
    }

    /// Makes the first parked event of each of these aggregates due, unless a dead letter holds it.
    pub(crate) async fn advance(
        &self,
        tx: &Client,
        consumer_id: &str,
        deliveries: impl Iterator<Item = &Delivery>,
    ) -> Result<(), Error> {
        let (types, ids) = aggregates(deliveries);
        tx.execute(&self.advance, &[&consumer_id, &types, &ids]).await.map(drop)
    }

    /// Locks the rows of parked events; `false` if some are gone, or in the hands of another worker.
    pub(crate) async fn lock(
        &self,
        tx: &Client,
        consumer_id: &str,
        deliveries: &[Delivery],
    ) -> Result<bool, Error> {
        let (streams, entries) = keys(deliveries.iter());
        let row = tx.query_one(&self.lock, &[&consumer_id, &streams, &entries]).await?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?) == Ok(deliveries.len()))
    }

    /// Says that parked events may end the worker (before they are tried together), or that they did
    /// not.
    pub(crate) async fn suspect(
        &self,
        client: &Client,
        consumer_id: &str,
        deliveries: impl Iterator<Item = &Delivery>,
        suspect: bool,
    ) -> Result<(), Error> {
        let (streams, entries) = keys(deliveries);
        let parameters: [&(dyn ToSql + Sync); 4] = [&consumer_id, &streams, &entries, &suspect];
        client.execute(&self.suspect, &parameters).await.map(drop)
    }

    /// Counts an attempt before it begins, or takes that back (`-1`): what interrupted it was not
    /// the event's fault.
    pub(crate) async fn mark(
        &self,
        client: &Client,
        consumer_id: &str,
        delivery: &Delivery,
        by: i32,
    ) -> Result<(), Error> {
        let id = delivery.entry.id.to_string();
        client.execute(&self.mark, &[&consumer_id, &&*delivery.stream, &id, &by]).await.map(drop)
    }

    /// Takes back the inbox rows of this transaction. Returns how many there were.
    pub(crate) async fn withdraw(
        &self,
        tx: &Client,
        consumer_id: &str,
        deliveries: &[Delivery],
    ) -> Result<usize, Error> {
        let ids: Vec<&str> = deliveries.iter().map(|d| d.entry.event.event_id.as_str()).collect();
        let row = tx.query_one(&self.withdraw, &[&consumer_id, &ids]).await?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0))
    }

    pub(crate) async fn look(
        &self,
        client: &Client,
        consumer_id: &str,
        streams: &[&str],
    ) -> Result<Seen, Error> {
        let row = client.query_one(&self.look, &[&consumer_id, &streams]).await?;
        let due_in: Option<f64> = row.try_get("due_in")?;
        Ok(Seen { held: row.try_get("held")?, due_in: due_in.map(seconds) })
    }

    /// Makes due what nothing stands in front of any more, whoever forgot it.
    pub(crate) async fn sweep(&self, client: &Client, consumer_id: &str) -> Result<(), Error> {
        client.execute(&self.sweep, &[&consumer_id]).await.map(drop)
    }

    /// The events that are due in `streams`, with those behind them, in order within each aggregate.
    pub(crate) async fn due(
        &self,
        client: &Client,
        consumer_id: &str,
        streams: &[Arc<str>],
        (most, bytes): (usize, usize),
        gap_wait: Duration,
    ) -> Result<Page, Error> {
        let keys: Vec<&str> = streams.iter().map(|stream| &**stream).collect();
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let gap_wait = gap_wait.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 7] =
            [&consumer_id, &keys, &QUEUES.min(most), &most, &bytes, &most, &gap_wait];
        let rows = client.query(&self.queues, &parameters).await?;
        rows.iter().filter_map(|row| parked(row, streams).transpose()).collect()
    }
}

pub(crate) fn keys<'a>(
    deliveries: impl Iterator<Item = &'a Delivery>,
) -> (Vec<&'a str>, Vec<String>) {
    deliveries.map(|delivery| (&*delivery.stream, delivery.entry.id.to_string())).unzip()
}

pub(crate) fn aggregates<'a>(
    deliveries: impl Iterator<Item = &'a Delivery>,
) -> (Vec<&'a str>, Vec<&'a str>) {
    let of = |delivery: &'a Delivery| {
        let event = &delivery.entry.event;
        (event.aggregate_type.as_str(), event.aggregate_id.as_str())
    };
    deliveries.map(of).unzip()
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
