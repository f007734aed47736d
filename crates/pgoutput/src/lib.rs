//! A PostgreSQL logical replication client for `pgoutput`, protocol version 1. PostgreSQL 15 to 18.
//!
//! It connects, streams committed transactions, and confirms what the caller has made durable. It knows
//! nothing of outboxes.
//!
//! ```no_run
//! use outflow_pgoutput::{ConnectOptions, FeedbackOptions, Frame, ReplicationClient, StartOptions, message::Message};
//!
//! # async fn run() -> Result<(), outflow_pgoutput::Error> {
//! let options = ConnectOptions::parse("postgresql://outflow@db.example/shop")?;
//! let client = ReplicationClient::connect(&options).await?;
//! let mut stream = client
//!     .start_replication(StartOptions::new("outbox_slot", "outbox_pub"), FeedbackOptions::default())
//!     .await?;
//! while let Some(chunk) = stream.next().await? {
//!     for frame in chunk.frames() {
//!         let Frame::XLogData { body, wal_start, .. } = frame else { continue };
//!         match Message::decode(body) {
//!             Ok(Message::Insert(insert)) => drop(insert.new.values()),
//!             // everything of this transaction is durable elsewhere: only now
//!             Ok(Message::Commit(commit)) => stream.confirm(commit.end_lsn)?,
//!             Ok(_) => {}
//!             Err(e) => panic!("{wal_start}: {e}"),
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! | module | role |
//! | --- | --- |
//! | `config`, `tls` | connection strings, `PG*` variables, password files; certificates, channel binding |
//! | `startup`, `startup/auth` | from a list of hosts to an authenticated session with pinned settings |
//! | `client`, `query`, `slot`, `start` | commands: queries, slots, identity, timelines, `START_REPLICATION` |
//! | `stream` | the caller's end of a running stream |
//! | `link` | the task that owns the socket, the only code that moves bytes of a stream |
//! | `feedback` | pure: what to tell the server, and when |
//! | `sentinel` | notices a shutdown while nothing is read |
//! | `frame` | chunks of frames, without a copy per row |
//! | [`message`], `relation` | pure: the pgoutput messages; the tables of a connection |
//! | `error` | one error type, one decision about retries |
//!
//! # What it guarantees
//! - A flush position that did not arrive on the same link is never sent, and none ever falls.
//! - Nothing is confirmed that the caller did not confirm, except a keepalive's position when nothing is in flight.
//! - Memory is bounded by [`FeedbackOptions`], whatever the size of a transaction.
//! - The server hears from the link on time while the caller stands still, and can always shut down.
//! - No bytes from the network make it panic.

mod client;
mod config;
mod error;
mod feedback;
mod frame;
mod link;
pub mod message;
mod query;
mod reader;
mod relation;
mod sentinel;
mod slot;
mod socket;
mod start;
mod startup;
mod stream;
mod tls;
mod wire;

pub use client::{ReplicationClient, SqlConnection};
pub use config::{ConnectOptions, SslMode};
pub use error::{Error, Retry, ServerError, classify_sql};
pub use frame::{Chunk, Frame, Frames};
pub use message::TupleValue;
pub use postgres_types::PgLsn as Lsn;
pub use query::Row;
pub use relation::{Relations, Table, TableColumn};
pub use slot::{
    CreateSlotOptions, CreatedSlot, SlotInfo, Snapshot, SystemIdentity, TimelineSwitch,
    validate_slot_name,
};
pub use start::{FeedbackOptions, Origins, StartOptions};
pub use stream::{Appetite, ReplicationStream};
pub use tokio_postgres::error::SqlState;
