//! Moves events from a PostgreSQL outbox to Redis Streams.
//!
//! The connector reads the database's log. An event travels through these modules, in this order:
//!
//! | module | turns | into |
//! | --- | --- | --- |
//! | `outflow_pgoutput::stream` | bytes of the replication link | frames |
//! | [`intake`] | pgoutput messages | entries of a batch, by way of the next three |
//! | [`assembler`] | the order of messages | positions |
//! | [`outbox`] | the columns of a row | the fields of an event |
//! | [`emitted`] | a logical message | the fields of an event |
//! | [`batch`] | events | one all-or-nothing batch of entries with the offset that covers it |
//! | [`sink`] | a batch | entries in Redis, acknowledged |
//! | [`offset`] | an acknowledged batch | the stored point to resume from |
//! | [`pipeline`] | | the one loop that drives all of the above |
//!
//! Around them: [`connector`] runs pipelines one after the other and decides what is retried,
//! [`preflight`] checks both servers before the first byte is asked for, [`resume`] compares the
//! stored offset with slot and server, `rewind` keeps copies of the slot to go back to, [`snapshot`]
//! brings the rows that are older than the slot, [`watch`] looks after publication and slot while the
//! pipeline runs, [`status`] tells the outside what is going on, and [`retention`] removes what nobody
//! needs any more.
//!
//! [`polling`] is the other relay: it claims and marks rows of the outbox, and shares [`outbox`],
//! [`batch`] and [`sink`] with the connector.

pub mod assembler;
pub mod batch;
pub mod config;
pub mod connector;
pub mod emitted;
pub mod error;
pub mod intake;
mod linger;
mod metrics;
pub mod offset;
pub mod outbox;
mod patience;
pub mod pipeline;
pub mod polling;
pub mod preflight;
pub mod publisher;
pub mod resume;
pub mod retention;
mod rewind;
pub mod sink;
pub mod snapshot;
pub mod status;
mod stop;
pub mod watch;

pub use config::ConnectorConfig;
pub use error::{Error, Retry};
pub use polling::PollingConfig;
pub use stop::STOP_DEADLINE;
