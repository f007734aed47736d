//! A connection to one server.

mod dial;
mod wakes;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use redis::aio::{AsyncStream, ConnectionLike};
use redis::{Cmd, ConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, MutexGuard};

use self::wakes::Wakes;
use crate::connection::{Outcome, outcomes};
use crate::packed::Packed;
use crate::reply::Replies;
use crate::resp::{self, Scan};

/// A connection to one server: requests and replies take turns.
///
/// The client's own connection costs a consumer 40 % of its processor time, in the parser of its
/// replies, and a connector a fifth, in copies of its commands (docs/adr/0014).
#[derive(Clone)]
pub struct Wire {
    conversation: Arc<Mutex<Conversation>>,
    reply_timeout: Duration,
    database: i64,
}

struct Conversation {
    stream: Stream,
    wakes: Wakes,
    received: BytesMut,
    /// A request was sent whose replies were not all read: whoever asks next would get them.
    is_broken: bool,
}

type Stream = std::pin::Pin<Box<dyn AsyncStream + Send + Sync>>;

/// What is read at once: replies to a read of a thousand events are half a megabyte.
const READ: usize = 128 << 10;
/// Bytes of memory that the buffer keeps between two replies.
const KEPT: usize = 1 << 20;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
/// What Redis says to a command of a transaction; a refusal is longer.
const QUEUED: &[u8] = b"+QUEUED\r\n";

impl Wire {
    /// Connects and says who it is, within `connect`; a request with its replies may take up to
    /// `reply` then.
    ///
    /// # Errors
    /// Those of the operating system, of TLS, or of Redis. A refused password is
    /// [`AuthenticationFailed`](redis::ErrorKind::AuthenticationFailed).
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub(crate) async fn open(
        info: &ConnectionInfo,
        connect: Duration,
        reply: Duration,
    ) -> RedisResult<Self> {
        let opened = async {
            let (stream, wakes) = dial::dial(info.addr()).await?;
            let mut conversation =
                Conversation { stream, wakes, received: BytesMut::new(), is_broken: false };
            dial::introduce(&mut conversation, info.redis_settings()).await?;
            Ok(conversation)
        };
        let opened = tokio::time::timeout(connect, opened).await;
        let conversation = opened.unwrap_or_else(|_| Err(timed_out("no connection", connect)))?;
        let database = info.redis_settings().db();
        let conversation = Arc::new(Mutex::new(conversation));
        Ok(Self { conversation, reply_timeout: reply, database })
    }

    /// Sends commands as one transaction (Redis documentation, "Transactions"). Returns what became of
    /// each of them.
    ///
    /// # Errors
    /// Those of the connection, and the first refusal of a command while it was queued: then nothing
    /// was done.
    ///
    /// # Cancel safety
    /// None: whether anything was done is not known, and the connection refuses further requests.
    pub(crate) async fn transaction(&self, commands: &Packed) -> RedisResult<Vec<Outcome>> {
        let request = Buf::chain(MULTI, commands.bytes()).chain(EXEC);
        let mut refused = None;
        // of MULTI and of each command; the last one is that of EXEC
        let last = commands.len() + 1;
        let mut executed = Bytes::new();
        let coming = Coming { number: last + 1, bytes: commands.len() * QUEUED.len() };
        self.request(request, coming, |index, received, length| {
            if index == last {
                executed = taken(received, length);
            } else if !received.starts_with(QUEUED) {
                let said = value(received, length)?;
                refused = refused.take().or(said.extract_error().err());
            } else {
                received.advance(length);
            }
            Ok(())
        })
        .await?;
        match refused {
            Some(error) => Err(error),
            None => outcomes(resp::reply(&executed)?.0),
        }
    }

    /// Sends commands. Returns the replies to them, among which there may be errors.
    ///
    /// # Errors
    /// Those of the connection.
    ///
    /// # Cancel safety
    /// None: whether anything was done is not known, and the connection refuses further requests.
    pub(crate) async fn replies(&self, commands: &Pipeline) -> RedisResult<Replies> {
        let packed = commands.get_packed_pipeline();
        let mut replies = Vec::with_capacity(commands.len());
        self.request(packed.as_slice(), Coming::of(commands.len()), |_, received, length| {
            replies.push(taken(received, length));
            Ok(())
        })
        .await?;
        Ok(Replies::sent(replies))
    }

    /// Sends `request` and has `take` take each reply to it off the front of what was received, where it
    /// is complete and of this length.
    async fn request(
        &self,
        request: impl Buf,
        coming: Coming,
        take: impl FnMut(usize, &mut BytesMut, usize) -> RedisResult<()>,
    ) -> RedisResult<()> {
        let mut conversation = self.conversation.lock().await;
        let exchange = exchange(&mut conversation, request, coming, take);
        let exchanged = tokio::time::timeout(self.reply_timeout, exchange).await;
        exchanged.unwrap_or_else(|_| Err(timed_out("no reply", self.reply_timeout)))
    }
}

/// One request and its replies. If it ends early, for whatever reason, the conversation is over.
async fn exchange(
    conversation: &mut MutexGuard<'_, Conversation>,
    request: impl Buf,
    coming: Coming,
    take: impl FnMut(usize, &mut BytesMut, usize) -> RedisResult<()>,
) -> RedisResult<()> {
    if std::mem::replace(&mut conversation.is_broken, true) {
        let why = "an earlier request on this connection was given up before its reply";
        return Err(io::Error::new(io::ErrorKind::NotConnected, why).into());
    }
    conversation.exchange(request, coming, take).await?;
    conversation.is_broken = false;
    Ok(())
}

/// What is known of the replies to a request.
#[derive(Debug, Clone, Copy)]
struct Coming {
    number: usize,
    /// So many bytes are certain to come.
    bytes: usize,
}

impl Coming {
    fn of(number: usize) -> Self {
        Self { number, bytes: 0 }
    }
}

impl Conversation {
    async fn exchange(
        &mut self,
        mut request: impl Buf,
        coming: Coming,
        mut take: impl FnMut(usize, &mut BytesMut, usize) -> RedisResult<()>,
    ) -> RedisResult<()> {
        let mut missing = coming.bytes;
        self.wakes.after(missing);
        self.stream.write_all_buf(&mut request).await?;
        // TLS keeps what does not fill a record
        self.stream.flush().await?;
        for index in 0..coming.number {
            let length = self.reply(&mut missing).await?;
            take(index, &mut self.received, length)?;
        }
        if self.received.is_empty() && self.received.capacity() > KEPT {
            self.received = BytesMut::new();
        }
        Ok(())
    }

    /// Waits until a whole reply is there. Returns its length.
    async fn reply(&mut self, missing: &mut usize) -> RedisResult<usize> {
        let mut scan = Scan::new();
        loop {
            if let Some(length) = scan.advance(&self.received)? {
                return Ok(length);
            }
            self.received.reserve(READ);
            let read = self.stream.read_buf(&mut self.received).await?;
            if read == 0 {
                let why = "Redis closed the connection";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into());
            }
            *missing = missing.saturating_sub(read);
            self.wakes.after(*missing);
        }
    }
}

/// Takes a reply off, and apart.
fn value(received: &mut BytesMut, length: usize) -> RedisResult<Value> {
    let (reply, _) = resp::reply(received)?;
    let value = reply.into();
    received.advance(length);
    Ok(value)
}

/// Takes a reply off as it is.
fn taken(received: &mut BytesMut, length: usize) -> Bytes {
    let reply = received.split_to(length).freeze();
    if received.is_empty() && length > KEPT {
        *received = BytesMut::new();
    }
    reply
}

fn timed_out(what: &str, limit: Duration) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {limit:?}")).into()
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let packed = command.get_packed_command();
            let mut answer = Value::Nil;
            self.request(packed.as_slice(), Coming::of(1), |_, received, length| {
                answer = value(received, length)?;
                Ok(())
            })
            .await?;
            Ok(answer)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let packed = pipeline.get_packed_pipeline();
            let mut answers = Vec::with_capacity(count);
            let mut refused = None;
            let coming = Coming::of(offset + count);
            self.request(packed.as_slice(), coming, |index, received, length| {
                match value(received, length)? {
                    reply if index >= offset => answers.push(reply),
                    // only a transaction skips replies: without one of its commands it is none
                    Value::ServerError(error) if refused.is_none() => refused = Some(error),
                    _ => {}
                }
                Ok(())
            })
            .await?;
            refused.map_or(Ok(answers), |error| Err(error.into()))
        })
    }

    fn get_db(&self) -> i64 {
        self.database
    }
}
