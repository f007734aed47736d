//! The client against real PostgreSQL servers. Test names carry the number of the incident that they stand
//! for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "clippy knows test functions, but not their helpers"
)]

mod auth;
mod commands;
mod content;
mod hosts;
mod link;
mod positions;
mod shutdown;
mod support;
