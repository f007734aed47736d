//! What the link itself understands of the stream, and what it says in it.

use std::time::Instant;

use bytes::{BufMut, BytesMut};

use crate::{
    Error, Frame,
    error::ServerError,
    feedback::{Feedback, Status},
};

/// Seconds from the Unix to the PostgreSQL epoch, as microseconds.
const EPOCH_MICROS: u64 = 946_684_800_000_000;

/// What the feedback must know of a frame.
#[inline]
pub(super) fn observe(feedback: &mut Feedback, payload: &[u8]) -> Result<(), Error> {
    match Frame::parse(payload)? {
        Frame::XLogData { body, wal_start, .. } => match body.first() {
            Some(b'B') => feedback.begin(),
            Some(b'C') => match crate::message::Message::decode(body) {
                Ok(crate::message::Message::Commit(commit)) => feedback.commit(commit.end_lsn),
                Ok(_) => {}
                Err(cause) => return Err(Error::Decode { at: wal_start, cause }),
            },
            _ => {}
        },
        Frame::Keepalive { wal_end, reply_requested, .. } => {
            feedback.keepalive(Instant::now(), wal_end, reply_requested);
        }
    }
    Ok(())
}

/// A message outside of the copy stream.
pub(super) fn other(tag: u8, body: &[u8]) -> Result<(), Error> {
    match tag {
        b'E' => match ServerError::parse(body) {
            // the slot was found before the stream began: this can only be a publication
            e if e.code.code() == "42704" => Err(Error::PublicationMissing(Box::new(e))),
            e => Err(e.into()),
        },
        b'N' => match ServerError::parse(body) {
            // "skipped loading publication" of PostgreSQL 18
            e if e.routine.as_deref() == Some("LoadPublications") => {
                Err(Error::PublicationMissing(Box::new(e)))
            }
            e => {
                tracing::warn!(severity = e.severity, "{e}");
                Ok(())
            }
        },
        // a parameter changed by a reload of the configuration
        b'S' => Ok(()),
        // CommandComplete without our CopyDone: this is how a walsender takes its leave; CopyDone goes before
        b'C' => Err(Error::ServerShuttingDown("it ended the stream")),
        b'c' => Ok(()),
        _ => Err(Error::Protocol(format!("message '{}' in the stream", tag.escape_ascii()))),
    }
}

/// Standby status update (PostgreSQL documentation, "Streaming Replication Protocol").
pub(super) fn put_status(out: &mut BytesMut, status: Status) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX));
    out.put_u8(b'd');
    out.put_u32(4 + 1 + 8 * 4 + 1);
    out.put_u8(b'r');
    out.put_u64(status.write.into());
    out.put_u64(status.flush.into());
    // nothing here knows when events are applied: flushed is as far as it goes
    out.put_u64(status.flush.into());
    out.put_u64(now.saturating_sub(EPOCH_MICROS));
    out.put_u8(u8::from(status.reply));
}
