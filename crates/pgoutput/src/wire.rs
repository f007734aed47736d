//! Request and answer on a link that does not stream yet.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    Error,
    error::ServerError,
    reader::{Reader, Short},
    socket::Socket,
};

/// The answers to commands are small: anything above is a sign of another protocol on that port.
const MAX_ANSWER: u64 = 64 << 20;

/// One message of the server. `body` is what follows the length.
pub(crate) struct Answer {
    pub(crate) tag: u8,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The error for an answer that does not belong here.
    pub(crate) fn unexpected(&self, during: &str) -> Error {
        if self.tag == b'E' {
            return ServerError::parse(&self.body).into();
        }
        Error::Protocol(format!("message '{}' during {during}", self.tag.escape_ascii()))
    }
}

pub(crate) fn short(during: &'static str) -> impl Fn(Short) -> Error {
    move |Short| Error::Protocol(format!("a message ends too early during {during}"))
}

/// Tag and whole length of the message at the start of `bytes`; `None` until its header is there.
#[inline]
pub(crate) fn header(bytes: &[u8]) -> Result<Option<(u8, u64)>, Error> {
    let mut reader = Reader::new(bytes);
    let (Ok(tag), Ok(len)) = (reader.u8(), reader.u32()) else { return Ok(None) };
    if len < 4 {
        return Err(Error::Protocol(format!(
            "message '{}' of length {len}: is this a postgresql port?",
            tag.escape_ascii()
        )));
    }
    Ok(Some((tag, u64::from(len).saturating_add(1))))
}

pub(crate) struct Wire {
    pub(crate) socket: Socket,
    /// Received and not yet taken; whatever follows a CopyBothResponse belongs to the stream.
    pub(crate) buf: BytesMut,
}

impl Wire {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, buf: BytesMut::with_capacity(16 << 10) }
    }

    pub(crate) async fn send(&mut self, out: &[u8]) -> Result<(), Error> {
        self.socket.write_all(out).await.map_err(Error::Io)?;
        self.socket.flush().await.map_err(Error::Io)
    }

    /// The next message; parameter changes and notices are left to the caller.
    pub(crate) async fn next(&mut self) -> Result<Answer, Error> {
        loop {
            if let Some((tag, total)) = header(&self.buf)? {
                if total > MAX_ANSWER {
                    return Err(Error::MessageTooLarge { len: total, max: MAX_ANSWER });
                }
                let total = usize::try_from(total).unwrap_or(usize::MAX);
                if self.buf.len() >= total {
                    let mut body = self.buf.split_to(total).freeze();
                    body.advance(5);
                    return Ok(Answer { tag, body });
                }
                self.buf.reserve(total.saturating_sub(self.buf.len()));
            }
            self.buf.reserve(4 << 10);
            if self.socket.read_buf(&mut self.buf).await.map_err(Error::Io)? == 0 {
                return Err(Error::Closed);
            }
        }
    }
}
