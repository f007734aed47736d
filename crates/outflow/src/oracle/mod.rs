//! An independent check of everything between a commit in the producer's database and a projection.
//!
//! It reads the outbox, the producers' own record of what they committed, the streams, the inbox and
//! the projection itself, and shares no code with what it checks: entries are taken apart by hand, so
//! that a fault in the codec shows. Only the names of fields come from `outflow_event`.
//!
//! | module | does |
//! | --- | --- |
//! | `check` | takes facts one by one and notes every fault; pure, so that tests can plant faults |
//! | `entry` | takes a record of a stream apart |
//! | `verdict` | what was counted and what is at fault |
//! | `collect` | reads the facts of the demo ledger from both databases and Redis |
//!
//! Nothing here depends on the rest of the crate, so that integration tests can include it:
//! `#[path = "../src/oracle/mod.rs"] mod oracle;` (which is why this file is a `mod.rs`).
//! Memory: some 250 bytes for an event.

pub(crate) mod check;
pub(crate) mod collect;
mod entry;
pub(crate) mod verdict;

#[cfg(test)]
mod tests;
