//! The pgoutput messages of protocol version 1, decoded from the bytes of one frame.
//!
//! Pure: no I/O, no allocation, no panic on any bytes. Everything is borrowed from the input.
//!
//! Source: PostgreSQL documentation, "Logical Replication Message Formats" and "Logical Streaming
//! Replication Protocol".
//!
//! Row messages carry no LSN here on purpose. The WAL position of a row neither orders nor identifies it:
//! the rows of one COPY share one LSN, and a row that was written early may commit late. Only
//! [`Begin::final_lsn`] and [`Commit::end_lsn`] order anything.

mod relation;
#[cfg(test)]
mod tests;
mod tuple;

use std::{fmt, time::Duration, time::SystemTime};

pub use relation::{Column, Columns, Relation, ReplicaIdentity};
pub use tuple::{OldTuple, Tuple, TupleValue, TupleValues};

use crate::{
    Lsn,
    reader::{Reader, Short},
};

/// A time of the server: microseconds since 2000-01-01 00:00:00 UTC, as PostgreSQL sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(
    /// Microseconds since 2000-01-01 00:00:00 UTC; negative before it.
    pub i64,
);

/// 2000-01-01 00:00:00 UTC, in seconds since the Unix epoch.
const POSTGRES_EPOCH_SECONDS: i64 = 946_684_800;

impl Timestamp {
    /// Microseconds since the Unix epoch, at the ends of the range as near as an `i64` comes.
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(POSTGRES_EPOCH_SECONDS * 1_000_000)
    }

    /// The same moment as a [`SystemTime`]; [`SystemTime::UNIX_EPOCH`] if it is out of its range.
    pub fn system_time(self) -> SystemTime {
        let micros = self.unix_micros();
        let distance = Duration::from_micros(micros.unsigned_abs());
        let epoch = SystemTime::UNIX_EPOCH;
        if micros < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) }
            .unwrap_or(epoch)
    }
}

/// Why bytes are not a pgoutput message. Offsets are bytes from the start of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The first byte names no message of protocol version 1.
    #[error("unknown message kind {} (0x{kind:02x}): protocol version 1 has none of it", Printable(*.kind))]
    UnknownKind {
        /// The byte.
        kind: u8,
    },
    /// The message is shorter than its own fields say.
    #[error("a message of kind {} ends in the middle of {field}", Printable(*.kind))]
    Truncated {
        /// First byte of the message.
        kind: u8,
        /// What was being read.
        field: &'static str,
    },
    /// Bytes follow after the last field.
    #[error("a message of kind {} has {extra} bytes too many", Printable(*.kind))]
    Trailing {
        /// First byte of the message.
        kind: u8,
        /// How many.
        extra: usize,
    },
    /// A field has a value that the protocol does not know.
    #[error("a message of kind {} has the unknown value 0x{value:02x} for {field}", Printable(*.kind))]
    UnknownValue {
        /// First byte of the message.
        kind: u8,
        /// Which field.
        field: &'static str,
        /// The byte found.
        value: u8,
    },
    /// A name is not UTF-8, although the session asked for it.
    #[error("a message of kind {} has a {field} that is not utf-8", Printable(*.kind))]
    NotUtf8 {
        /// First byte of the message.
        kind: u8,
        /// Which field.
        field: &'static str,
    },
    /// The message has no bytes at all.
    #[error("empty message")]
    Empty,
}

/// A byte as a character where it is one.
struct Printable(u8);

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0.escape_ascii())
    }
}

/// One message of the stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Message<'a> {
    /// `B`: a transaction begins. It is committed already: the server sends nothing before that.
    Begin(Begin),
    /// `C`: it ends.
    Commit(Commit),
    /// `O`: the transaction came from elsewhere. Follows `Begin`, may be repeated.
    Origin(Origin<'a>),
    /// `R`: the shape of a table, before its first row and after each change of it, also inside a transaction.
    Relation(Relation<'a>),
    /// `Y`: the name of a type that is not built in, before the relation that uses it.
    Type(Type<'a>),
    /// `I`: a row was inserted.
    Insert(Insert<'a>),
    /// `U`: a row was updated.
    Update(Update<'a>),
    /// `D`: a row was deleted.
    Delete(Delete<'a>),
    /// `T`: tables were truncated.
    Truncate(Truncate<'a>),
    /// `M`: `pg_logical_emit_message`, in a transaction or outside of any.
    Message(LogicalMessage<'a>),
}

/// Start of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// LSN of the commit record: the same value as [`Commit::commit_lsn`].
    pub final_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
    /// Transaction id.
    pub xid: u32,
}

/// End of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Unused by PostgreSQL so far.
    pub flags: u8,
    /// LSN of the commit record.
    pub commit_lsn: Lsn,
    /// The byte after the commit record: the position to confirm and to resume from.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
}

/// Where a replicated transaction came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// LSN of its commit on the origin server.
    pub commit_lsn: Lsn,
    /// Name of the origin.
    pub name: &'a str,
}

/// Name of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// Its oid.
    pub oid: u32,
    /// Its schema; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// An inserted row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Insert<'a> {
    /// Oid of the table.
    pub relation: u32,
    /// The row.
    pub new: Tuple<'a>,
}

/// An updated row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update<'a> {
    /// Oid of the table.
    pub relation: u32,
    /// The old row or its key: with `replica identity full`, or where the key changed.
    pub old: Option<OldTuple<'a>>,
    /// The new row. Large columns that the update did not touch are [`TupleValue::Unchanged`].
    pub new: Tuple<'a>,
}

/// A deleted row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delete<'a> {
    /// Oid of the table.
    pub relation: u32,
    /// The row or its key.
    pub old: OldTuple<'a>,
}

/// Truncated tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// `truncate .. cascade`.
    pub cascade: bool,
    /// `truncate .. restart identity`.
    pub restart_identity: bool,
    oids: &'a [u8],
}

impl<'a> Truncate<'a> {
    /// Oids of the tables.
    pub fn relations(&self) -> impl Iterator<Item = u32> + 'a {
        self.oids.as_chunks::<4>().0.iter().map(|b| u32::from_be_bytes(*b))
    }
}

/// A message of `pg_logical_emit_message`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// False: it stands outside of any transaction, arrives without `Begin` and `Commit`, arrives even if
    /// the transaction that wrote it rolled back, and says nothing about what was delivered before it.
    pub transactional: bool,
    /// Its WAL position. Never a position to confirm.
    pub lsn: Lsn,
    /// First argument of the function, by which readers tell their own messages.
    pub prefix: &'a str,
    /// The content.
    pub content: &'a [u8],
}

impl<'a> Message<'a> {
    /// Decodes one message: the body of one [`Frame::XLogData`](crate::Frame::XLogData).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly one message of protocol version 1. The stream cannot be
    /// continued safely: report the error with the frame's WAL position and stop.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8().map_err(|Short| DecodeError::Empty)?;
        let mut r = Fields { kind, reader };
        let message = match kind {
            b'I' => Self::Insert(r.insert()?),
            b'B' => Self::Begin(r.begin()?),
            b'C' => Self::Commit(r.commit()?),
            b'R' => Self::Relation(r.relation()?),
            b'U' => Self::Update(r.update()?),
            b'D' => Self::Delete(r.delete()?),
            b'T' => Self::Truncate(r.truncate()?),
            b'O' => {
                Self::Origin(Origin { commit_lsn: r.lsn("commit lsn")?, name: r.text("name")? })
            }
            b'Y' => Self::Type(Type {
                oid: r.u32("oid")?,
                namespace: r.text("namespace")?,
                name: r.text("name")?,
            }),
            b'M' => Self::Message(r.message()?),
            kind => return Err(DecodeError::UnknownKind { kind }),
        };
        match r.reader.rest().len() {
            0 => Ok(message),
            extra => Err(DecodeError::Trailing { kind, extra }),
        }
    }
}

/// A reader that says what it was reading when the bytes ran out.
struct Fields<'a> {
    kind: u8,
    reader: Reader<'a>,
}

impl<'a> Fields<'a> {
    #[cold]
    fn short(&self, field: &'static str) -> DecodeError {
        DecodeError::Truncated { kind: self.kind, field }
    }

    #[inline]
    fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.reader.u8().map_err(|Short| self.short(field))
    }

    #[inline]
    fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.reader.u16().map_err(|Short| self.short(field))
    }

    #[inline]
    fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.reader.u32().map_err(|Short| self.short(field))
    }

    fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.reader.i32().map_err(|Short| self.short(field))
    }

    fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.reader.u64().map(Lsn::from).map_err(|Short| self.short(field))
    }

    fn time(&mut self, field: &'static str) -> Result<Timestamp, DecodeError> {
        self.reader.i64().map(Timestamp).map_err(|Short| self.short(field))
    }

    fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let bytes = self.reader.cstr().map_err(|Short| self.short(field))?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8 { kind: self.kind, field })
    }

    #[inline]
    fn take(&mut self, len: u32, field: &'static str) -> Result<&'a [u8], DecodeError> {
        // on a 16-bit machine the length would not fit: too short there, whatever it is
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.reader.take(len).map_err(|Short| self.short(field))
    }

    #[cold]
    fn unknown(&self, field: &'static str, value: u8) -> DecodeError {
        DecodeError::UnknownValue { kind: self.kind, field, value }
    }

    fn begin(&mut self) -> Result<Begin, DecodeError> {
        Ok(Begin {
            final_lsn: self.lsn("final lsn")?,
            commit_time: self.time("commit time")?,
            xid: self.u32("xid")?,
        })
    }

    fn commit(&mut self) -> Result<Commit, DecodeError> {
        Ok(Commit {
            flags: self.u8("flags")?,
            commit_lsn: self.lsn("commit lsn")?,
            end_lsn: self.lsn("end lsn")?,
            commit_time: self.time("commit time")?,
        })
    }

    #[inline]
    fn insert(&mut self) -> Result<Insert<'a>, DecodeError> {
        let relation = self.u32("relation")?;
        match self.u8("tuple kind")? {
            b'N' => Ok(Insert { relation, new: self.tuple()? }),
            other => Err(self.unknown("tuple kind", other)),
        }
    }

    fn update(&mut self) -> Result<Update<'a>, DecodeError> {
        let relation = self.u32("relation")?;
        let first = self.u8("tuple kind")?;
        let (old, next) = match first {
            b'N' => (None, first),
            _ => (Some(self.old_tuple(first)?), self.u8("tuple kind")?),
        };
        match next {
            b'N' => Ok(Update { relation, old, new: self.tuple()? }),
            other => Err(self.unknown("tuple kind", other)),
        }
    }

    fn delete(&mut self) -> Result<Delete<'a>, DecodeError> {
        let relation = self.u32("relation")?;
        let kind = self.u8("tuple kind")?;
        Ok(Delete { relation, old: self.old_tuple(kind)? })
    }

    fn truncate(&mut self) -> Result<Truncate<'a>, DecodeError> {
        let count = self.u32("number of relations")?;
        let options = self.u8("options")?;
        if options & !0b11 != 0 {
            return Err(self.unknown("options", options));
        }
        let oids = self.take(count.saturating_mul(4), "relations")?;
        Ok(Truncate { cascade: options & 1 != 0, restart_identity: options & 2 != 0, oids })
    }

    fn message(&mut self) -> Result<LogicalMessage<'a>, DecodeError> {
        let transactional = match self.u8("flags")? {
            0 => false,
            1 => true,
            other => return Err(self.unknown("flags", other)),
        };
        let lsn = self.lsn("lsn")?;
        let prefix = self.text("prefix")?;
        let len = self.u32("content length")?;
        Ok(LogicalMessage { transactional, lsn, prefix, content: self.take(len, "content")? })
    }
}
