//! The polling relay on real servers: alone and against others, with processes that are killed.
#![allow(unreachable_pub, reason = "modules of one test binary")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test"
)]

mod child;
mod claims;
mod contention;
mod crash;
mod outage;
mod table;
mod world;

#[path = "../connector/support.rs"]
mod support;
