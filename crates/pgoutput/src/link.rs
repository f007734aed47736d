//! The task that owns the socket of a stream.
//!
//! One loop: take in what was read, pass on what is complete, answer the server, wait. Everything it holds is
//! bounded: at most `read_buffer` bytes (or one larger frame) wait here for a place in the channel, and
//! reading stops until there is one. Timers are looked at in every turn and not only when they fire, since a
//! busy socket would never let them.

mod io;
mod messages;

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;
use tokio::{io::AsyncWriteExt, sync::mpsc, time::sleep_until};

use self::{
    io::{Event, Outbox, make_room, poll_io, poll_write},
    messages::{observe, other, put_status},
};
use crate::{
    Chunk, ConnectOptions, Error, FeedbackOptions, Lsn,
    error::ServerError,
    feedback::{Feedback, Limits, Status, Step},
    sentinel::Sentinel,
    socket::Socket,
    startup::Session,
    stream::Shared,
    wire,
};

pub(crate) struct Link {
    socket: Socket,
    /// Received. The first `ready` bytes are whole frames for the caller.
    buf: BytesMut,
    ready: usize,
    /// Size of the frame behind them, as far as its header is there.
    partial: usize,
    /// The server has closed its side. What is still in `buf` is passed on before that counts.
    ended: bool,
    out: Outbox,
    feedback: Feedback,
    bulk: Bulk,
    sentinel: Sentinel,
    chunks: mpsc::Sender<Chunk>,
    shared: Arc<Shared>,
    options: FeedbackOptions,
    host: String,
}

/// State of `SO_RCVLOWAT`.
struct Bulk {
    possible: bool,
    /// Set, and until when.
    armed: Option<Instant>,
    /// Taken back because its time was over; set again with the next bytes.
    lapsed: bool,
}

impl Bulk {
    /// Everything that was there has been read: the mark is good for another while.
    fn read(&mut self, until: Instant) {
        self.lapsed = false;
        if self.armed.is_some() {
            self.armed = Some(until);
        }
    }
}

impl Link {
    pub(crate) fn new(
        session: Session,
        connect: ConnectOptions,
        start: Lsn,
        options: FeedbackOptions,
        chunks: mpsc::Sender<Chunk>,
        shared: Arc<Shared>,
    ) -> Result<Self, Error> {
        let socket = session.wire.socket;
        if let Some(bytes) = options.recv_buffer {
            socket.set_recv_buffer(bytes).map_err(Error::Io)?;
        }
        let limits = Limits {
            start,
            status_interval: options.status_interval,
            peer_timeout: options.peer_timeout,
            shutdown_patience: options.shutdown_patience,
            idle_advance: options.idle_advance,
        };
        Ok(Self {
            bulk: Bulk { possible: socket.set_low_water(1), armed: None, lapsed: false },
            socket,
            buf: session.wire.buf,
            ready: 0,
            partial: 0,
            ended: false,
            out: Outbox::default(),
            feedback: Feedback::new(limits, Instant::now()),
            sentinel: Sentinel::new(connect),
            chunks,
            shared,
            options,
            host: session.host,
        })
    }

    /// Runs until the stream is stopped (the last flush position), or ends by itself (an error).
    pub(crate) async fn run(mut self) -> Result<Lsn, Error> {
        match self.stream().await {
            Ok(()) => self.finish().await,
            Err(e) => {
                let e = self.release(e).await;
                // what came before the error belongs to the caller; the socket is closed already
                let Self { socket, mut buf, ready, chunks, .. } = self;
                drop(socket);
                if ready > 0 {
                    let chunk = Chunk::checked(buf.split_to(ready).freeze());
                    // a caller that is gone wants nothing
                    let _ = chunks.send(chunk).await;
                }
                Err(e)
            }
        }
    }

    /// `Ok` when the caller wants to stop.
    async fn stream(&mut self) -> Result<(), Error> {
        loop {
            self.take_in()?;
            self.pass_on()?;
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(());
            }
            if self.ended && self.ready == 0 {
                return Err(self.out.failure.take().map_or(Error::Closed, Error::Io));
            }
            let due = self.turn(Instant::now())?;
            match self.wait(due).await? {
                Event::Read(0) => self.ended = true,
                Event::Read(_) => {
                    let now = Instant::now();
                    self.feedback.heard(now);
                    self.bulk.read(now + self.options.linger);
                }
                Event::Written | Event::Other => {}
            }
        }
    }

    /// Walks over the frames that are complete. Messages that are not frames wait until the frames before
    /// them are passed on.
    fn take_in(&mut self) -> Result<(), Error> {
        loop {
            let fresh = self.buf.get(self.ready..).unwrap_or_default();
            let Some((tag, total)) = wire::header(fresh)? else {
                self.partial = 0;
                break;
            };
            if total > self.options.max_message {
                return Err(Error::MessageTooLarge { len: total, max: self.options.max_message });
            }
            let total = usize::try_from(total).unwrap_or(usize::MAX);
            let Some((message, _)) = fresh.split_at_checked(total) else {
                self.partial = total;
                break;
            };
            let body = message.get(5..).unwrap_or_default();
            if tag == b'd' {
                observe(&mut self.feedback, body)?;
                self.ready = self.ready.saturating_add(total);
            } else if self.ready == 0 {
                other(tag, body)?;
                self.buf.advance(total);
            } else {
                break;
            }
        }
        self.shared.received.store(self.feedback.received().into(), Ordering::Release);
        Ok(())
    }

    /// Gives the complete frames to the caller if there is a place for them.
    fn pass_on(&mut self) -> Result<(), Error> {
        while self.ready > 0 {
            let Ok(place) = self.chunks.try_reserve() else { return Ok(()) };
            place.send(Chunk::checked(self.buf.split_to(self.ready).freeze()));
            self.ready = 0;
            self.take_in()?;
        }
        Ok(())
    }

    /// Most bytes to take from the socket now: 0 while `read_buffer` bytes of whole frames wait for the caller.
    fn appetite(&self) -> usize {
        match self.ready {
            _ if self.ended => 0,
            0 => self.options.read_buffer,
            _ => self.options.read_buffer.saturating_sub(self.buf.len()),
        }
    }

    /// Timers. Returns when the next one is due.
    fn turn(&mut self, now: Instant) -> Result<Instant, Error> {
        let reading = self.appetite() > 0;
        let mut due = loop {
            self.feedback.confirm(self.shared.confirmed.load(Ordering::Acquire).into());
            match self.feedback.step(now, reading) {
                Step::Send(status) => self.put_status(status),
                Step::Release => {
                    return Err(Error::ServerShuttingDown(
                        "it waits for positions that are not yet confirmed",
                    ));
                }
                Step::Dead => return Err(Error::PeerTimeout { after: self.options.peer_timeout }),
                Step::Wait(until) => {
                    let awaited = self.feedback.awaited();
                    // a confirmation made before the wish for it was known is seen in another round
                    if self.shared.awaited.swap(awaited, Ordering::AcqRel) || !awaited {
                        break until;
                    }
                }
            }
        };
        if let Some(until) = self.bulk(now) {
            due = due.min(until);
        }
        if let Some(until) = self.sentinel.turn(now, !reading && !self.ended) {
            due = due.min(until);
        }
        Ok(due)
    }

    /// Sets and takes back the low-water mark. Returns when it is to be taken back.
    fn bulk(&mut self, now: Instant) -> Option<Instant> {
        if !self.bulk.possible {
            return None;
        }
        let wanted = self.shared.bulk.load(Ordering::Acquire);
        match self.bulk.armed {
            None if wanted && !self.bulk.lapsed => {
                if self.socket.set_low_water(self.options.low_water) {
                    self.bulk.armed = Some(now + self.options.linger);
                } else {
                    self.bulk.possible = false;
                }
            }
            Some(until) if !wanted || now >= until => {
                // signals at once what is there
                self.socket.set_low_water(1);
                self.bulk.armed = None;
                self.bulk.lapsed = wanted;
            }
            None | Some(_) => {}
        }
        self.bulk.armed
    }

    fn put_status(&mut self, status: Status) {
        // unsent updates are not followed by more of them: the next one will say as much
        if self.out.buf.len() > 1024 || self.out.failure.is_some() {
            return;
        }
        put_status(&mut self.out.buf, status);
        self.shared.flushed.store(status.flush.into(), Ordering::Release);
    }

    /// Waits for bytes, for a place in the channel, for the caller, or until `due`.
    async fn wait(&mut self, due: Instant) -> Result<Event, Error> {
        let most = self.appetite();
        if most > 0 {
            let have = self.buf.len().saturating_sub(self.ready);
            make_room(&mut self.buf, self.partial.saturating_sub(have), &self.options);
        }
        let Self { socket, buf, out, chunks, shared, sentinel, ready, .. } = self;
        tokio::select! {
            biased;
            event = poll_fn(|cx| poll_io(cx, socket, buf, out, most)) => Ok(event),
            // the place itself is taken in the next turn
            _ = chunks.reserve(), if *ready > 0 => Ok(Event::Other),
            () = shared.wake.notified() => Ok(Event::Other),
            down = sentinel.watch() => match down {
                Some(reason) => Err(Error::ServerShuttingDown(reason)),
                None => Ok(Event::Other),
            },
            () = sleep_until(due.into()) => Ok(Event::Other),
        }
    }

    /// The orderly end: last status, CopyDone, whatever the server still has, Terminate.
    async fn finish(&mut self) -> Result<Lsn, Error> {
        self.feedback.confirm(self.shared.confirmed.load(Ordering::Acquire).into());
        self.socket.set_low_water(1);
        let status = self.feedback.status(false);
        self.put_status(status);
        frontend::copy_done(&mut self.out.buf);
        loop {
            // what is unread would come again, and is thrown away
            self.buf.advance(self.ready);
            self.ready = 0;
            while let Some((tag, total)) = wire::header(&self.buf)? {
                let total = usize::try_from(total).unwrap_or(usize::MAX);
                if self.buf.len() < total {
                    // a long one need not be kept until it is whole
                    self.partial = total;
                    break;
                }
                let message = self.buf.split_to(total);
                match tag {
                    b'Z' => return self.terminate(status.flush).await,
                    b'E' => {
                        return Err(ServerError::parse(message.get(5..).unwrap_or_default()).into());
                    }
                    // frames, CopyDone, CommandComplete, notices
                    _ => {}
                }
            }
            make_room(&mut self.buf, 0, &self.options);
            let Self { socket, buf, out, options, .. } = self;
            let most = options.read_buffer;
            if let Event::Read(0) = poll_fn(|cx| poll_io(cx, socket, buf, out, most)).await {
                // a server that closed after CopyDone has heard the status before it
                return self.out.failure.take().map_or(Ok(status.flush), |e| Err(Error::Io(e)));
            }
        }
    }

    async fn terminate(&mut self, flush: Lsn) -> Result<Lsn, Error> {
        frontend::terminate(&mut self.out.buf);
        let Self { socket, out, .. } = self;
        // the stream has ended in order; a server that is gone by now needs no goodbye
        poll_fn(|cx| poll_write(cx, socket, out)).await;
        let _ = socket.shutdown().await;
        Ok(flush)
    }

    /// Lets the server go, so that it can shut down: the true position, and the end of the stream.
    async fn release(&mut self, e: Error) -> Error {
        if !matches!(e, Error::ServerShuttingDown(_)) {
            return e;
        }
        tracing::info!(host = self.host, flush = %self.feedback.flush(), "releasing the link: {e}");
        let status = self.feedback.status(false);
        self.put_status(status);
        frontend::copy_done(&mut self.out.buf);
        frontend::terminate(&mut self.out.buf);
        let Self { socket, out, .. } = self;
        let goodbye = poll_fn(|cx| poll_write(cx, socket, out));
        // best effort: a server that no longer reads is let go by closing the socket
        let _ = tokio::time::timeout(std::time::Duration::from_millis(200), goodbye).await;
        e
    }
}

#[cfg(test)]
mod tests;
