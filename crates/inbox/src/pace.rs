//! How many entries to ask for: Redis bounds a read by their number only, memory is bounded in bytes.

/// Begins small, doubles while entries are small, and keeps a read near the budget of bytes by the
/// mean size of the entries of the last one.
#[derive(Debug)]
pub(crate) struct Pace {
    /// COUNT of the next read, for each stream.
    count: usize,
    most: usize,
    /// Bytes for each stream.
    budget: usize,
}

impl Pace {
    const FIRST: usize = 64;

    /// For reads over `streams` streams: COUNT holds for each of them, the bounds for all.
    pub(crate) fn new(batch: usize, batch_bytes: usize, streams: usize) -> Self {
        let streams = streams.max(1);
        let most = batch.div_ceil(streams);
        Self { count: most.min(Self::FIRST), most, budget: batch_bytes.div_ceil(streams) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A read brought `entries` of `bytes` in all.
    pub(crate) fn seen(&mut self, entries: usize, bytes: usize) {
        let Some(mean) = bytes.checked_div(entries) else { return };
        let fitting = self.budget / mean.max(1);
        self.count = fitting.min(self.count.saturating_mul(2)).clamp(1, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c85_large_entries_are_read_in_small_batches() {
        let mut pace = Pace::new(1_000, 1 << 20, 1);
        assert_eq!(pace.count(), 64);
        for _ in 0..10 {
            pace.seen(pace.count(), pace.count() * 300);
        }
        assert_eq!(pace.count(), 1_000);
        pace.seen(1_000, 1_000 * 18_000);
        assert_eq!(pace.count(), (1 << 20) / 18_000);
        pace.seen(1, 100 << 20);
        assert_eq!(pace.count(), 1);
        pace.seen(0, 0);
        assert_eq!(pace.count(), 1);
    }

    #[test]
    fn several_streams_share_one_batch() {
        assert_eq!(Pace::new(100, 1 << 20, 8).count(), 13);
    }
}
