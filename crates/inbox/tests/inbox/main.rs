//! The consumer against real servers. Names carry the number of the incident that a test guards
//! against.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "a failed assumption fails the test"
)]

mod apply;
mod attempts;
mod claim;
mod cluster;
mod conflicts;
mod crash;
mod dead_letters;
mod failure;
mod gaps;
mod group;
mod killer;
mod lost;
mod migration;
mod model;
mod paused;
mod payload;
mod pending;
mod projection;
mod retention;
mod start;
mod stop;
mod support;
mod transaction;
mod workers;
