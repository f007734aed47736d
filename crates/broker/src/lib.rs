//! How Redis is reached, for the relay and for the inbox alike: [`Target`] says where it is,
//! [`Connection`] is one connection there.
//!
//! | module | holds |
//! | --- | --- |
//! | [`target`] | one server, the primary that sentinels name, or a cluster; read from a URL |
//! | [`connection`] | a connection to any of them, and which keys of a cluster belong together |
//!
//! What an error means, and when to try again, is for the callers to say: a relay must not lose
//! its place, a consumer must not lose its pending entries.

pub mod connection;
pub mod target;

pub use connection::{Connection, Primary, Slot};
pub use target::{Server, Target, TargetError};
