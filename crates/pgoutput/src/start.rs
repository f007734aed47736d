//! From commands to the stream: `START_REPLICATION`.
//!
//! Source: PostgreSQL documentation, "Logical Streaming Replication Parameters".

use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::{
    Error, Lsn, ReplicationClient, ReplicationStream,
    error::ServerError,
    query::{command_literal, identifier},
    slot::validate_slot_name,
    startup,
};

/// What to stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    /// The slot.
    pub slot: String,
    /// Transactions that committed below are skipped. A position below the slot's confirmed one is silently
    /// raised to it by the server, and one beyond the end of its log silently streams nothing: check both
    /// before (PostgreSQL documentation, `START_REPLICATION`). 0 means the slot's own position.
    pub start: Lsn,
    /// The publications, at least one.
    pub publications: Vec<String>,
    /// Values in binary form where the type has one.
    pub binary: bool,
    /// Messages of `pg_logical_emit_message` too.
    pub messages: bool,
    /// Which origins to send. PostgreSQL 16 and later; older servers send all.
    pub origin: Origins,
}

impl StartOptions {
    /// A slot from its own position, one publication, text values, no logical messages.
    pub fn new(slot: &str, publication: &str) -> Self {
        Self {
            slot: slot.to_owned(),
            start: 0.into(),
            publications: vec![publication.to_owned()],
            binary: false,
            messages: false,
            origin: Origins::Any,
        }
    }
}

/// Which transactions to send, by where they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origins {
    /// All of them.
    #[default]
    Any,
    /// Only those that were not replicated here from elsewhere (`origin 'none'`). PostgreSQL 16 and later.
    Local,
}

/// How the link is kept alive, and how much it may hold.
///
/// Memory of a stream: at most `(chunks + 2) * read_buffer`, plus one message of up to `max_message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedbackOptions {
    /// Longest time between two status updates, lowered to a third of the server's `wal_sender_timeout`. They
    /// are sent on this link's own timer, also while the caller is behind. Default 10 s.
    pub status_interval: Duration,
    /// Silence of the server after which it is given up; at half of it an answer is asked for. Default 60 s.
    pub peer_timeout: Duration,
    /// How long a server that shuts down waits for the caller to confirm what is in flight, before the link
    /// is released. Default 1 s.
    pub shutdown_patience: Duration,
    /// Confirm the position of a keepalive when nothing is in flight. Default true. Without it the caller
    /// sees the keepalives among the frames and may [`confirm`](ReplicationStream::confirm) them itself,
    /// for example after it has stored the position.
    pub idle_advance: bool,
    /// Bytes asked from the socket at once, and the most that a chunk holds unless one frame is larger.
    /// Default 256 KiB.
    pub read_buffer: usize,
    /// Chunks that wait for the caller before reading stops. Default 8.
    pub chunks: usize,
    /// Largest message that is accepted, bytes. Default 1 GiB and 16 MiB: PostgreSQL sends none above 1 GiB.
    pub max_message: u64,
    /// With [`Appetite::Bulk`](crate::Appetite::Bulk): bytes that must be there before the link is woken.
    /// Default 4 KiB, some ten rows: more of them spare the reader wake-ups, and cost the server the memory that it has
    /// just used, which is no longer in its processor's cache when it comes back.
    pub low_water: usize,
    /// With [`Appetite::Bulk`](crate::Appetite::Bulk): longest time that fewer bytes lie unread. Default 50 ms.
    pub linger: Duration,
    /// Size of the kernel's receive buffer (`SO_RCVBUF`), bytes; the kernel's own sizing by default.
    pub recv_buffer: Option<usize>,
}

impl Default for FeedbackOptions {
    fn default() -> Self {
        Self {
            status_interval: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(60),
            shutdown_patience: Duration::from_secs(1),
            idle_advance: true,
            read_buffer: 256 << 10,
            chunks: 8,
            max_message: (1 << 30) + (16 << 20),
            low_water: 4 << 10,
            linger: Duration::from_millis(50),
            recv_buffer: None,
        }
    }
}

impl FeedbackOptions {
    fn validate(&self) -> Result<(), Error> {
        let bad = |text: &str| Err(Error::Config(text.to_owned()));
        match self {
            o if o.status_interval.is_zero() => bad("status_interval must be above 0"),
            o if o.peer_timeout.is_zero() => bad("peer_timeout must be above 0"),
            o if o.linger.is_zero() => bad("linger must be above 0"),
            o if o.chunks == 0 => bad("chunks must be at least 1"),
            o if o.read_buffer < 4096 => bad("read_buffer must be at least 4096 bytes"),
            o if o.max_message < 4096 => bad("max_message must be at least 4096 bytes"),
            _ => Ok(()),
        }
    }
}

impl ReplicationClient {
    /// Starts the stream of a slot with `pgoutput`, protocol version 1: only committed transactions, in
    /// commit order, each in one piece.
    ///
    /// Some errors come only with the stream: a publication that does not exist is found when the first
    /// change is decoded.
    ///
    /// # Errors
    /// [`Error::Server`]: 42704 no such slot, 55006 it is in use (try again), 55000 it was invalidated.
    /// [`Error::Standby`] on a standby (try again). The client is used up in any case: connect again.
    ///
    /// # Cancel safety
    /// Dropping the future closes the link.
    pub async fn start_replication(
        mut self,
        start: StartOptions,
        mut feedback: FeedbackOptions,
    ) -> Result<ReplicationStream, Error> {
        feedback.validate()?;
        let command = self.start_command(&start)?;
        if let Some(timeout) = self.wal_sender_timeout().await? {
            feedback.status_interval = feedback.status_interval.min(timeout / 3);
        }
        let mut out = BytesMut::new();
        frontend::query(&command, &mut out)
            .map_err(|_| Error::Config("a zero byte in a publication name".into()))?;
        self.session.wire.send(&out).await?;
        loop {
            let answer = self.session.wire.next().await?;
            match answer.tag {
                // CopyBothResponse: from here on the link streams
                b'W' => break,
                b'N' => startup::notice(&answer.body),
                b'E' => {
                    let e = ServerError::parse(&answer.body);
                    return Err(self.after_refusal(e).await);
                }
                _ => return Err(answer.unexpected("START_REPLICATION")),
            }
        }
        ReplicationStream::spawn(self, start.start, feedback)
    }

    /// Silence after which the server cuts the link; `None` if it never does.
    async fn wal_sender_timeout(&mut self) -> Result<Option<Duration>, Error> {
        // in milliseconds, whatever unit it was set in
        let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'";
        let rows = self.simple_query(sql).await?;
        let millis = rows.first().and_then(|row| row.get(0)?.parse().ok()).unwrap_or(0);
        Ok((millis > 0).then(|| Duration::from_millis(millis)))
    }

    fn start_command(&self, start: &StartOptions) -> Result<String, Error> {
        validate_slot_name(&start.slot)?;
        if start.publications.is_empty() {
            return Err(Error::Config("no publication to stream".into()));
        }
        let names: Vec<_> = start.publications.iter().map(|name| identifier(name)).collect();
        let mut options =
            format!("proto_version '1', publication_names {}", command_literal(&names.join(",")));
        if start.binary {
            options.push_str(", binary 'true'");
        }
        if start.messages {
            options.push_str(", messages 'true'");
        }
        if start.origin == Origins::Local {
            let has = self.server_major();
            if has < 16 {
                return Err(Error::Unsupported { what: "origin 'none'", needs: 16, has });
            }
            options.push_str(", origin 'none'");
        }
        let slot = identifier(&start.slot);
        Ok(format!("START_REPLICATION SLOT {slot} LOGICAL {} ({options})", start.start))
    }

    async fn after_refusal(&mut self, e: ServerError) -> Error {
        if e.severity == "FATAL" || e.severity == "PANIC" {
            return e.into();
        }
        // the session stays usable after ERROR: take its ReadyForQuery, then ask for the reason behind
        loop {
            match self.session.wire.next().await {
                Ok(answer) if answer.tag == b'Z' => return self.explain(e.into()).await,
                Ok(_) => {}
                Err(_) => return e.into(),
            }
        }
    }
}
