//! `outflow lab dual-write`: an order is saved, then its publish fails.
//!
//! The program without an outbox has a database and a list of its own, so that what it breaks is not
//! mistaken for a fault of the outbox.

use std::fs;
use std::io;

use anyhow::Context;

use super::broker::DUAL_WRITE as LIST;
use super::database::Database;
use super::event::{Event, PLACED, Payload, now};
use super::folder::{DUAL_WRITE, DUAL_WRITE_DATABASE, Lab, quote};
use super::lesson::Lesson;

const TABLE: &str =
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL, qty INTEGER NOT NULL);";

const WHY: &str = "\
Database and broker share no transaction. Whatever comes first can be followed by a crash, a full
disk or a cut connection, and then one of the two knows more than the other. Publishing first
only turns it around: an event without an order. Trying again needs somebody who remembers what
to try again, and that somebody was just cut off. Nothing will ever say that order 2 is missing.";

/// Runs the step.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Lesson> {
    lab.database()?;
    let mut broker = lab.broker().await?;
    let database = fresh_database(lab)?;
    broker.forget_dual_write().await?;

    let mut program = broker.another_connection().await?;
    let client_id: u64 = redis::cmd("CLIENT").arg("ID").query_async(&mut program).await?;
    let first = database.save("pear", 2)?;
    publish(&mut program, first.id).await.context("redis: RPUSH dualwrite.events")?;

    let second = database.save("plum", 5)?;
    broker.cut(client_id).await?;
    let lost = match publish(&mut program, second.id).await {
        Err(error) => error,
        Ok(()) => anyhow::bail!("the connection was cut, and the publish did not fail"),
    };

    let (orders, published) = (database.orders()?.len(), broker.length(LIST).await?);
    let verdict = format!("INCONSISTENT orders={orders} published={published}");
    let saved = format!("order {} was saved, its event was published", first.id);
    let failed = format!(
        "order {} was saved, then Redis cut the connection; the publish failed: {lost}",
        second.id
    );
    lab.write(DUAL_WRITE, &format!("{verdict}\n{saved}\n{failed}\n"))?;
    let file = quote(database.path());
    Ok(Lesson::new("dual-write", "save the order, then publish, without an outbox", WHY)
        .said(saved)
        .said(failed)
        .said(format!("{}: {verdict}", lab.path(DUAL_WRITE).display()))
        .fact("orders", orders)
        .fact("published", published)
        .fact("file", lab.path(DUAL_WRITE).display().to_string())
        .look(format!("sqlite3 {file} 'SELECT * FROM orders'"))
        .look(broker.cli(&format!("LRANGE {LIST} 0 -1")))
        .next(lab, "place-order")
        .with(lab, &broker))
}

/// Every run begins anew.
fn fresh_database(lab: &Lab) -> anyhow::Result<Database> {
    let path = lab.path(DUAL_WRITE_DATABASE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{} cannot be removed", path.display()));
        }
        _ => {}
    }
    Database::create(path, TABLE)
}

async fn publish(
    program: &mut redis::aio::MultiplexedConnection,
    order_id: i64,
) -> anyhow::Result<()> {
    let payload = Payload { order_id, sku: None, qty: None, at: now() };
    let event = Event::of_order(order_id, 1, PLACED, serde_json::to_string(&payload)?);
    redis::cmd("RPUSH").arg(LIST).arg(event.entry()?).exec_async(program).await?;
    Ok(())
}
