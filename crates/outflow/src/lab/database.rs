//! The lab's databases: SQLite files in its folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rusqlite::{Connection, OpenFlags, Row, Transaction, params};

use super::event::{Event, PLACED, Payload, aggregate_id};

/// How long another program, such as `sqlite3`, may hold the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A row of `orders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) id: i64,
    pub(super) sku: String,
    pub(super) qty: i64,
}

/// A row of `outbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutboxRow {
    pub(super) event: Event,
    pub(super) published: bool,
}

/// What the check compares the tables with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) orders: Vec<String>,
    pub(super) outbox: Vec<String>,
    /// The default of `outbox.status`, as SQL.
    pub(super) status_default: String,
    /// Whether there is an index on pending rows only.
    pub(super) partial_index: bool,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    /// Opens the file, creates it if need be, and brings `sql` to it.
    pub(super) fn create(path: PathBuf, sql: &str) -> anyhow::Result<Self> {
        let database = Self::connect(path, OpenFlags::SQLITE_OPEN_CREATE)?;
        database.connection.execute_batch(sql).with_context(|| database.name())?;
        Ok(database)
    }

    /// Opens a file that is there.
    pub(super) fn open(path: PathBuf) -> anyhow::Result<Self> {
        Self::connect(path, OpenFlags::empty())
    }

    fn connect(path: PathBuf, flags: OpenFlags) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let flags = flags | OpenFlags::SQLITE_OPEN_READ_WRITE;
        let connection = Connection::open_with_flags(&path, flags).context(name)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(Self { path, connection })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The order alone, as a program without an outbox saves it.
    pub(super) fn save(&self, sku: &str, qty: i64) -> anyhow::Result<Order> {
        let insert = "INSERT INTO orders (sku, qty) VALUES (?1, ?2)";
        self.connection.execute(insert, params![sku, qty]).with_context(|| self.name())?;
        Ok(Order { id: self.connection.last_insert_rowid(), sku: sku.to_owned(), qty })
    }

    /// Order and event in one transaction. With `without_payload` the event breaks a rule of its
    /// table, and neither is kept.
    pub(super) fn place(
        &mut self,
        sku: &str,
        qty: i64,
        at: &str,
        without_payload: bool,
    ) -> anyhow::Result<(Order, Event)> {
        let name = self.name();
        self.try_to_place(sku, qty, at, without_payload).context(name)
    }

    fn try_to_place(
        &mut self,
        sku: &str,
        qty: i64,
        at: &str,
        without_payload: bool,
    ) -> anyhow::Result<(Order, Event)> {
        let transaction = self.connection.transaction()?;
        let insert = "INSERT INTO orders (sku, qty) VALUES (?1, ?2)";
        transaction.execute(insert, params![sku, qty])?;
        let order = Order { id: transaction.last_insert_rowid(), sku: sku.to_owned(), qty };
        let payload = serde_json::to_string(&Payload {
            order_id: order.id,
            sku: Some(order.sku.clone()),
            qty: Some(order.qty),
            at: at.to_owned(),
        })?;
        let event = Event::of_order(order.id, 1, PLACED, payload);
        insert_event(&transaction, &event, (!without_payload).then_some(&event.payload))?;
        // whatever fails above drops the transaction, which rolls it back
        transaction.commit()?;
        Ok((order, event))
    }

    /// More events of an order, in one transaction, inserted in the order of `steps`.
    pub(super) fn add_events(
        &mut self,
        order_id: i64,
        steps: &[(i64, &str)],
        at: &str,
    ) -> anyhow::Result<()> {
        let name = self.name();
        let mut add = || {
            let transaction = self.connection.transaction()?;
            for (seq, event_type) in steps {
                let at = at.to_owned();
                let payload =
                    serde_json::to_string(&Payload { order_id, sku: None, qty: None, at })?;
                let event = Event::of_order(order_id, *seq, event_type, payload);
                insert_event(&transaction, &event, Some(&event.payload))?;
            }
            anyhow::Ok(transaction.commit()?)
        };
        add().context(name)
    }

    /// Marks an event as published.
    pub(super) fn mark_published(&self, event_id: &str) -> anyhow::Result<()> {
        let update = "UPDATE outbox SET status = 'PUBLISHED' WHERE event_id = ?1";
        self.connection.execute(update, [event_id]).with_context(|| self.name())?;
        Ok(())
    }

    /// The orders, by id.
    pub(super) fn orders(&self) -> anyhow::Result<Vec<Order>> {
        self.rows("SELECT id, sku, qty FROM orders ORDER BY id", |row| {
            Ok(Order { id: row.get(0)?, sku: row.get(1)?, qty: row.get(2)? })
        })
    }

    /// All rows of the outbox, as they were inserted.
    pub(super) fn outbox(&self) -> anyhow::Result<Vec<OutboxRow>> {
        self.rows(&format!("{SELECT} ORDER BY rowid"), outbox_row)
    }

    /// What is still to be published: each aggregate in the order of its `seq`. Neither the time nor
    /// the order of insertion says that.
    pub(super) fn pending(&self) -> anyhow::Result<Vec<Event>> {
        let sql = format!("{SELECT} WHERE status = 'PENDING' ORDER BY aggregate_id, seq");
        self.rows(&sql, |row| Ok(outbox_row(row)?.event))
    }

    /// The shape of the two tables; empty where one is not there.
    pub(super) fn shape(&self) -> anyhow::Result<Shape> {
        let columns = |table: &str| {
            self.rows(
                &format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid"),
                |row| row.get(0),
            )
        };
        let default = "SELECT coalesce(dflt_value, '') FROM pragma_table_info('outbox') \
                       WHERE name = 'status'";
        let index = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND tbl_name = 'outbox' \
                     AND sql LIKE '%WHERE%status%PENDING%'";
        Ok(Shape {
            orders: columns("orders")?,
            outbox: columns("outbox")?,
            status_default: self.rows(default, |row| row.get(0))?.pop().unwrap_or_default(),
            partial_index: self.rows(index, |row| row.get::<_, i64>(0))? != [0],
        })
    }

    fn rows<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let query = || -> rusqlite::Result<Vec<T>> {
            self.connection.prepare(sql)?.query_map([], read)?.collect()
        };
        query().with_context(|| self.name())
    }
}

const SELECT: &str = "SELECT event_id, aggregate_id, seq, event_type, payload, status FROM outbox";

fn outbox_row(row: &Row<'_>) -> rusqlite::Result<OutboxRow> {
    let event = Event {
        event_id: row.get(0)?,
        aggregate_id: row.get(1)?,
        seq: row.get(2)?,
        event_type: row.get(3)?,
        payload: row.get(4)?,
    };
    Ok(OutboxRow { event, published: row.get::<_, String>(5)? == "PUBLISHED" })
}

/// The status is left to its default.
fn insert_event(
    transaction: &Transaction<'_>,
    event: &Event,
    payload: Option<&String>,
) -> rusqlite::Result<usize> {
    transaction.execute(
        "INSERT INTO outbox (event_id, aggregate_id, seq, event_type, payload) \
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![event.event_id, event.aggregate_id, event.seq, event.event_type, payload],
    )
}

impl OutboxRow {
    /// Whether it is an event of this order.
    pub(super) fn is_of(&self, order: &Order) -> bool {
        self.event.aggregate_id == aggregate_id(order.id)
    }
}
