//! When to look again.

use std::time::Duration;

/// The time between two looks: at once while there is a backlog, the configured interval while
/// events come in, doubling up to the longest interval when none do.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    interval: Duration,
    longest: Duration,
    next: Duration,
}

impl Pace {
    pub(crate) fn new(interval: Duration, longest: Duration) -> Self {
        Self { interval, longest: longest.max(interval), next: interval }
    }

    /// How long to wait after a look that found `rows` when it asked for `wanted`.
    pub(crate) fn after(&mut self, rows: usize, wanted: usize) -> Duration {
        if rows >= wanted {
            self.next = self.interval;
            return Duration::ZERO;
        }
        if rows > 0 {
            self.next = self.interval;
            return self.interval;
        }
        let pause = self.next;
        self.next = self.next.saturating_mul(2).min(self.longest);
        pause
    }

    /// Somebody said that there is something.
    pub(crate) fn woken(&mut self) {
        self.next = self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_backlog_is_not_paused_for_and_silence_is_looked_at_less_often() {
        let mut pace = Pace::new(ms(50), ms(300));
        assert_eq!(pace.after(500, 500), Duration::ZERO);
        assert_eq!(pace.after(3, 500), ms(50));
        let idle: Vec<_> = (0..5).map(|_| pace.after(0, 500)).collect();
        assert_eq!(idle, [ms(50), ms(100), ms(200), ms(300), ms(300)]);
        assert_eq!(pace.after(1, 500), ms(50), "the first event brings the interval back");
        pace.after(0, 500);
        pace.woken();
        assert_eq!(pace.after(0, 500), ms(50));
    }
}
