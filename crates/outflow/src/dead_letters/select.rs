//! Which dead letters a command is about.

use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use jiff::Timestamp;
use outflow_inbox::dead_letters::{DeadLetter, Filter};

use super::Store;

/// Everything that is given must hold.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// Numbers of letters, or event ids
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// File with such ids, one a line; - is standard input
    #[arg(long, value_name = "FILE")]
    ids_from: Option<PathBuf>,
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
        self.ids.is_empty()
            && self.ids_from.is_none()
            && self.event_type.is_none()
            && self.aggregate.is_none()
            && self.reason.is_none()
            && self.since.is_none()
            && self.before.is_none()
    }

    /// The letters; with `resolved` also settled ones. `None` for no limit.
    pub(super) async fn find(
        &self,
        store: &Store,
        resolved: bool,
        limit: Option<usize>,
    ) -> anyhow::Result<Vec<DeadLetter>> {
        let Some(filter) = self.filter(resolved)? else { return Ok(Vec::new()) };
        let limit = limit.unwrap_or(usize::MAX);
        let list = outflow_inbox::dead_letters::list;
        super::explain(list(&store.client, &store.consumer_id, &filter, limit).await)
    }

    /// `None`: a file of ids without an id selects nothing.
    fn filter(&self, resolved: bool) -> anyhow::Result<Option<Filter>> {
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
            if ids.is_empty() {
                return Ok(None);
            }
        }
        let (aggregate_type, aggregate_id) = match self.aggregate.as_deref() {
            None => (None, None),
            Some(aggregate) => match aggregate.split_once('/') {
                Some((kind, id)) => (Some(kind.to_owned()), Some(id.to_owned())),
                None => (Some(aggregate.to_owned()), None),
            },
        };
        Ok(Some(Filter {
            ids,
            event_type: self.event_type.clone(),
            aggregate_type,
            aggregate_id,
            reason: self.reason.clone(),
            since: self.since.map(|time| time.to_string()),
            before: self.before.map(|time| time.to_string()),
            resolved,
        }))
    }
}
