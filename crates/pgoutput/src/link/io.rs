//! Reads and writes of the link's socket, side by side in one poll.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::{FeedbackOptions, socket::Socket};

/// A read goes into what is left of the buffer if that is at least this much; a new one is taken otherwise.
const MIN_READ: usize = 32 << 10;

/// What is to be written.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) buf: BytesMut,
    /// Given to the socket, which may hold it back still (TLS).
    pub(super) unflushed: bool,
    /// The link failed. No reason to stop reading: the server may have said why.
    pub(super) failure: Option<io::Error>,
}

/// What a turn of the loop waited for.
pub(super) enum Event {
    Read(usize),
    Written,
    Other,
}

/// Room for the next read: at least `missing` bytes of an incomplete frame, but in steps, so that memory is
/// not taken on the word of a header alone.
pub(super) fn make_room(buf: &mut BytesMut, missing: usize, options: &FeedbackOptions) {
    let left = buf.capacity().saturating_sub(buf.len());
    if left < MIN_READ.min(options.read_buffer) {
        let step = buf.len().max(options.read_buffer);
        buf.reserve(missing.clamp(options.read_buffer, step));
    }
}

/// Ready when nothing is left to write, or nothing can be written any more.
pub(super) fn poll_write(cx: &mut Context<'_>, socket: &mut Socket, out: &mut Outbox) -> Poll<()> {
    let failed = |out: &mut Outbox, e: io::Error| {
        out.failure.get_or_insert(e);
        out.buf.clear();
        out.unflushed = false;
        Poll::Ready(())
    };
    while !out.buf.is_empty() {
        match Pin::new(&mut *socket).poll_write(cx, &out.buf) {
            Poll::Ready(Ok(0)) => return failed(out, io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(n)) => {
                out.buf.advance(n);
                out.unflushed = true;
            }
            Poll::Ready(Err(e)) => return failed(out, e),
            Poll::Pending => return Poll::Pending,
        }
    }
    match Pin::new(socket).poll_flush(cx) {
        Poll::Ready(Ok(())) => {
            out.unflushed = false;
            Poll::Ready(())
        }
        Poll::Ready(Err(e)) => failed(out, e),
        Poll::Pending => Poll::Pending,
    }
}

/// Writes what is to be written, then reads up to `most` bytes. A failure is kept, and shows as the end of the input.
pub(super) fn poll_io(
    cx: &mut Context<'_>,
    socket: &mut Socket,
    buf: &mut BytesMut,
    out: &mut Outbox,
    most: usize,
) -> Poll<Event> {
    let due = !out.buf.is_empty() || out.unflushed;
    let wrote = due && poll_write(cx, socket, out).is_ready();
    if most > 0 {
        match pin!(socket.read_buf(&mut buf.limit(most))).poll(cx) {
            Poll::Ready(Ok(n)) => return Poll::Ready(Event::Read(n)),
            Poll::Ready(Err(e)) => {
                out.failure.get_or_insert(e);
                return Poll::Ready(Event::Read(0));
            }
            Poll::Pending => {}
        }
    }
    if wrote { Poll::Ready(Event::Written) } else { Poll::Pending }
}
