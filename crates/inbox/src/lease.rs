//! Which streams this worker reads.
//!
//! A stream is read by one worker of a consumer at a time: only so are the events of an aggregate
//! applied in order. The worker holds a lease in `outflow.position`, with a token that rises whenever
//! another one takes it. Each transaction writes the position of its streams anyway, and does so only
//! under the newest token: a worker that was paused past its lease and wakes up is refused there,
//! whatever it believes, and at no extra cost.
//!
//! Whoever takes a stream first takes over everything that is pending in it, in order. A read is begun
//! only if it ends before the lease does, so that what a paused worker was handed is pending by then; and
//! where the pause comes in between the two, the next holder sees it (`reader/fence.rs`).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The lease of one stream.
#[derive(Debug, Clone, Copy, Default)]
struct Lease {
    /// `None`: another worker has the stream, or nobody.
    token: Option<i64>,
    /// By this process's clock, counted from before the lease was asked for.
    until: Option<Instant>,
    /// Pending entries have been taken over: new ones may be read.
    taken_over: bool,
    /// To be given up as soon as nothing of it is in work.
    giving_up: bool,
    /// The reader is at it.
    reading: bool,
    /// The applier is at what is parked of it.
    in_round: bool,
}

/// What reader, applier and keeper share about leases.
#[derive(Debug)]
pub(crate) struct Leases {
    leases: Mutex<Vec<Lease>>,
    changed: Notify,
    wanted: Notify,
    /// The streams are shared with others and nobody holds any: no leases are needed.
    shared: bool,
}

/// A stream, by its index, and the token under which it is held.
pub(crate) type Held = (usize, i64);

impl Leases {
    /// For so many streams; with `shared` they are all readable from the beginning, for ever.
    pub(crate) fn new(streams: usize, shared: bool) -> Self {
        let token = shared.then_some(0);
        let lease = Lease { token, ..Lease::default() };
        Self {
            leases: Mutex::new(vec![lease; streams]),
            changed: Notify::new(),
            wanted: Notify::new(),
            shared,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// The streams that may be read now, for as long as a read may take, marked as being read until
    /// [`Leases::read`]: a read that outlasts the lease could take entries from the next holder.
    pub(crate) fn begin_read(&self, longest: Duration) -> Vec<Held> {
        self.mark(longest, |lease| lease.reading = true)
    }

    /// What was read is in flight, or nothing was.
    pub(crate) fn read(&self) {
        self.lock().iter_mut().for_each(|lease| lease.reading = false);
    }

    /// The streams of which parked events may be applied now, until [`Leases::end_round`].
    pub(crate) fn begin_round(&self) -> Vec<Held> {
        self.mark(Duration::ZERO, |lease| lease.in_round = true)
    }

    pub(crate) fn end_round(&self) {
        self.lock().iter_mut().for_each(|lease| lease.in_round = false);
    }

    fn mark(&self, longest: Duration, mark: impl Fn(&mut Lease)) -> Vec<Held> {
        let end = Instant::now() + longest;
        let mut leases = self.lock();
        let usable = leases.iter_mut().enumerate().filter_map(|(stream, lease)| {
            let valid = lease.until.is_none_or(|until| end < until) && !lease.giving_up;
            let token = lease.token.filter(|_| valid)?;
            mark(lease);
            Some((stream, token))
        });
        usable.collect()
    }

    /// Whether the stream's pending entries have been taken over under this lease.
    pub(crate) fn is_taken_over(&self, stream: usize) -> bool {
        self.lock().get(stream).is_some_and(|lease| lease.taken_over)
    }

    pub(crate) fn taken_over(&self, (stream, token): Held) {
        if let Some(lease) = self.lock().get_mut(stream).filter(|l| l.token == Some(token)) {
            lease.taken_over = true;
        }
    }

    /// A connection to Redis was lost, and replies with it: what they held is pending.
    pub(crate) fn take_over_again(&self) {
        self.lock().iter_mut().for_each(|lease| lease.taken_over = false);
    }

    /// Another worker was given entries of the stream: they come first.
    pub(crate) fn take_over_stream_again(&self, stream: usize) {
        if let Some(lease) = self.lock().get_mut(stream) {
            lease.taken_over = false;
        }
    }

    /// The token under which the stream is held now.
    pub(crate) fn token(&self, stream: usize) -> Option<i64> {
        self.lock().get(stream).and_then(|lease| lease.token)
    }

    /// What is held, given up or not.
    pub(crate) fn held(&self) -> Vec<Held> {
        let leases = self.lock();
        let held = leases.iter().enumerate();
        held.filter_map(|(stream, lease)| Some((stream, lease.token?))).collect()
    }

    /// The lease was granted or is valid for longer.
    pub(crate) fn grant(&self, (stream, token): Held, until: Instant) {
        if let Some(lease) = self.lock().get_mut(stream) {
            if lease.token != Some(token) {
                *lease = Lease { token: Some(token), ..Lease::default() };
            }
            lease.until = Some(until);
        }
        self.changed.notify_waiters();
    }

    /// The lease is gone: another worker has the stream.
    pub(crate) fn lose(&self, (stream, token): Held) {
        if let Some(lease) = self.lock().get_mut(stream).filter(|l| l.token == Some(token)) {
            *lease = Lease { reading: lease.reading, in_round: lease.in_round, ..Lease::default() };
        }
        self.changed.notify_waiters();
    }

    /// Whatever the token: something of the stream was read under another one, and left pending. It is
    /// to be taken anew.
    pub(crate) fn lose_stream(&self, stream: usize) {
        if let Some(token) = self.token(stream) {
            self.lose((stream, token));
        }
    }

    /// Stops reading so many streams, to leave them to others.
    pub(crate) fn give_up(&self, number: usize) {
        let mut leases = self.lock();
        let already = leases.iter().filter(|lease| lease.giving_up).count();
        let held =
            leases.iter_mut().rev().filter(|lease| lease.token.is_some() && !lease.giving_up);
        held.take(number.saturating_sub(already)).for_each(|lease| lease.giving_up = true);
    }

    /// Given up, and nothing of it is in work according to `in_flight`.
    pub(crate) fn releasable(&self, in_flight: impl Fn(usize) -> bool) -> Vec<Held> {
        let leases = self.lock();
        let idle = |lease: &Lease| lease.giving_up && !lease.reading && !lease.in_round;
        let given = leases.iter().enumerate().filter(|(n, lease)| idle(lease) && !in_flight(*n));
        given.filter_map(|(stream, lease)| Some((stream, lease.token?))).collect()
    }

    /// Streams may be free, or there may be some for the first time.
    pub(crate) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Waits until somebody wants streams.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until something has been granted or lost, at most for `longest`.
    pub(crate) async fn changed(&self, longest: Duration) {
        let _ = tokio::time::timeout(longest, self.changed.notified()).await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Lease>> {
        // whole at every moment, whoever panicked
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many streams to take or to give up, so that all workers have the same number, or one more.
///
/// `others` is how many streams each other live worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Balance {
    Take(usize),
    GiveUp(usize),
    Keep,
}

pub(crate) fn balance(streams: usize, mine: usize, others: &[usize]) -> Balance {
    let share = streams.div_ceil(others.len() + 1);
    let fewest = others.iter().copied().min().unwrap_or(mine);
    if mine >= fewest + 2 {
        Balance::GiveUp((mine - fewest) / 2)
    } else if mine < share && mine <= fewest {
        Balance::Take(share - mine)
    } else {
        Balance::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lease_that_ran_out_is_not_used() {
        let leases = Leases::new(2, false);
        assert_eq!(leases.begin_read(Duration::ZERO), []);
        leases.grant((0, 1), Instant::now() + Duration::from_secs(60));
        leases.grant((1, 7), Instant::now());
        assert_eq!(leases.begin_read(Duration::from_secs(90)), []);
        assert_eq!(leases.begin_read(Duration::ZERO), [(0, 1)]);
        assert_eq!(leases.held(), [(0, 1), (1, 7)]);
        leases.lose((0, 2));
        assert_eq!(leases.token(0), Some(1));
        leases.lose((0, 1));
        assert_eq!(leases.begin_round(), []);
    }

    #[test]
    fn a_stream_is_released_when_nothing_of_it_is_in_work() {
        let leases = Leases::new(1, false);
        leases.grant((0, 1), Instant::now() + Duration::from_secs(60));
        assert_eq!(leases.begin_read(Duration::ZERO), [(0, 1)]);
        leases.give_up(1);
        assert_eq!(leases.releasable(|_| false), []);
        leases.read();
        assert_eq!(leases.begin_read(Duration::ZERO), []);
        assert_eq!(leases.releasable(|_| true), []);
        assert_eq!(leases.releasable(|_| false), [(0, 1)]);
    }

    #[test]
    fn a_new_token_means_that_pending_entries_are_taken_over_again() {
        let leases = Leases::new(1, false);
        let later = Instant::now() + Duration::from_secs(60);
        leases.grant((0, 1), later);
        leases.taken_over((0, 2));
        assert!(!leases.is_taken_over(0));
        leases.taken_over((0, 1));
        leases.grant((0, 1), later);
        assert!(leases.is_taken_over(0));
        leases.grant((0, 2), later);
        assert!(!leases.is_taken_over(0));
    }

    proptest! {
        /// Whoever acts in whatever order: in the end all streams are held, and nobody has two more
        /// than another.
        #[test]
        fn shares_come_out_even(streams in 1_usize..40, workers in 1_usize..8, seed: u64) {
            let mut held = vec![0; workers];
            let mut free = streams;
            let mut random = seed;
            for _ in 0..400 * workers {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let me = usize::try_from(random >> 33).unwrap() % workers;
                let others: Vec<usize> =
                    (0..workers).filter(|n| *n != me).map(|n| held[n]).collect();
                match balance(streams, held[me], &others) {
                    Balance::Take(number) => {
                        let got = number.min(free);
                        held[me] += got;
                        free -= got;
                    }
                    Balance::GiveUp(number) => {
                        held[me] -= number;
                        free += number;
                    }
                    Balance::Keep => {}
                }
            }
            prop_assert_eq!(free, 0);
            prop_assert!(held.iter().max().unwrap() - held.iter().min().unwrap() <= 1);
        }
    }
}
