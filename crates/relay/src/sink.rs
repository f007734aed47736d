//! The sink: where entries go.
//!
//! A batch is one MULTI/EXEC transaction (Redis documentation, "Transactions"). Redis checks a
//! command's preconditions (memory, role, permissions) when it is queued and refuses the whole
//! transaction if one fails, so a refusal leaves nothing behind. What a command meets while the
//! transaction runs (a key of another type, an id that is not above the last one) does not undo
//! its neighbours: the offset's script therefore looks whether the entries are there before it
//! moves the offset, and every single reply is checked here.

pub mod connection;
mod redis;
pub(crate) mod refusal;

pub use self::redis::RedisSink;
pub(crate) use refusal::{classify, classify_server_error};

use crate::batch::Batch;
use crate::error::Error;

/// Publishes batches.
pub trait Sink: Send {
    /// Publishes a batch and returns when it is acknowledged as the configured durability asks.
    ///
    /// Idempotent with entry ids made from positions: a batch whose outcome is unknown is
    /// published again and leaves one copy of each entry.
    ///
    /// # Errors
    /// Transient: nothing may have been published, or all of it; publish the same batch again.
    /// [`Error::Superseded`]: another connector is ahead; drop the batch and start over from the
    /// stored offset. Fatal: nothing further can be published until a person has acted.
    fn publish(&mut self, batch: &Batch) -> impl Future<Output = Result<(), Error>> + Send;
}
