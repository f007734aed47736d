//! Entries that were delivered before: at this worker, at one that is gone, or at one that is slow.

use std::time::{Duration, Instant};

use outflow_broker::Connection;
use outflow_event::EntryId;
use tokio::sync::mpsc;

use super::{End, Reader};
use crate::broker;
use crate::delivery::Batch;
use crate::lease::Held;
use crate::reply::{self, Content, Record};

/// From this delivery on an entry is a suspect: two workers that had it did not acknowledge it.
const SUSPECT: u64 = 3;
/// Entries of one transaction after their second delivery.
const FEW: usize = 32;

/// A worker that has done nothing for so many times `claim_min_idle` is gone.
const STALE: u32 = 60;

impl Reader {
    /// Everything that is pending in a stream, whoever had it, page by page and in order, for as long as the
    /// stream is held.
    pub(super) async fn take_over(
        &mut self,
        redis: &mut Connection,
        permit: mpsc::OwnedPermit<Batch>,
        held: Held,
    ) -> Result<(), End> {
        let mut permit = Some(permit);
        let mut cursor = EntryId::ZERO;
        loop {
            let permit = match permit.take() {
                Some(permit) => permit,
                None => self.room().await?,
            };
            if self.shared.leases.token(held.0) != Some(held.1) {
                return Ok(());
            }
            let (next, records) = self.claim(redis, held.0, cursor, Duration::ZERO).await?;
            self.send_again(redis, permit, held.0, records).await?;
            if next == EntryId::ZERO {
                break;
            }
            cursor = next;
        }
        self.shared.leases.taken_over(held);
        // before the first read: from here on it is known what this worker was given
        self.look_for_gap(redis, held.0).await;
        Ok(())
    }

    /// Where the round goes on after a page of a stream's pending list.
    pub(super) fn claim_went_on(&mut self, stream: usize, next: EntryId) {
        self.claim.at = if next != EntryId::ZERO {
            Some((stream, next))
        } else if stream + 1 < self.config().streams.len() {
            Some((stream + 1, EntryId::ZERO))
        } else {
            self.claim.due = Instant::now() + self.config().claim_interval;
            None
        };
    }

    /// Takes over a page of what is pending in a stream for longer than `min_idle`, from `cursor` on.
    /// Returns where the next page begins (zero: nowhere).
    pub(super) async fn claim(
        &mut self,
        redis: &mut Connection,
        stream: usize,
        cursor: EntryId,
        min_idle: Duration,
    ) -> Result<(EntryId, Vec<Record>), End> {
        let config = self.config();
        let of_others = self.held.iter().all(|held| held.0 != stream);
        let Some(key) = config.streams.get(stream).filter(|_| !of_others) else {
            return Ok((EntryId::ZERO, Vec::new()));
        };
        let last = EntryId { major: u64::MAX, minor: u64::MAX };
        let of = (key.as_str(), config.consumer_id.as_str());
        let before = broker::pending(redis, of, (cursor, last), self.pace.count()).await?;
        if before.is_empty() {
            return Ok((EntryId::ZERO, Vec::new()));
        }
        let mut command = redis::cmd("XAUTOCLAIM");
        command.arg(key).arg(&config.consumer_id).arg(&self.shared.me);
        command.arg(u64::try_from(min_idle.as_millis()).unwrap_or(u64::MAX));
        command.arg(cursor.to_string()).arg("COUNT").arg(self.pace.count());
        let in_work = self.shared.in_flight.now();
        let claimed = reply::claimed(command.query_async(redis).await?)?;
        let lost = claimed.deleted.iter().map(|id| Record { id: *id, content: Content::Gone });
        let mut records: Vec<Record> = claimed.records.into_iter().chain(lost).collect();
        records.retain(|record| !in_work.contains(stream, record.id));
        records.sort_unstable_by_key(|record| record.id);
        let foreign = |record: &&Record| {
            before.get(&record.id).is_none_or(|p| !is_process_of(&p.worker, &config.worker))
        };
        let number = records.iter().filter(foreign).count();
        if number > 0 {
            tracing::info!(stream = key, entries = number, "took over entries of other workers");
            let number = u64::try_from(number).unwrap_or(u64::MAX);
            self.shared.board.metrics.claimed.increment(number);
            self.shared.board.count(|counts| counts.claimed += number);
        }
        Ok((claimed.cursor, records))
    }

    /// Takes the names of workers that are long gone out of the group, and of earlier processes of this
    /// one, where nothing is pending for them. Best effort: they cost Redis a few bytes each.
    pub(super) async fn reap(&self, redis: &mut Connection, stream: usize) {
        let config = self.config();
        let stale = config.claim_min_idle * STALE;
        let reaped = match config.streams.get(stream) {
            Some(key) => {
                let (of, names) = (
                    (key.as_str(), config.consumer_id.as_str()),
                    (&*self.shared.me, &*config.worker),
                );
                broker::reap(redis, of, names, stale).await
            }
            None => return,
        };
        match reaped {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                let stream = config.streams.get(stream);
                tracing::info!(stream, workers = ?names, "removed workers that are gone");
            }
            Err(error) => tracing::debug!("workers that are gone stay in the group: {error}"),
        }
    }

    /// Hands on entries that were delivered before: in small batches, so that one that ends the
    /// worker takes few with it, and after that each to be tried alone.
    pub(super) async fn send_again(
        &mut self,
        redis: &mut Connection,
        permit: mpsc::OwnedPermit<Batch>,
        stream: usize,
        records: Vec<Record>,
    ) -> Result<(), End> {
        let (Some(key), Some(first), Some(last)) =
            (self.shared.streams.get(stream).cloned(), records.first(), records.last())
        else {
            return Ok(());
        };
        let (of, range) = ((&*key, self.config().consumer_id.as_str()), (first.id, last.id));
        // more than the page where other workers' entries lie in between
        let count = 2 * records.len().max(self.config().batch);
        let pending = broker::pending(redis, of, range, count).await?;
        let times = |id| pending.get(&id).map_or(2, |pending| pending.times);
        let mut permit = Some(permit);
        for (suspects, records) in parts(records, times) {
            let permit = match permit.take() {
                Some(permit) => permit,
                None => self.room().await?,
            };
            let mut batch = self.batch(redis, vec![(stream, records)]).await?;
            batch.suspects = suspects;
            self.send(permit, batch);
        }
        Ok(())
    }
}

/// Whether `name`, of a group's worker, is that of a process of `worker`.
fn is_process_of(name: &[u8], worker: &str) -> bool {
    let rest = name.strip_prefix(worker.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"))
}

/// Takes a page of entries apart, in order, by how often they were delivered: the second time in
/// parts of at most [`FEW`], after that as suspects.
fn parts(records: Vec<Record>, times: impl Fn(EntryId) -> u64) -> Vec<(bool, Vec<Record>)> {
    let mut parts: Vec<(bool, Vec<Record>)> = Vec::new();
    for record in records {
        let suspect = times(record.id) >= SUSPECT;
        match parts.last_mut() {
            Some((kind, part)) if *kind == suspect && (suspect || part.len() < FEW) => {
                part.push(record);
            }
            _ => parts.push((suspect, vec![record])),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_come_again_come_in_ever_smaller_parts() {
        let record = |n| Record { id: EntryId { major: n, minor: 0 }, content: Content::Gone };
        let times = |id: EntryId| if (40..50).contains(&id.major) { 3 } else { 2 };
        let parts = parts((0..100).map(record).collect(), times);
        let sizes: Vec<_> = parts.iter().map(|(suspects, part)| (*suspects, part.len())).collect();
        assert_eq!(sizes, [(false, 32), (false, 8), (true, 10), (false, 32), (false, 18)]);
        assert!(parts.iter().flat_map(|(_, part)| part).map(|r| r.id.major).eq(0..100));
    }
}
