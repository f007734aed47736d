//! What demo and drills share: this program as processes that are killed, and the producers.
//!
//! | module | does |
//! | --- | --- |
//! | `child` | processes that are killed and started again, and what they log |
//! | `folder` | the temporary folder of configuration and logs, with its guardian |
//! | `ways` | their configuration |
//! | `workload` | the producers |

pub(crate) mod child;
pub(crate) mod folder;
pub(crate) mod ways;
pub(crate) mod workload;

/// A projection for the demo ledger's events.
pub(crate) const PROJECTION: &str = include_str!("../../../sql/demo/consumer/projection.sql");
/// The database with the outbox.
pub(crate) const PRODUCER: &str = "shop";
/// The database with the inbox, and the consumer's id.
pub(crate) const CONSUMER: &str = "accounting";
/// Begins the keys of streams, unless told otherwise.
pub(crate) const STREAMS: &str = "outflow:";
/// The stream that the ledger's events go to.
pub(crate) const STREAM: &str = "outflow:journal";
