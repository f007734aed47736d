//! The caller's end of the stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
};

use crate::{Chunk, ConnectOptions, Error, FeedbackOptions, Lsn, ReplicationClient, link::Link};

/// How the link waits for the server's bytes; see [`ReplicationStream::set_appetite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appetite {
    /// Wake up for every byte: lowest latency. For a caller that waits.
    Prompt,
    /// Wake up for [`low_water`](FeedbackOptions::low_water) bytes, or after
    /// [`linger`](FeedbackOptions::linger). For a caller that is busy with earlier chunks: the server sends
    /// each row in a packet of its own, and pays for each wake-up of the reader.
    Bulk,
}

/// What the caller and the link's task share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Highest position received. Written by the task.
    pub(crate) received: AtomicU64,
    /// Highest position confirmed. Written by the caller, never lowered.
    pub(crate) confirmed: AtomicU64,
    /// Highest flush position sent. Written by the task.
    pub(crate) flushed: AtomicU64,
    /// The server waits for a confirmation: wake the task for it. Written by the task.
    pub(crate) awaited: AtomicBool,
    /// [`Appetite::Bulk`]. Written by the caller.
    pub(crate) bulk: AtomicBool,
    /// End the stream in order. Written by the caller.
    pub(crate) stop: AtomicBool,
    /// Something above was written that the task should look at now.
    pub(crate) wake: Notify,
}

/// A running stream: chunks come out, confirmations go in.
///
/// A task owns the socket. It reads ahead within the bounds of [`FeedbackOptions`], answers the server and
/// sends status updates on its own timer, whether or not the caller reads. When the caller is behind it stops
/// reading: the server waits then, and the link stays up.
///
/// Dropping the stream ends the task and closes the socket; [`stop`](Self::stop) does it in order.
#[derive(Debug)]
pub struct ReplicationStream {
    chunks: mpsc::Receiver<Chunk>,
    shared: Arc<Shared>,
    /// `None` once its result was given out.
    task: Option<JoinHandle<Result<Lsn, Error>>>,
}

impl ReplicationStream {
    pub(crate) fn spawn(
        client: ReplicationClient,
        start: Lsn,
        feedback: FeedbackOptions,
    ) -> Result<Self, Error> {
        let (sender, chunks) = mpsc::channel(feedback.chunks);
        let shared = Arc::new(Shared::default());
        let options: ConnectOptions = client.options;
        let link =
            Link::new(client.session, options, start, feedback, sender, Arc::clone(&shared))?;
        Ok(Self { chunks, shared, task: Some(tokio::spawn(link.run())) })
    }

    /// The next chunk of the stream. `None` after the error that ended it was given.
    ///
    /// What was received before the link broke is delivered before the error.
    ///
    /// # Errors
    /// Ends the stream. [`Error::retry`] tells whether to connect again; what was not confirmed will be sent
    /// again then.
    ///
    /// # Cancel safety
    /// Cancel safe: no chunk is lost.
    pub async fn next(&mut self) -> Result<Option<Chunk>, Error> {
        if let Some(chunk) = self.chunks.recv().await {
            return Ok(Some(chunk));
        }
        let Some(task) = &mut self.task else { return Ok(None) };
        let result = task.await;
        self.task = None;
        match result {
            Ok(Err(e)) => Err(e),
            // the task ends without an error only when it is stopped, and that takes the stream
            Ok(Ok(_)) => Ok(None),
            Err(e) => Err(Error::Protocol(format!("the task of the link ended: {e}"))),
        }
    }

    /// The next chunk if one is there already.
    pub fn try_next(&mut self) -> Option<Chunk> {
        self.chunks.try_recv().ok()
    }

    /// Confirms that everything up to this position is durable on the caller's side: the server may forget
    /// it and will never send it again. Positions only rise: a lower one than before changes nothing.
    ///
    /// Give the [`end_lsn`](crate::message::Commit::end_lsn) of a commit, or the `wal_end` of a keepalive that
    /// stood outside of any transaction; never a commit LSN or the position of a row. The server is told within a
    /// second, and at once if it waits for it. Cheap enough to be called for every transaction.
    ///
    /// The server keeps the confirmed position in memory and writes it to disk now and then: after a restart
    /// of the server the slot may stand lower. Start at one's own stored position, and nothing comes again.
    ///
    /// # Errors
    /// [`Error::ConfirmBeyondReceived`] if no such position arrived on this link. Nothing is confirmed then:
    /// a position from the future would make the slot skip events for good.
    pub fn confirm(&self, end: Lsn) -> Result<(), Error> {
        let received = self.received();
        if end > received {
            return Err(Error::ConfirmBeyondReceived { asked: end, received });
        }
        let before = self.shared.confirmed.fetch_max(end.into(), Ordering::AcqRel);
        if before < u64::from(end) && self.shared.awaited.load(Ordering::Acquire) {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// The highest commit end or keepalive position received on this link; the caller may not have read it
    /// yet.
    pub fn received(&self) -> Lsn {
        self.shared.received.load(Ordering::Acquire).into()
    }

    /// The highest position confirmed by the caller on this link; 0 before the first.
    pub fn confirmed(&self) -> Lsn {
        self.shared.confirmed.load(Ordering::Acquire).into()
    }

    /// The highest flush position sent to the server; 0 before the first. With
    /// [`idle_advance`](FeedbackOptions::idle_advance) it can be above [`confirmed`](Self::confirmed).
    pub fn flushed(&self) -> Lsn {
        self.shared.flushed.load(Ordering::Acquire).into()
    }

    /// Tells the link how urgently the caller wants bytes. [`Appetite::Prompt`] at first.
    ///
    /// Set [`Appetite::Bulk`] while a batch is on its way to the sink, and [`Appetite::Prompt`] before
    /// waiting for the next chunk: what has arrived by then is read at once. Without effect on Unix sockets,
    /// whose readers are always woken.
    pub fn set_appetite(&self, appetite: Appetite) {
        let bulk = appetite == Appetite::Bulk;
        if self.shared.bulk.swap(bulk, Ordering::AcqRel) != bulk {
            self.shared.wake.notify_one();
        }
    }

    /// Ends the stream in order: what is unread is thrown away, the last flush position is sent, the server
    /// lets go of the slot, the socket is closed. Returns that flush position.
    ///
    /// # Errors
    /// [`Error::StopTimeout`] if the server did not get there by the deadline: the socket is closed all the
    /// same, and the server may send again what was confirmed last. Otherwise the error that had ended the
    /// stream already.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn stop(mut self, deadline: Duration) -> Result<Lsn, Error> {
        let Some(task) = &mut self.task else { return Ok(self.flushed()) };
        self.chunks.close();
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.notify_one();
        match tokio::time::timeout(deadline, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(e)) => Err(Error::Protocol(format!("the task of the link ended: {e}"))),
            // dropping self aborts the task
            Err(_) => Err(Error::StopTimeout { after: deadline }),
        }
    }
}

impl Drop for ReplicationStream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
