//! How long a batch that is not full waits for more: in a backlog a moment, otherwise not at all.
//!
//! A connector that keeps up sends what it has, for the sake of latency: some thirty entries at a
//! time when events come as fast as the server can send them, and each of these transactions costs
//! Redis and the connector as much by itself as ten entries do. Events that were old already when
//! the server sent them lose nothing by a moment more, and the server gets what that saves.

use std::time::Duration;

use tokio::time::Instant;

/// Events that are older than this when they are sent are a backlog: far above what a commit takes to
/// become durable, far below what anybody would call late.
const BACKLOG: Duration = Duration::from_millis(100);

/// Most time for a batch to become full: enough for 500 events at 50,000 a second.
const MOMENT: Duration = Duration::from_millis(10);

/// The wait of the batch that is filling.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    until: Option<Instant>,
}

impl Linger {
    /// The batch has got its first event, which was `age` old when the server sent it.
    pub(crate) fn begin(&mut self, age: Duration) {
        self.until = (age >= BACKLOG).then(|| Instant::now() + MOMENT);
    }

    /// When the wait is over; `None` if there is none.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The batch need not wait any longer, or has gone.
    pub(crate) fn end(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_batch_of_a_backlog_waits_and_only_for_a_moment() {
        let mut linger = Linger::default();
        assert_eq!(linger.until(), None);
        for fresh in [Duration::ZERO, Duration::from_millis(99)] {
            linger.begin(fresh);
            assert_eq!(linger.until(), None, "{fresh:?}");
        }
        linger.begin(Duration::from_millis(100));
        assert!(linger.until().is_some_and(|until| until <= Instant::now() + MOMENT));
        linger.end();
        assert_eq!(linger.until(), None);
    }

    #[test]
    fn the_next_batch_does_not_inherit_the_wait() {
        let mut linger = Linger::default();
        linger.begin(Duration::from_secs(3600));
        linger.begin(Duration::from_millis(1));
        assert_eq!(linger.until(), None);
    }
}
