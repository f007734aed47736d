//! The sandbox against real servers.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests; here the tests' helpers use them as well"
)]

mod logs;
mod owner;
mod postgres;
mod proxy;
mod redis;
mod resident;
mod tls;
