//! What can go wrong in a relay, and whether trying again can help.

use outflow_event::PositionError;
pub use outflow_pgoutput::Retry;

/// A failure of the connector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL, on the replication link.
    #[error(transparent)]
    Replication(#[from] outflow_pgoutput::Error),
    /// PostgreSQL, on an ordinary connection.
    #[error("{doing}: {source}")]
    Sql {
        /// What the statement was for.
        doing: &'static str,
        /// What PostgreSQL or the connection said.
        source: tokio_postgres::Error,
    },
    /// Redis refuses for now.
    #[error("redis: {0}")]
    SinkUnavailable(String),
    /// Redis has taken a batch, but not made it durable yet.
    #[error(
        "redis: only {reached} of {wanted} confirmed what was written within {millis} ms \
         (sink.durability): check replicas or disk"
    )]
    Undurable {
        /// Replicas, or 1 for the local disk, that confirmed.
        reached: i64,
        /// How many are configured.
        wanted: i64,
        /// How long was waited.
        millis: u64,
    },
    /// Redis refuses for good.
    #[error("redis: {0}")]
    SinkRefused(String),
    /// Another connector has stored a later offset.
    #[error(
        "the stored offset is {stored}, beyond this connector's {own}: another connector named \
         `{connector}` has taken over"
    )]
    Superseded {
        /// The connector.
        connector: String,
        /// The stored resume point.
        stored: String,
        /// The point that was to be stored.
        own: String,
    },
    /// Redis holds less than it has acknowledged: a failover to a replica that lagged, or a restart
    /// without persistence.
    #[error(
        "redis has lost what it had acknowledged: the offset was {acked}, now {}: going back to \
         that (docs/runbook.md, \"Redis lost data\")",
        .stored.as_deref().unwrap_or("there is none")
    )]
    EntriesLost {
        /// The resume point that was acknowledged.
        acked: String,
        /// The one that is stored now.
        stored: Option<String>,
    },
    /// The same, where the offset is not kept beside the entries and so has not gone back with them.
    #[error(
        "redis: stream `{stream}` has lost entries that were acknowledged, up to {acked} (a failover, \
         a restart without persistence, or it was deleted): run `outflow offsets reset --from-rows`, \
         which publishes the rows of the outbox again; started again as it is, the connector goes \
         on behind the gap"
    )]
    StreamBehind {
        /// The stream.
        stream: String,
        /// Id of the last entry that was acknowledged.
        acked: String,
    },
    /// Source, table, publication or the table of offsets cannot be used as they are: a person has to act.
    #[error("{0}")]
    Refused(String),
    /// Stored offset, slot and server do not fit together: a person has to decide.
    #[error("{0}")]
    NoResume(crate::resume::Refusal),
    /// Slot or server cannot be used at the moment.
    #[error("{0}")]
    NotYet(crate::resume::Wait),
    /// The server ended the replication link.
    #[error("the server ended the replication link")]
    LinkClosed,
    /// Publication or slot no longer carry the outbox: nothing may be confirmed.
    #[error("{0}")]
    Unsound(String),
    /// The messages of the log make no sense.
    #[error("replication protocol: {0}")]
    Protocol(String),
    /// A stored record cannot be read.
    #[error("{what} cannot be read: {why}")]
    BadRecord {
        /// Which record.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// PostgreSQL is silent on an ordinary connection.
    #[error("{doing}: PostgreSQL has not answered for {seconds} s")]
    NoAnswer {
        /// What the statement was for.
        doing: &'static str,
        /// How long was waited.
        seconds: u64,
    },
    /// A stop took too long.
    #[error("no answer came before the end of the time for a stop")]
    GivenUp,
    /// A polling relay could not publish its rows while it held them.
    #[error(
        "the claim on {rows} rows ran out before Redis had them: they are claimed again, by \
         whichever polling relay comes first"
    )]
    LeaseLost {
        /// Rows of the batch.
        rows: usize,
    },
    /// A position that does not fit into an entry id.
    #[error(transparent)]
    Position(#[from] PositionError),
}

impl From<crate::assembler::OutOfOrder> for Error {
    fn from(error: crate::assembler::OutOfOrder) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl Error {
    /// Wraps a failed statement with what it was for.
    pub fn sql(doing: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { doing, source }
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Replication(error) => error.retry(),
            Self::Sql { source, .. } => outflow_pgoutput::classify_sql(source),
            Self::SinkUnavailable(_)
            | Self::Undurable { .. }
            | Self::Superseded { .. }
            | Self::EntriesLost { .. }
            | Self::LinkClosed
            | Self::NotYet(_)
            | Self::NoAnswer { .. }
            | Self::LeaseLost { .. }
            | Self::GivenUp
            | Self::Unsound(_) => Retry::Transient,
            Self::SinkRefused(_)
            | Self::StreamBehind { .. }
            | Self::Refused(_)
            | Self::NoResume(_)
            | Self::Protocol(_)
            | Self::BadRecord { .. }
            | Self::Position(_) => Retry::Fatal,
        }
    }
}
