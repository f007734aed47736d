//! Entries that a worker is given which has lost the stream.
//!
//! Redis knows no tokens. A worker that is paused between its look at the lease and its read is given
//! entries when it wakes up, whoever has the stream by then. It applies none of them, but they stand in
//! front of what the holder reads next. So the holder looks behind each of its reads, in the same round
//! trip, whether anybody else has something pending. What it was given itself after that stays pending,
//! and everything is taken over again, in order.

use std::time::Duration;

use outflow_broker::{Replies, Reply};
use redis::Pipeline;

use super::{End, Read, Reader};
use crate::reply;

/// What one read brought.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) read: Read,
    /// Streams of which another worker has entries.
    pub(super) elsewhere: Vec<usize>,
}

impl Reader {
    /// What is new in `streams`, and what each worker has pending in them by then. Only where streams are
    /// shared others may have something.
    pub(super) fn ask_for(&self, streams: &[usize], block: Option<Duration>) -> Pipeline {
        let config = self.config();
        let mut command = self.xreadgroup();
        if let Some(block) = block {
            command.arg("BLOCK").arg(u64::try_from(block.as_millis()).unwrap_or(u64::MAX));
        }
        command.arg("STREAMS");
        for stream in streams {
            command.arg(config.streams.get(*stream));
        }
        for _ in streams {
            command.arg(">");
        }
        let mut pipe = redis::pipe();
        pipe.add_command(command);
        if !self.shared.leases.is_shared() {
            for stream in streams {
                pipe.cmd("XPENDING").arg(config.streams.get(*stream)).arg(&config.consumer_id);
            }
        }
        pipe
    }

    /// The replies to [`Reader::ask_for`].
    pub(super) async fn answer(&self, streams: &[usize], replies: &Replies) -> Result<Answer, End> {
        // each reply is looked at by itself: the first error counts, with its code
        let mut replies = replies.read()?.into_iter().map(Reply::extract_error);
        let read = replies.next().ok_or_else(|| reply::unexpected("XREADGROUP"))??;
        let mut answer = Answer { read: self.by_index(&read).await?, elsewhere: Vec::new() };
        for (stream, pending) in streams.iter().zip(replies) {
            let elsewhere = reply::is_pending_elsewhere(pending?.into(), &self.shared.me);
            if elsewhere.ok_or_else(|| reply::unexpected("XPENDING"))? {
                answer.elsewhere.push(*stream);
            }
        }
        Ok(answer)
    }

    /// What may be handed on of what was read: nothing of a stream of which another worker has entries.
    pub(super) fn in_order(&mut self, answer: Answer) -> Read {
        let Answer { mut read, elsewhere } = answer;
        for stream in elsewhere {
            read.retain(|(of, _)| *of != stream);
            self.take_over_again(stream);
        }
        read
    }

    /// Another worker has entries of a stream that this one holds.
    pub(super) fn take_over_again(&mut self, stream: usize) {
        tracing::info!(
            stream = self.shared.key(stream),
            "a worker that has lost the stream was given entries of it all the same: they come first"
        );
        if let Some(known) = self.gaps.get_mut(stream) {
            known.forget();
        }
        self.shared.leases.take_over_stream_again(stream);
    }
}
