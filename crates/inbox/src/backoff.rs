//! Waiting between attempts: longer each time, never longer than a bound, never in step with others.

use std::time::Duration;

use rand::Rng;

/// The delays of one run of failures.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts at `first` and doubles up to `longest`.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The next delay: between a half of the nominal one and the whole of it, so that workers which
    /// failed together do not come back together.
    pub(crate) fn next(&mut self) -> Duration {
        let nominal = self.next.min(self.longest);
        self.next = nominal.saturating_mul(2).min(self.longest);
        nominal.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Something worked: the next failure starts from the beginning.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_bound_and_start_again() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut backoff = Backoff::new(first, longest);
        let delays: Vec<_> = (0..20).map(|_| backoff.next()).collect();
        assert!(delays[0] >= first / 2 && delays[0] <= first);
        assert!(delays[19] >= longest / 2 && delays.iter().all(|delay| *delay <= longest));
        backoff.reset();
        assert!(backoff.next() <= first);
    }
}
