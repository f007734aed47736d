//! Entries that went before they were delivered: in front of the group, or already behind it.
//!
//! In front of it they are seen by the counters of stream and group. But a stream may be trimmed, and
//! the group read on over what is missing, between two looks. So it is remembered how many entries the
//! group had behind it at a look: what was added since, is behind it now, and was not given to this
//! worker is missing.

use outflow_broker::Connection;
use outflow_event::EntryId;

use super::Reader;
use crate::broker;
use crate::lost::{self, Place, Range};
use crate::reply::Delivered;

/// What is known about one stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// The end of the last gap that was named.
    named: EntryId,
    /// Where the group stood at the last look, under the lease of that token.
    mark: Option<(i64, Delivered)>,
    /// New entries that this worker was given since.
    since: u64,
}

impl Known {
    pub(super) fn read(&mut self, entries: usize) {
        self.since = self.since.saturating_add(entries as u64);
    }

    /// A lost connection may have taken replies with it: what was given is not known.
    pub(super) fn forget(&mut self) {
        self.mark = None;
    }

    /// What the group has gone over since the last look and this worker was not given. Another
    /// worker may have been given it where the token is another one. What stands in front of the
    /// group is named by itself.
    fn passed(&self, token: i64, now: Delivered, in_front: u64) -> Option<Range> {
        let (_, mark) = self.mark.filter(|(of, _)| *of == token)?;
        let gone = now.count.checked_sub(mark.count)?;
        let entries = gone.checked_sub(self.since)?.checked_sub(in_front)?;
        let range = Range { above: mark.last, up_to: now.last, entries };
        (entries > 0 && mark.last < now.last).then_some(range)
    }

    fn stand(&mut self, mark: Option<(i64, Delivered)>) {
        self.mark = mark;
        self.since = 0;
    }
}

impl Reader {
    /// Names entries of all streams that went before they were delivered.
    pub(super) async fn look_for_gaps(&mut self, redis: &mut Connection) {
        for stream in 0..self.gaps.len() {
            self.look_for_gap(redis, stream).await;
        }
    }

    /// Names entries that went before they were delivered. Best effort: the next round looks again.
    pub(super) async fn look_for_gap(&mut self, redis: &mut Connection, index: usize) {
        let shared = self.shared.clone();
        let group = shared.config.consumer_id.as_str();
        let (Some(stream), Some(known)) = (shared.key(index), self.gaps.get(index)) else { return };
        let seen = match lost::look(redis, (stream, group), &shared.me).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::debug!(stream, "gaps were not looked for: {}", broker::failed(error));
                return;
            }
        };
        // several that read one stream are given parts of it
        let token = shared.leases.token(index).filter(|_| !shared.leases.is_shared());
        if token.is_some() && seen.is_elsewhere {
            // what somebody else was given is not missing
            return self.take_over_again(index);
        }
        let now = token.zip(seen.delivered);
        let counted = seen.gap.map_or(0, |range| range.entries);
        let passed = now.and_then(|(token, now)| known.passed(token, now, counted));
        let in_front = seen.gap.filter(|range| range.up_to != known.named);
        let place = Place { consumer_id: group, stream };
        let passed_named = self.name(place, passed).await;
        let in_front_named = self.name(place, in_front).await;
        let Some(known) = self.gaps.get_mut(index) else { return };
        if passed_named && now.is_some() {
            known.stand(now);
        }
        if let (true, Some(range)) = (in_front_named, in_front) {
            known.named = range.up_to;
        }
    }

    /// Writes a gap down, and says so. `false`: that did not work.
    async fn name(&self, place: Place<'_>, range: Option<Range>) -> bool {
        let Some(range) = range else { return true };
        match lost::undelivered(&self.connect, place, range).await {
            Ok(number) => {
                self.shared.board.lost(number);
                true
            }
            Err(error) => {
                tracing::debug!(stream = place.stream, "a gap was not written down: {error}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(last: u64, count: u64) -> Delivered {
        Delivered { last: EntryId { major: last, minor: 0 }, count }
    }

    #[test]
    fn what_the_group_counts_beyond_what_was_given_is_missing() {
        let mut known = Known::default();
        assert_eq!(known.passed(1, delivered(9, 9), 0), None);
        known.stand(Some((1, delivered(3, 3))));
        known.read(2);
        assert_eq!(known.passed(1, delivered(5, 5), 0), None);
        let id = |major| EntryId { major, minor: 0 };
        let missing = Range { above: id(3), up_to: id(9), entries: 4 };
        assert_eq!(known.passed(1, delivered(9, 9), 0), Some(missing));
        // named by itself
        assert_eq!(known.passed(1, delivered(9, 9), 4), None);
        // read by another worker, or set back by hand
        assert_eq!(known.passed(2, delivered(9, 9), 0), None);
        assert_eq!(known.passed(1, delivered(1, 1), 0), None);
        known.forget();
        assert_eq!(known.passed(1, delivered(9, 9), 0), None);
    }
}
