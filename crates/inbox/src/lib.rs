//! Applies events from Redis Streams to PostgreSQL, each exactly once.
//!
//! A delivery is a fact of Redis, an event is a fact of the business: entries come again after every
//! crash, claim and failover. So the consumer's database decides. In one transaction the event's id
//! goes into the inbox together with its payload, and its effect into the projection; XACK follows
//! the commit. An id that is there already is a duplicate (acknowledged and counted) or, with another
//! payload, a conflict (stored for a person, never applied).
//!
//! | module | holds |
//! | --- | --- |
//! | [`config`] | options, checked into a configuration |
//! | [`consumer`] | [`Consumer`]: the three parts below, and their end |
//! | `reader` | XREADGROUP: own pending entries, then new ones; XAUTOCLAIM |
//! | `applier` | batches to transactions, again until they commit |
//! | `acker` | XACK after the commit; lag |
//! | `lease`, `keeper` | which streams this worker reads, and its name |
//! | `apply` | one batch, one transaction |
//! | `session` | the connection that this is done on |
//! | `failure` | why a batch was rolled back, and whose fault that was |
//! | `transaction` | [`Transaction`]: stays in the inbox's hands while a handler runs in it |
//! | `bisect` | which events of a batch the handler cannot apply |
//! | `aside` | what becomes of them: another attempt, a dead letter; what waits behind them |
//! | `parking` | the SQL of events that are held back |
//! | `sequence` | gaps in the producer's numbers |
//! | `round` | events that are due: another attempt, or free to go on |
//! | `statements` | the inbox's SQL |
//! | `groups` | groups, created and rebuilt at the stored position |
//! | `lost` | entries that the stream lost before they were applied |
//! | `replace` | conflicts settled by applying the other event |
//! | `start` | where a new consumer begins |
//! | [`conflicts`] | conflicts, looked at and settled |
//! | [`handler`] | [`Handler`]: what Rust users implement |
//! | [`projection`] | [`SqlProjection`]: a projection that is a file of SQL |
//! | [`dead_letters`] | list, retry and discard what was set aside |
//! | [`retention`] | removes what cannot come again |
//! | [`testkit`] | for tests of handlers |
//! | [`status`] | why it stands still |
//! | [`metrics`] | names of the metrics |
//!
//! The tables are in `sql/consumer`, one file after the other, to be read before they are run.

pub mod config;
pub mod conflicts;
pub mod consumer;
pub mod database;
pub mod dead_letters;
pub mod error;
pub mod handler;
pub mod metrics;
pub mod projection;
pub mod retention;
pub mod status;
pub mod testkit;

mod acker;
mod applier;
mod apply;
mod aside;
mod backoff;
mod bisect;
mod broker;
mod delivery;
mod encoded;
mod failure;
mod groups;
mod json;
mod keeper;
mod lease;
mod lost;
mod pace;
mod parking;
mod reader;
mod replace;
mod reply;
mod report;
mod round;
mod sequence;
mod session;
mod start;
mod statements;
mod time;
mod transaction;

pub use outflow_broker::Target;

pub use config::{ConsumerConfig, ConsumerOptions, OnFailure, OnGap, Start};
pub use consumer::{Consumer, Summary};
pub use database::{Connect, ConnectError, connect_no_tls};
pub use delivery::Delivery;
pub use error::{ConfigError, Error, Retry};
pub use handler::{Handler, HandlerError};
pub use projection::{ProjectionError, SqlProjection};
pub use start::{HeldStream, StartNeeded};
pub use status::{Counts, Held, State, Status};
pub use transaction::Transaction;
