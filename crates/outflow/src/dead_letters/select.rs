//! Which dead letters a command is about.

use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use jiff::Timestamp;
use outflow_inbox::dead_letters::{DeadLetter, Filter};

use super::Store;
use crate::failure::Refused;

/// Letters that one command deals with.
const MOST: usize = 100_000;

/// Everything that is given must hold.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// Numbers of letters, or event ids
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// File with such ids, one a line; - is standard input
    #[arg(long, value_name = "FILE")]
    ids_from: Option<PathBuf>,
    /// Letters by their numbers only; may be repeated
    #[arg(long, value_name = "NUMBER")]
    letter: Vec<i64>,
    /// Letters of this event id, also where it looks like a number; may be repeated
    #[arg(long, value_name = "ID")]
    event: Vec<String>,
    /// Type of the event
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Aggregate: its type, or type/id
    #[arg(long, value_name = "TYPE[/ID]")]
    aggregate: Option<String>,
    /// A part of the reason, or an SQLSTATE
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Dead since this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Dead before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    before: Option<Timestamp>,
}

impl Selection {
    /// Whether it leaves anything out.
    pub(super) fn is_everything(&self) -> bool {
        !self.is_by_id()
            && self.event_type.is_none()
            && self.aggregate.is_none()
            && self.reason.is_none()
            && self.since.is_none()
            && self.before.is_none()
    }

    /// Whether somebody asked for these very letters.
    pub(super) fn is_by_id(&self) -> bool {
        let named = !self.ids.is_empty() || !self.letter.is_empty() || !self.event.is_empty();
        named || self.ids_from.is_some()
    }

    /// What was asked for by its id, for a message.
    pub(super) fn named(&self) -> String {
        let numbers = self.letter.iter().map(ToString::to_string);
        let ids = self.ids.iter().chain(&self.event).cloned().chain(numbers);
        ids.collect::<Vec<_>>().join(", ")
    }

    /// The letters, at most `limit`; with `resolved` also settled ones, `with_fields` whole ones.
    pub(super) async fn list(
        &self,
        store: &Store,
        resolved: bool,
        with_fields: bool,
        limit: usize,
    ) -> anyhow::Result<Vec<DeadLetter>> {
        self.find(store, &self.ids()?, resolved, with_fields, limit).await
    }

    /// The open letters, of which something will be changed: all of them, or none, and only those that were
    /// meant.
    pub(super) async fn open(&self, store: &Store) -> anyhow::Result<Vec<DeadLetter>> {
        let ids = self.ids()?;
        // a settled letter may have the number that somebody means
        let mut letters = self.find(store, &ids, !ids.is_empty(), false, MOST + 1).await?;
        if letters.len() > MOST {
            return Err(
                Refused(format!("more than {MOST} letters match: narrow the selection")).into()
            );
        }
        if let Some(message) = ids.iter().find_map(|id| ambiguous(id, &letters)) {
            return Err(Refused(message).into());
        }
        letters.retain(|letter| letter.resolved_at.is_none());
        Ok(letters)
    }

    async fn find(
        &self,
        store: &Store,
        ids: &[String],
        resolved: bool,
        with_fields: bool,
        limit: usize,
    ) -> anyhow::Result<Vec<DeadLetter>> {
        let filter = self.filter(ids, resolved);
        if self.is_by_id() && filter.ids.is_empty() && filter.event_ids.is_empty() {
            // a file of ids without an id
            return Ok(Vec::new());
        }
        let list = outflow_inbox::dead_letters::list;
        super::explain(list(&store.client, &store.consumer_id, &filter, with_fields, limit).await)
    }

    /// What was given as an id, without saying of what.
    fn ids(&self) -> anyhow::Result<Vec<String>> {
        let mut ids = self.ids.clone();
        if let Some(path) = &self.ids_from {
            let text = if path.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("standard input")?;
                text
            } else {
                std::fs::read_to_string(path).with_context(|| path.display().to_string())?
            };
            ids.extend(text.lines().map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned));
        }
        Ok(ids)
    }

    fn filter(&self, ids: &[String], resolved: bool) -> Filter {
        let (aggregate_type, aggregate_id) = match self.aggregate.as_deref() {
            None => (None, None),
            Some(aggregate) => match aggregate.split_once('/') {
                Some((kind, id)) => (Some(kind.to_owned()), Some(id.to_owned())),
                None => (Some(aggregate.to_owned()), None),
            },
        };
        let numbers = ids.iter().filter_map(|id| id.parse().ok());
        Filter {
            ids: numbers.chain(self.letter.iter().copied()).collect(),
            event_ids: ids.iter().chain(&self.event).cloned().collect(),
            event_type: self.event_type.clone(),
            aggregate_type,
            aggregate_id,
            reason: self.reason.clone(),
            since: self.since.map(|time| time.to_string()),
            before: self.before.map(|time| time.to_string()),
            resolved,
        }
    }
}

/// An id that is the number of one letter and the event id of another: only a person knows which is meant.
fn ambiguous(id: &str, letters: &[DeadLetter]) -> Option<String> {
    let number: i64 = id.parse().ok()?;
    letters.iter().find(|letter| letter.id == number)?;
    let is_event =
        |letter: &&DeadLetter| letter.id != number && letter.event_id.as_deref() == Some(id);
    let other = letters.iter().find(is_event)?.id;
    Some(format!(
        "{id} is the number of a dead letter, and the event id of dead letter {other}: say which one with \
         --letter {id} or --event {id}"
    ))
}
