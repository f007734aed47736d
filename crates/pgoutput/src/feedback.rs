//! What to tell the server, and when. Pure: positions and the time come in, updates come out.
//!
//! # Positions
//! - *received*: the highest end of a commit or keepalive position that arrived on this link.
//! - *confirmed*: what the caller has made durable; a commit's end, or a keepalive position.
//! - *flush*: what the server may forget: *confirmed*, or the position of a keepalive that arrived when no
//!   transaction was open and whose preceding commits are all confirmed. Only this second rule lets an idle
//!   outbox in a busy cluster release WAL, and it never passes an event that is in flight: a keepalive stands
//!   behind every commit below its position.
//!
//! None of them ever falls.
//!
//! # Shutdown of the server
//! A walsender that shuts down asks for answers until flush has reached what it sent, as fast as they come.
//! An ask that follows at once on an answer and brings nothing new is that and nothing else. If the caller
//! does not get there within `shutdown_patience`, the link has to be let go.

use std::time::{Duration, Instant};

use crate::Lsn;

/// An ask that comes this soon after an answer is no time-out's doing: the shortest sensible
/// `wal_sender_timeout` is far longer than twice this.
const PROMPT: Duration = Duration::from_millis(100);

/// Answers to asks that bring nothing new are spaced by this.
const REPEAT: Duration = Duration::from_millis(100);

/// A flush position that moved is sent after at most this long.
const MOVED: Duration = Duration::from_secs(1);

/// The same when the server waits for it.
const AWAITED: Duration = Duration::from_millis(5);

/// Longest time between updates while the socket is not read, and an ask could not be seen.
const UNREAD: Duration = Duration::from_secs(1);

/// As many asks without progress make a shutdown.
const ASKS: u32 = 3;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Where the stream was asked to start. A keepalive below it says nothing about what lies before it: the
    /// server passes over that in silence.
    pub(crate) start: Lsn,
    pub(crate) status_interval: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) shutdown_patience: Duration,
    pub(crate) idle_advance: bool,
}

/// A standby status update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) write: Lsn,
    /// 0 until something was confirmed: the server then leaves the slot alone.
    pub(crate) flush: Lsn,
    pub(crate) reply: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Status),
    /// The server shuts down and waits for positions that the caller does not confirm.
    Release,
    /// Nothing was heard for `peer_timeout`.
    Dead,
    /// Nothing before this moment.
    Wait(Instant),
}

/// A keepalive that arrived outside of any transaction.
#[derive(Debug, Clone, Copy)]
struct Idle {
    wal_end: Lsn,
    /// The last commit before it.
    after: Lsn,
}

#[derive(Debug)]
pub(crate) struct Feedback {
    limits: Limits,
    open: bool,
    received: Lsn,
    last_commit: Lsn,
    confirmed: Lsn,
    idle: Option<Idle>,
    flush: Lsn,

    sent: Option<(Instant, Lsn)>,
    started: Instant,
    heard: Instant,
    probed: bool,
    /// Position of the last ask; the server waits for flush to reach it, if it shuts down.
    asked: Lsn,
    answer_due: Option<Instant>,
    /// Asks without progress: since when, how many.
    storm: Option<(Instant, u32)>,
    /// They went on for `shutdown_patience`.
    exhausted: bool,
}

impl Feedback {
    pub(crate) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            open: false,
            received: 0.into(),
            last_commit: 0.into(),
            confirmed: 0.into(),
            idle: None,
            flush: 0.into(),
            sent: None,
            started: now,
            heard: now,
            probed: false,
            asked: 0.into(),
            answer_due: None,
            storm: None,
            exhausted: false,
        }
    }

    pub(crate) fn received(&self) -> Lsn {
        self.received
    }

    pub(crate) fn flush(&self) -> Lsn {
        self.flush
    }

    #[inline]
    pub(crate) fn begin(&mut self) {
        self.open = true;
    }

    #[inline]
    pub(crate) fn commit(&mut self, end: Lsn) {
        self.open = false;
        self.last_commit = self.last_commit.max(end);
        self.received = self.received.max(end);
    }

    pub(crate) fn keepalive(&mut self, now: Instant, wal_end: Lsn, reply_requested: bool) {
        if !self.open && wal_end >= self.limits.start {
            self.received = self.received.max(wal_end);
            if self.limits.idle_advance {
                self.idle = Some(Idle { wal_end, after: self.last_commit });
            }
        }
        self.advance();
        if reply_requested {
            self.ask(now, wal_end);
        }
    }

    fn ask(&mut self, now: Instant, wal_end: Lsn) {
        let sent = self.sent.map(|(at, _)| at);
        let prompt = sent.is_some_and(|at| now.saturating_duration_since(at) < PROMPT);
        self.storm = match self.storm {
            _ if !prompt || wal_end != self.asked => None,
            None => Some((now, 1)),
            Some((since, asks)) => Some((since, asks.saturating_add(1))),
        };
        self.asked = wal_end;
        self.exhausted = self.storm.is_some_and(|(since, asks)| {
            asks >= ASKS && now.saturating_duration_since(since) >= self.limits.shutdown_patience
        });
        let news = self.sent.is_none_or(|(_, flush)| self.flush > flush);
        self.answer_due = Some(match (self.storm, sent) {
            (Some(_), Some(at)) if !news => at + REPEAT,
            _ => now,
        });
    }

    /// The caller's confirmed position; what is not above the last one changes nothing.
    pub(crate) fn confirm(&mut self, position: Lsn) {
        self.confirmed = self.confirmed.max(position.min(self.received));
        self.advance();
    }

    fn advance(&mut self) {
        self.flush = self.flush.max(self.confirmed);
        if let Some(idle) = self.idle.filter(|idle| self.confirmed.max(self.flush) >= idle.after) {
            self.flush = self.flush.max(idle.wal_end);
            self.idle = None;
        }
    }

    /// Bytes arrived.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.probed = false;
    }

    /// The server waits for the flush position to move: the next confirmation is urgent.
    pub(crate) fn awaited(&self) -> bool {
        self.storm.is_some() && self.flush < self.asked
    }

    /// `reading` is false while the caller is behind and the socket is left alone: silence means nothing then.
    pub(crate) fn step(&mut self, now: Instant, reading: bool) -> Step {
        if !reading {
            self.heard(now);
        }
        let limits = self.limits;
        if self.exhausted && self.flush < self.asked {
            return Step::Release;
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence >= limits.peer_timeout {
            return Step::Dead;
        }
        let probe_at = self.heard + limits.peer_timeout / 2;
        if !self.probed && now >= probe_at {
            self.probed = true;
            return self.send(now, true);
        }
        let status_at = self.status_at(reading);
        if now >= status_at {
            return self.send(now, false);
        }
        let peer_at = if self.probed { self.heard + limits.peer_timeout } else { probe_at };
        Step::Wait(status_at.min(peer_at))
    }

    fn status_at(&self, reading: bool) -> Instant {
        let regular = self.limits.status_interval;
        let regular = if reading { regular } else { regular.min(UNREAD) };
        let (at, flush) = self.sent.unwrap_or((self.started, 0.into()));
        let moved = self.flush > flush;
        let interval =
            match (moved, self.awaited() || self.flush >= self.asked && flush < self.asked) {
                (true, true) => AWAITED,
                (true, false) => MOVED.min(regular),
                (false, _) => regular,
            };
        let timer = at + interval;
        self.answer_due.map_or(timer, |due| due.min(timer))
    }

    fn send(&mut self, now: Instant, reply: bool) -> Step {
        self.sent = Some((now, self.flush));
        self.answer_due = None;
        Step::Send(self.status(reply))
    }

    pub(crate) fn status(&self, reply: bool) -> Status {
        Status { write: self.received.max(self.flush), flush: self.flush, reply }
    }
}

#[cfg(test)]
mod tests;
