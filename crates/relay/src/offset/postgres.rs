//! Offsets in the source database, for brokers that must hold nothing but entries.
//!
//! The offset is saved after the broker has acknowledged the entries that it covers. A crash in
//! between leaves it behind the entries: the connector publishes them again and, with entry ids
//! made from positions, the streams refuse them.

use std::time::SystemTime;

use jiff::Timestamp;
use outflow_event::{Epoch, Lsn, Position};
use outflow_pgoutput::ConnectOptions;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row, Statement};

use super::{LedgerPace, Offset, OffsetStore, SnapshotProgress, replaced_meanwhile};
use crate::config::OffsetConfig;
use crate::error::Error;
use crate::patience::answered;

const PREPARING: &str = "preparing the connection of the offset store";
const READING: &str = "reading the offset of the connector";
const SAVING: &str = "saving the offset of the connector";
const REPLACING: &str = "replacing the offset of the connector";

/// Moves the offset unless that would set it back, and adds a line to the ledger ($15).
///
/// The resume point of the stored row is worked out as in `Offset::resume_point`.
const SAVE: &str = "\
WITH saved AS (
    INSERT INTO outflow.connector_offset AS stored
        (connector, system_identifier, timeline, slot, epoch, commit_lsn, index, end_lsn,
         commit_time, published_count, at, snapshot)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb)
    ON CONFLICT (connector) DO UPDATE SET
        system_identifier = excluded.system_identifier, timeline = excluded.timeline,
        slot = excluded.slot, epoch = excluded.epoch, commit_lsn = excluded.commit_lsn,
        index = excluded.index, end_lsn = excluded.end_lsn, commit_time = excluded.commit_time,
        published_count = excluded.published_count, at = excluded.at,
        snapshot = excluded.snapshot
    WHERE (
        stored.epoch,
        CASE WHEN stored.snapshot IS NULL AND stored.commit_lsn >= stored.end_lsn
            THEN stored.commit_lsn ELSE stored.end_lsn END,
        CASE WHEN stored.snapshot IS NOT NULL
            THEN COALESCE(stored.index + 1, 0) + (stored.snapshot ->> 'visible' <> '')::int
            WHEN stored.commit_lsn >= stored.end_lsn THEN stored.index + 1
            ELSE 0 END
    ) <= ($5, $13::pg_lsn, $14::bigint)
    RETURNING 1
), line AS (
    INSERT INTO outflow.connector_ledger
        (connector, system_identifier, timeline, slot, epoch, commit_lsn, index, end_lsn,
         commit_time, published_count, at, snapshot)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb
    FROM saved WHERE $15
)
SELECT count(*) FROM saved";

/// A line of the ledger for the stored offset.
const LINE: &str = "\
INSERT INTO outflow.connector_ledger
    (connector, system_identifier, timeline, slot, epoch, commit_lsn, index, end_lsn,
     commit_time, published_count, at, snapshot)
SELECT connector, system_identifier, timeline, slot, epoch, commit_lsn, index, end_lsn,
    commit_time, published_count, at, snapshot
FROM outflow.connector_offset WHERE connector = $1";

/// Sets the offset below every other one, for [`SAVE`] to follow in the same transaction.
const LOWER: &str = "\
UPDATE outflow.connector_offset
SET epoch = 0, commit_lsn = NULL, index = NULL, end_lsn = '0/0', snapshot = NULL
WHERE connector = $1";

const TRIM: &str = "\
DELETE FROM outflow.connector_ledger
WHERE connector = $1 AND id <= (
    SELECT id FROM outflow.connector_ledger
    WHERE connector = $1 ORDER BY id DESC OFFSET $2 LIMIT 1
)";

/// The columns that [`read`] reads, in its order.
const COLUMNS: &str = "system_identifier, timeline, slot, epoch, commit_lsn, index, end_lsn, \
                       commit_time, published_count, at, snapshot::text";

/// Keeps offsets in the tables `outflow.connector_offset` and `outflow.connector_ledger`.
///
/// Holds a connection of its own, made when it is first needed and made anew after a failure: its
/// session may end while the replication link goes on.
#[derive(Debug)]
pub struct PostgresOffsetStore {
    link: SqlLink,
    connector: String,
    ledger_entries: i64,
    pace: LedgerPace,
}

impl PostgresOffsetStore {
    /// A store for the offset of `connector`. Does not connect yet.
    #[must_use]
    pub fn new(connect: ConnectOptions, connector: &str, config: &OffsetConfig) -> Self {
        Self {
            link: SqlLink { connect, session: None },
            connector: connector.to_owned(),
            ledger_entries: i64::try_from(config.ledger_entries).unwrap_or(i64::MAX),
            pace: LedgerPace::new(config.ledger_interval),
        }
    }

    /// Puts `new` in the place of the stored offset, even if it lies below, and adds a line for both
    /// to the ledger. `expected` is the stored offset; `None` where it is absent or unreadable.
    ///
    /// One transaction: all or nothing.
    ///
    /// # Errors
    /// Refused when another offset than `expected` is stored: nothing was changed. Transient when
    /// the outcome is unknown: load and compare.
    pub async fn replace(&mut self, expected: Option<&Offset>, new: &Offset) -> Result<(), Error> {
        let session = self.link.get().await?;
        let work = session.replace(&self.connector, expected, new, self.ledger_entries);
        let replaced = answered(REPLACING, work).await;
        self.link.settle(replaced)?;
        self.pace.written(new.at);
        Ok(())
    }
}

impl OffsetStore for PostgresOffsetStore {
    async fn load(&mut self) -> Result<Option<Offset>, Error> {
        let session = self.link.get().await?;
        let loaded = answered(READING, session.load(&self.connector)).await;
        let (stored, line) = self.link.settle(loaded)?;
        if let Some(line) = line {
            self.pace.written(line.at);
        }
        Ok(stored)
    }

    async fn save(&mut self, offset: &Offset) -> Result<(), Error> {
        let line = self.ledger_entries > 0 && self.pace.due(offset.at);
        let session = self.link.get().await?;
        let work = session.save(&self.connector, offset, line.then_some(self.ledger_entries));
        let saved = answered(SAVING, work).await;
        self.link.settle(saved)?;
        if line {
            self.pace.written(offset.at);
        }
        Ok(())
    }

    async fn ledger(&mut self, limit: usize) -> Result<Vec<Offset>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let session = self.link.get().await?;
        let lines = answered(READING, session.ledger(&self.connector, limit)).await;
        self.link.settle(lines)
    }
}

/// A session that is opened when it is needed and dropped when it fails.
#[derive(Debug)]
struct SqlLink {
    connect: ConnectOptions,
    session: Option<Session>,
}

impl SqlLink {
    async fn get(&mut self) -> Result<&mut Session, Error> {
        let session = match self.session.take() {
            Some(session) if !session.client.is_closed() => session,
            _ => Session::open(&self.connect).await?,
        };
        Ok(self.session.insert(session))
    }

    /// Passes `done` on. After a failure of the session the next call gets a new one.
    fn settle<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        if matches!(done, Err(Error::Sql { .. } | Error::NoAnswer { .. })) {
            self.session = None;
        }
        done
    }
}

#[derive(Debug)]
struct Session {
    client: Client,
    save: Option<Statement>,
}

impl Session {
    async fn open(connect: &ConnectOptions) -> Result<Self, Error> {
        let client = connect.connect_sql().await?.client;
        // an offset that is lost with the server's memory would lie below what the slot has
        // already confirmed
        let sql = "SELECT set_config('synchronous_commit', 'on', false) \
                   WHERE current_setting('synchronous_commit') = 'off'";
        let set = async { client.batch_execute(sql).await.map_err(Error::sql(PREPARING)) };
        answered(PREPARING, set).await?;
        Ok(Self { client, save: None })
    }

    /// The stored offset, and the newest line of the ledger.
    async fn load(&self, connector: &str) -> Result<(Option<Offset>, Option<Offset>), Error> {
        let line = self.ledger(connector, 1).await?.into_iter().next();
        Ok((self.stored(connector).await?, line))
    }

    async fn stored(&self, connector: &str) -> Result<Option<Offset>, Error> {
        Ok(self.rows(connector, "connector_offset", "", 1).await?.into_iter().next())
    }

    async fn ledger(&self, connector: &str, limit: i64) -> Result<Vec<Offset>, Error> {
        self.rows(connector, "connector_ledger", "ORDER BY id DESC", limit).await
    }

    async fn rows(
        &self,
        connector: &str,
        table: &str,
        order: &str,
        limit: i64,
    ) -> Result<Vec<Offset>, Error> {
        let sql =
            format!("SELECT {COLUMNS} FROM outflow.{table} WHERE connector = $1 {order} LIMIT $2");
        let rows = self.client.query(&sql, &[&connector, &limit]).await.map_err(failed(READING))?;
        rows.iter()
            .map(|row| {
                read(row).map_err(|why| Error::BadRecord {
                    what: format!("the row of `{connector}` in outflow.{table}"),
                    why,
                })
            })
            .collect()
    }

    /// Moves the offset, with a line in a ledger of at most `ledger` lines.
    async fn save(
        &mut self,
        connector: &str,
        offset: &Offset,
        ledger: Option<i64>,
    ) -> Result<(), Error> {
        let statement = match &self.save {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(SAVE).await.map_err(failed(SAVING))?;
                self.save.insert(statement).clone()
            }
        };
        let number = |number: u64| {
            i64::try_from(number).map_err(|_| Error::BadRecord {
                what: "the offset".to_owned(),
                why: format!("{number} does not fit into a bigint"),
            })
        };
        let point = offset.resume_point();
        let row = self
            .client
            .query_one(
                &statement,
                &[
                    &connector,
                    &offset.system_identifier,
                    &i32::from_ne_bytes(offset.timeline.to_ne_bytes()),
                    &offset.slot,
                    &i16::from(offset.epoch.0),
                    &offset.position.map(|position| position.commit_lsn),
                    &offset.position.map(|position| number(position.index)).transpose()?,
                    &offset.end_lsn,
                    &offset.commit_time.map(SystemTime::from),
                    &number(offset.published_count)?,
                    &SystemTime::from(offset.at),
                    &offset.snapshot.as_ref().map(SnapshotProgress::to_json),
                    &point.lsn,
                    &number(point.published)?,
                    &ledger.is_some(),
                ],
            )
            .await
            .map_err(failed(SAVING))?;
        if row.get::<_, i64>(0) == 0 {
            let stored = self.stored(connector).await?;
            let stored = stored
                .map_or_else(|| "unknown".to_owned(), |stored| stored.resume_point().to_string());
            let (connector, own) = (connector.to_owned(), point.to_string());
            return Err(Error::Superseded { connector, stored, own });
        }
        if let Some(most) = ledger {
            let trimmed = self.client.execute(TRIM, &[&connector, &most]).await;
            trimmed.map_err(failed("trimming the ledger of the connector"))?;
        }
        Ok(())
    }

    async fn replace(
        &mut self,
        connector: &str,
        expected: Option<&Offset>,
        new: &Offset,
        ledger: i64,
    ) -> Result<(), Error> {
        self.client.batch_execute("BEGIN").await.map_err(failed(REPLACING))?;
        let replacing = async {
            let lock = "SELECT FROM outflow.connector_offset WHERE connector = $1 FOR UPDATE";
            self.client.execute(lock, &[&connector]).await.map_err(failed(REPLACING))?;
            let (stored, line) = match self.load(connector).await {
                Err(Error::BadRecord { .. }) => (None, None),
                loaded => loaded?,
            };
            if stored.as_ref() != expected {
                return Err(replaced_meanwhile(connector));
            }
            if ledger > 0 && stored.is_some() && line != stored {
                self.client.execute(LINE, &[&connector]).await.map_err(failed(REPLACING))?;
            }
            self.client.execute(LOWER, &[&connector]).await.map_err(failed(REPLACING))?;
            self.save(connector, new, (ledger > 0).then_some(ledger)).await
        };
        let replaced = replacing.await;
        let end = if replaced.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.client.batch_execute(end).await.map_err(failed(REPLACING));
        replaced.and(ended)
    }
}

/// Names what to run when the tables are not there or may not be used.
fn failed(doing: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |error| {
        let code = error.code();
        if code == Some(&SqlState::UNDEFINED_TABLE) || code == Some(&SqlState::INVALID_SCHEMA_NAME)
        {
            return Error::Refused(
                "offset.store is \"postgres\", but the source database has no table \
                 outflow.connector_offset or outflow.connector_ledger: run `outflow init`"
                    .to_owned(),
            );
        }
        if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return Error::Refused(format!(
                "{doing}: the connector's role may not use outflow.connector_offset and \
                 outflow.connector_ledger: GRANT outflow_connector to it (sql/producer, roles)"
            ));
        }
        Error::sql(doing)(error)
    }
}

fn read(row: &Row) -> Result<Offset, String> {
    let time = |time: SystemTime| Timestamp::try_from(time).map_err(|error| error.to_string());
    let count = |number: i64, name| {
        u64::try_from(number).map_err(|_| format!("column `{name}` holds {number}"))
    };
    let position = match (get::<Option<Lsn>>(row, 4)?, get::<Option<i64>>(row, 5)?) {
        (Some(commit_lsn), Some(index)) => Some(Position::new(commit_lsn, count(index, "index")?)),
        (None, None) => None,
        _ => return Err("only one of `commit_lsn` and `index` is NULL".to_owned()),
    };
    let epoch: i16 = get(row, 3)?;
    Ok(Offset {
        system_identifier: get(row, 0)?,
        timeline: u32::from_ne_bytes(get::<i32>(row, 1)?.to_ne_bytes()),
        slot: get(row, 2)?,
        epoch: Epoch(u8::try_from(epoch).map_err(|_| format!("column `epoch` holds {epoch}"))?),
        position,
        end_lsn: get(row, 6)?,
        commit_time: get::<Option<SystemTime>>(row, 7)?.map(time).transpose()?,
        published_count: count(get(row, 8)?, "published_count")?,
        at: time(get(row, 9)?)?,
        snapshot: get::<Option<String>>(row, 10)?
            .map(|json| SnapshotProgress::from_json(&json))
            .transpose()?,
    })
}

/// A column, or why it is not what it should be: the table may have been altered.
fn get<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, String> {
    row.try_get(index).map_err(|error| error.to_string())
}
