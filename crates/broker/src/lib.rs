//! How Redis is reached, for the relay and for the inbox alike: [`Target`] says where it is,
//! [`Connection`] is one connection there.
//!
//! | module | holds |
//! | --- | --- |
//! | [`target`] | one server, the primary that sentinels name, or a cluster; read from a URL |
//! | [`connection`] | a connection to any of them, and which keys of a cluster belong together |
//! | [`packed`] | commands that are encoded as they come in, for what is sent by the thousand |
//! | [`reply`] | replies that are read where they are, for the same reason |
//! | `wire`, `resp` | a connection to one server: the I/O, and the form of requests and replies |
//!
//! Commands, values, errors, sentinels and clusters are those of the `redis` crate. Only what every
//! event passes is outflow's own: how its bytes are laid out, sent and taken apart.
//!
//! What an error means, and when to try again, is for the callers to say: a relay must not lose
//! its place, a consumer must not lose its pending entries.

pub mod connection;
pub mod packed;
pub mod reply;
mod resp;
pub mod target;
mod wire;

pub use connection::{Connection, Outcome, Primary, Slot};
pub use packed::{Arguments, Packed};
pub use reply::{Replies, Reply};
pub use target::{Server, Target, TargetError};
pub use wire::Wire;
