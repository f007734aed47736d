//! Frames: what a CopyData message of the stream carries.
//!
//! Source: PostgreSQL documentation, "Streaming Replication Protocol", XLogData and Primary keepalive message.

use bytes::Bytes;

use crate::{Error, Lsn, message::Timestamp, reader::Reader, wire};

/// Complete frames, in the order of the stream, in one piece of memory.
///
/// A chunk holds what one or more reads of the socket gave, so its cost is shared by many rows. Slices of it
/// ([`Self::slice`]) keep its memory alive, up to the read buffer's size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    bytes: Bytes,
}

/// One frame of the stream, borrowed from its [`Chunk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message of the output plugin.
    XLogData {
        /// WAL position of the message. For a commit it is the end LSN; for rows it orders nothing.
        wal_start: Lsn,
        /// The server's position when it sent the frame; for logical slots the same as `wal_start`.
        wal_end: Lsn,
        /// When it was sent, by the server's clock.
        server_clock: Timestamp,
        /// The message: for [`Message::decode`](crate::message::Message::decode).
        body: &'a [u8],
    },
    /// A sign of life. Everything that committed before `wal_end` was sent before it.
    Keepalive {
        /// The server has sent everything up to here.
        wal_end: Lsn,
        /// When it was sent, by the server's clock.
        server_clock: Timestamp,
        /// The server asked for an answer. The stream has given it already.
        reply_requested: bool,
    },
}

impl Chunk {
    /// A chunk of these bytes: whole CopyData messages of XLogData or keepalives. For tests and replays.
    ///
    /// # Errors
    /// [`Error::Protocol`] if they are anything else.
    pub fn from_frames(bytes: Bytes) -> Result<Self, Error> {
        let mut rest: &[u8] = &bytes;
        while !rest.is_empty() {
            let len = match wire::header(rest)? {
                Some((b'd', total)) => usize::try_from(total).unwrap_or(usize::MAX),
                _ => return Err(Error::Protocol("not a copy data message".into())),
            };
            let (whole, tail) = rest
                .split_at_checked(len)
                .ok_or_else(|| Error::Protocol("an incomplete frame".into()))?;
            Frame::parse(whole.get(5..).unwrap_or_default())?;
            rest = tail;
        }
        Ok(Self { bytes })
    }

    /// A chunk of bytes that were checked frame by frame.
    pub(crate) fn checked(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// The frames, without copying or allocating.
    #[inline]
    pub fn frames(&self) -> Frames<'_> {
        Frames { reader: Reader::new(&self.bytes) }
    }

    /// The bytes, as [`Self::from_frames`] takes them.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Size with all headers, bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True without any frame.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of a part of this chunk, such as one column value, sharing its memory. A slice that lies
    /// elsewhere is copied.
    pub fn slice(&self, part: &[u8]) -> Bytes {
        let base = self.bytes.as_ptr().addr();
        let inside = part
            .as_ptr()
            .addr()
            .checked_sub(base)
            .is_some_and(|at| at.saturating_add(part.len()) <= self.bytes.len());
        if inside { self.bytes.slice_ref(part) } else { Bytes::copy_from_slice(part) }
    }
}

/// Iterator over the frames of a [`Chunk`].
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        self.reader.u8().ok()?;
        let len = usize::try_from(self.reader.u32().ok()?).ok()?.checked_sub(4)?;
        Frame::parse(self.reader.take(len).ok()?).ok()
    }
}

impl<'a> Frame<'a> {
    /// Reads the payload of a CopyData message.
    #[inline]
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let short = wire::short("the stream");
        let mut r = Reader::new(payload);
        match r.u8().map_err(&short)? {
            b'w' => Ok(Self::XLogData {
                wal_start: r.u64().map_err(&short)?.into(),
                wal_end: r.u64().map_err(&short)?.into(),
                server_clock: Timestamp(r.i64().map_err(&short)?),
                body: r.rest(),
            }),
            b'k' => {
                let frame = Self::Keepalive {
                    wal_end: r.u64().map_err(&short)?.into(),
                    server_clock: Timestamp(r.i64().map_err(&short)?),
                    reply_requested: r.u8().map_err(&short)? != 0,
                };
                match r.rest().len() {
                    0 => Ok(frame),
                    extra => {
                        Err(Error::Protocol(format!("a keepalive with {extra} bytes too many")))
                    }
                }
            }
            other => Err(Error::Protocol(format!(
                "a frame of kind '{}' in the stream",
                other.escape_ascii()
            ))),
        }
    }
}
