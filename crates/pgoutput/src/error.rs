//! What can go wrong, and whether trying again can help.

mod server;

use std::{io, time::Duration};

use tokio_postgres::error::SqlState;

pub use self::server::ServerError;
use self::server::remedy;
use crate::{Lsn, message::DecodeError};

/// What the caller should do after an error; see [`Error::retry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The cause lies in the network or in the server's present state: connect again, with a growing delay.
    Transient,
    /// The same attempt will fail the same way until a person changes something.
    Fatal,
}

/// An error of the replication client.
///
/// Every message names the thing and, where there is one, the remedy. Passwords are never part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection string, a `PG*` variable or a file that they name is not usable.
    #[error("invalid connection options: {0}")]
    Config(String),

    /// No connection to this address: refused, unreachable, unknown name.
    #[error("cannot connect to {host}: {cause}")]
    Connect {
        /// Host and port, or the directory of the Unix socket.
        host: String,
        /// What the operating system said.
        cause: io::Error,
    },

    /// The whole attempt (connect, TLS, authentication) took longer than `connect_timeout`.
    #[error("{host} did not complete the connection within {after:?} (connect_timeout)")]
    ConnectTimeout {
        /// Host and port, or the directory of the Unix socket.
        host: String,
        /// The limit.
        after: Duration,
    },

    /// TLS could not be agreed on, or the server's certificate was not accepted.
    #[error(
        "tls with {host}: {cause}; set sslrootcert to the authority that signed its certificate, \
             or sslmode=disable on a trusted network"
    )]
    Tls {
        /// Host and port.
        host: String,
        /// What the TLS layer said.
        cause: io::Error,
    },

    /// `sslmode` asks for TLS and the server does not offer it.
    #[error(
        "{host} does not offer tls: set ssl = on there, or sslmode=disable on a trusted network"
    )]
    TlsNotOffered {
        /// Host and port.
        host: String,
    },

    /// The server asked for something that this client cannot give: a missing password, an unknown method.
    #[error("authentication with {host}: {reason}")]
    Authentication {
        /// Host and port, or the directory of the Unix socket.
        host: String,
        /// What was missing.
        reason: String,
    },

    /// The address belongs to a pooler, and poolers do not carry replication.
    #[error(
        "{host} answers like a connection pooler ({reason}): the replication link must go directly \
             to postgresql, give the server's own host and port"
    )]
    Pooler {
        /// Host and port.
        host: String,
        /// What gave it away.
        reason: String,
    },

    /// The server is a standby: the slot lives on the primary.
    #[error(
        "{host} is a standby (in recovery): the slot is used on the primary; waiting for it to be \
             promoted, or add the primary's host and target_session_attrs=read-write. It said: {reason}"
    )]
    Standby {
        /// Host and port.
        host: String,
        /// The server's own words.
        reason: String,
    },

    /// The session is not of the kind that `target_session_attrs` asks for.
    #[error("{host} is {actual} but target_session_attrs={wanted}")]
    SessionAttrs {
        /// Host and port.
        host: String,
        /// What was found.
        actual: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },

    /// The server answered with an error.
    #[error("{0}")]
    Server(Box<ServerError>),

    /// A publication of the stream does not exist where the stream stands now: it was created later than that,
    /// or dropped in between. Up to PostgreSQL 17 the server gives up; from 18 on it would go on in silence
    /// without the events, so the link is ended here.
    #[error(
        "a publication of this stream does not exist at this point of the log, even if it does now ({}): \
         what was written meanwhile cannot be streamed; go on with a new slot, and publish that from the table",
        .0.message
    )]
    PublicationMissing(Box<ServerError>),

    /// An ordinary SQL connection failed.
    #[error("sql connection to {host}: {}", sql_text(.cause))]
    Sql {
        /// Host and port, or the directory of the Unix socket.
        host: String,
        /// What `tokio_postgres` said.
        cause: tokio_postgres::Error,
    },

    /// The link broke.
    #[error("the replication link broke: {0}")]
    Io(io::Error),

    /// The server closed the link without a word.
    #[error("the server closed the replication link")]
    Closed,

    /// The server is shutting down and the link was released for it. Positions not yet confirmed stay so.
    #[error("the server is shutting down ({0}); the link was released")]
    ServerShuttingDown(&'static str),

    /// Nothing was heard from the server for `peer_timeout`, although an answer was asked for.
    #[error(
        "the server has been silent for {after:?} (peer_timeout), although asked for an answer"
    )]
    PeerTimeout {
        /// The limit.
        after: Duration,
    },

    /// An orderly stop did not complete in time; the socket was closed.
    #[error(
        "the server did not end the stream within {after:?}; the link was closed. The last \
             confirmed position may not have reached the slot"
    )]
    StopTimeout {
        /// The limit.
        after: Duration,
    },

    /// One message is larger than `max_message`.
    #[error(
        "the server sent a message of {len} bytes, more than max_message = {max}: raise it, \
             or write smaller rows"
    )]
    MessageTooLarge {
        /// Its size, bytes.
        len: u64,
        /// The limit, bytes.
        max: u64,
    },

    /// Bytes that do not belong into this place of the protocol.
    #[error("unexpected answer from the server: {0}")]
    Protocol(String),

    /// A pgoutput message could not be decoded.
    #[error("cannot decode the replication message in the frame at {at}: {cause}")]
    Decode {
        /// WAL start of the frame.
        at: Lsn,
        /// Why.
        cause: DecodeError,
    },

    /// The caller confirmed a position that never arrived on this link. Nothing was sent to the server.
    #[error(
        "refused to confirm {asked}: the highest position received on this link is {received}; a \
             position from the future would make the slot skip everything up to it"
    )]
    ConfirmBeyondReceived {
        /// What was to be confirmed.
        asked: Lsn,
        /// The highest commit end or keepalive position received.
        received: Lsn,
    },

    /// Not a name that PostgreSQL accepts for a slot.
    #[error("slot name {name:?}: 1 to 63 characters of a-z, 0-9 and _ are allowed")]
    SlotName {
        /// The name.
        name: String,
    },

    /// The server is too old for what was asked.
    #[error("{what} needs postgresql {needs}, the server is {has}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
        /// Lowest major version that has it.
        needs: u32,
        /// The server's major version.
        has: u32,
    },
}

impl Error {
    /// The SQLSTATE, where the server gave one
    /// (PostgreSQL documentation, appendix A "PostgreSQL Error Codes").
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Server(e) | Self::PublicationMissing(e) => Some(&e.code),
            Self::Sql { cause, .. } => cause.code(),
            _ => None,
        }
    }

    /// Whether trying again can help. The only place where this is decided.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Standby { .. }
            | Self::SessionAttrs { .. }
            | Self::Io(_)
            | Self::Closed
            | Self::ServerShuttingDown(_)
            | Self::PeerTimeout { .. }
            | Self::StopTimeout { .. } => Retry::Transient,
            Self::Config(_)
            | Self::PublicationMissing(_)
            | Self::TlsNotOffered { .. }
            | Self::Authentication { .. }
            | Self::Pooler { .. }
            | Self::MessageTooLarge { .. }
            | Self::Protocol(_)
            | Self::Decode { .. }
            | Self::ConfirmBeyondReceived { .. }
            | Self::SlotName { .. }
            | Self::Unsupported { .. } => Retry::Fatal,
            Self::Tls { cause, .. } => {
                if is_certificate(cause) {
                    Retry::Fatal
                } else {
                    Retry::Transient
                }
            }
            Self::Server(e) => retry_of(&e.code),
            Self::Sql { cause, .. } => classify_sql(cause),
        }
    }
}

/// [`Error::retry`] for errors of an ordinary SQL connection, by the same rules.
pub fn classify_sql(e: &tokio_postgres::Error) -> Retry {
    match e.code() {
        Some(code) => retry_of(code),
        None if is_certificate(e) => Retry::Fatal,
        None if e.is_closed() || chain_has::<io::Error>(e) => Retry::Transient,
        None => Retry::Fatal,
    }
}

/// One rule for every SQLSTATE. What is not listed needs a person: an endless retry would hide it.
fn retry_of(code: &SqlState) -> Retry {
    let code = code.code();
    match code {
        // admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout, query_canceled
        "57P01" | "57P02" | "57P03" | "57P05" | "57014" => Retry::Transient,
        // too_many_connections (also max_wal_senders), out_of_memory, disk_full: the server's load passes
        "53300" | "53200" | "53100" => Retry::Transient,
        // object_in_use: the slot is held by another process; lock_not_available
        "55006" | "55P03" => Retry::Transient,
        // 08xxx connection exceptions, 40xxx rollbacks (serialization, deadlock).
        // 08P01 is a protocol violation: the same bytes will be refused again
        "08P01" => Retry::Fatal,
        _ if code.starts_with("08") || code.starts_with("40") => Retry::Transient,
        // 28xxx authorization, 3D000 no such database, 42501 privilege, 42704 undefined object,
        // 42710 duplicate object, 53400 no free slot, 55000 slot invalidated or wal_level,
        // 0A000 not supported, 58P01 WAL removed, and all others
        _ => Retry::Fatal,
    }
}

impl From<ServerError> for Error {
    fn from(e: ServerError) -> Self {
        Self::Server(Box::new(e))
    }
}

/// `tokio_postgres` says "db error" and keeps the words in its source.
fn sql_text(e: &tokio_postgres::Error) -> String {
    match (e.as_db_error(), std::error::Error::source(e)) {
        (Some(db), _) => match remedy(db.code().code()) {
            Some(remedy) => format!("{} (sqlstate {}): {remedy}", db.message(), db.code().code()),
            None => format!("{} (sqlstate {})", db.message(), db.code().code()),
        },
        (None, Some(source)) => format!("{e}: {source}"),
        (None, None) => e.to_string(),
    }
}

fn chain_has<T: std::error::Error + 'static>(e: &(dyn std::error::Error + 'static)) -> bool {
    find::<T>(e).is_some()
}

fn find<'a, T: std::error::Error + 'static>(
    e: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(found) = e.downcast_ref::<T>() {
            return Some(found);
        }
        // io::Error hides its inner error from source()
        let inner = e.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.map(|inner| inner as &(dyn std::error::Error + 'static));
        if let Some(found) = inner.and_then(<dyn std::error::Error>::downcast_ref::<T>) {
            return Some(found);
        }
        next = e.source();
    }
    None
}

/// Everything that rustls refuses is fatal: a certificate does not mend itself within a retry.
fn is_certificate(e: &(dyn std::error::Error + 'static)) -> bool {
    chain_has::<rustls::Error>(e)
}
