//! The connector on real servers: what the log may bring, what the broker may answer, what the
//! slot may go through, and crashes in between.
#![allow(unreachable_pub, reason = "modules of one test binary")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the test"
)]

mod apart;
mod crash;
mod decode;
mod retention;
mod rewind;
mod silence;
mod sink;
mod slot;
mod stream;
mod support;
mod topology;
