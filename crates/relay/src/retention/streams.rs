//! Trims streams below everything that somebody still needs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use outflow_broker::Connection;
use outflow_event::EntryId;

use super::broker;
use super::floor::{Floor, Hold, floor};
use super::{Progress, RetentionConfig, StreamReport};
use crate::error::Error;
use crate::metrics;

/// One pass over one stream.
pub(super) struct Pass<'a> {
    pub(super) config: &'a RetentionConfig,
    pub(super) stream: &'a str,
    pub(super) holds: &'a BTreeMap<String, Vec<Hold>>,
    pub(super) now: Timestamp,
    pub(super) dry_run: bool,
}

impl Pass<'_> {
    /// Trims in batches, and looks at every group again before each: a consumer that begins meanwhile,
    /// or is set back, is seen.
    pub(super) async fn run(
        &self,
        redis: &mut Connection,
        keep: std::time::Duration,
        progress: &mut Progress<'_>,
    ) -> Result<StreamReport, Error> {
        let facts = broker::facts(redis, self.stream).await?;
        let held = |held_by: &str| StreamReport {
            stream: self.stream.to_owned(),
            entries: facts.entries,
            removed: 0,
            below: EntryId::ZERO.to_string(),
            held_by: Some(held_by.to_owned()),
        };
        if !broker::is_ours(redis, self.stream).await? {
            return Ok(held("its first entry is no event: something else writes to it"));
        }
        let since = super::ago(self.now, keep);
        let kept = broker::first_since(redis, self.stream, &facts, since).await?;
        let mut removed = 0;
        let (floor, left) = loop {
            let facts = broker::facts(redis, self.stream).await?;
            let floor = self.floor(&facts, kept, keep);
            let above = facts.first.map_or(EntryId::ZERO, EntryId::before);
            if self.dry_run {
                let removable = self.count(redis, above, floor.below).await?;
                removed = removable;
                break (floor, facts.entries.saturating_sub(removable));
            }
            let batch = usize::try_from(self.config.batch).unwrap_or(usize::MAX);
            let page = broker::page(redis, self.stream, above, Some(floor.below.before()), batch);
            let Some(last) = page.await?.last().map(|(id, _)| *id) else {
                break (floor, facts.entries);
            };
            let trimmed = broker::trim(redis, self.stream, last.after().min(floor.below)).await?;
            metrics::removed("stream", trimmed);
            removed += trimmed;
            progress.step(self.stream, removed, facts.entries.saturating_sub(trimmed) + removed);
            fail::fail_point!("relay::retention_between_batches");
        };
        Ok(StreamReport {
            stream: self.stream.to_owned(),
            entries: left,
            removed,
            below: floor.below.to_string(),
            held_by: (left > 0).then_some(floor.held_by),
        })
    }

    fn floor(
        &self,
        facts: &super::floor::Facts,
        kept: EntryId,
        keep: std::time::Duration,
    ) -> Floor {
        let holds = self.holds.get(self.stream).map_or(&[][..], Vec::as_slice);
        let age = format!("what comes next is younger than retention.streams ({keep:?})");
        floor(facts, holds, &self.config.consumers, (kept, &age))
    }

    async fn count(
        &self,
        redis: &mut Connection,
        mut above: EntryId,
        below: EntryId,
    ) -> Result<u64, Error> {
        let mut count = 0;
        loop {
            let page = broker::page(redis, self.stream, above, Some(below.before()), 1000).await?;
            let Some((last, _)) = page.last() else { return Ok(count) };
            above = *last;
            count += u64::try_from(page.len()).unwrap_or(u64::MAX);
        }
    }
}
