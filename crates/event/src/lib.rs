//! What outflow moves: an [`Event`], its [`Position`] in the commit order of the source, and the
//! Redis Streams entry that carries both.
//!
//! | module | holds |
//! | --- | --- |
//! | [`position`] | commit LSN + index, epoch, and the entry id made of them |
//! | [`event`] | the event, borrowed (on its way out) and owned (on its way in) |
//! | [`entry`] | the one place where entries are encoded and decoded |
//! | [`search`] | where in a stream a moment lies |
//! | [`stream`] | which stream key an aggregate belongs to |
//!
//! The crate is pure: no I/O, no clock, no allocation on the way out.

pub mod entry;
pub mod event;
pub mod position;
pub mod search;
pub mod stream;

pub use entry::{Entry, Malformed};
pub use event::{Event, EventRef};
pub use position::{EntryId, Epoch, Lsn, Position, PositionError};
pub use search::AgeSearch;
pub use stream::StreamNaming;
