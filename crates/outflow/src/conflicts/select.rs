//! Flags that choose conflicts.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Timestamp;
use outflow_inbox::conflicts::Filter;

/// Chooses conflicts; every flag narrows the choice.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct Selection {
    /// Conflicts by their own ids
    #[arg(value_name = "CONFLICT")]
    conflicts: Vec<i64>,
    /// Their ids from a file, one a line; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    ids_from: Option<PathBuf>,
    /// Conflicts of this event id; may be repeated
    #[arg(long, value_name = "ID")]
    event: Vec<String>,
    /// Type of the aggregate
    #[arg(long = "type", value_name = "TYPE")]
    aggregate_type: Option<String>,
    /// Id of the aggregate
    #[arg(long, value_name = "ID")]
    aggregate: Option<String>,
    /// Detected at this time or later (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Detected before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
}

impl Selection {
    /// Nothing was chosen: it stands for everything.
    pub(super) fn is_everything(&self) -> bool {
        self.conflicts.is_empty()
            && self.ids_from.is_none()
            && self.event.is_empty()
            && self.aggregate_type.is_none()
            && self.aggregate.is_none()
            && self.since.is_none()
            && self.until.is_none()
    }

    /// As the inbox takes it: the open ones.
    pub(super) fn filter(&self, consumer_id: String) -> anyhow::Result<Filter> {
        let mut ids = self.conflicts.clone();
        if let Some(path) = &self.ids_from {
            ids.extend(read_ids(path)?);
        }
        let chosen_by_id = !self.conflicts.is_empty() || self.ids_from.is_some();
        Ok(Filter {
            consumer_id,
            conflict_ids: chosen_by_id.then_some(ids),
            event_ids: Some(self.event.clone()).filter(|ids| !ids.is_empty()),
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate.clone(),
            since: self.since.map(Into::into),
            until: self.until.map(Into::into),
            ..Filter::default()
        })
    }
}

fn read_ids(path: &Path) -> anyhow::Result<Vec<i64>> {
    let named = || format!("--ids-from {}", path.display());
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).with_context(named)?;
        text
    } else {
        std::fs::read_to_string(path).with_context(named)?
    };
    parse_ids(&text).with_context(named)
}

fn parse_ids(text: &str) -> anyhow::Result<Vec<i64>> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let expected = || format!("line {number}: `{line}` is no id: expected a number");
            line.parse().with_context(expected)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_one_a_line() {
        assert_eq!(parse_ids("1\n\n# two\n 3 \n").unwrap(), [1, 3]);
        let error = parse_ids("1\nx").unwrap_err();
        assert!(error.to_string().starts_with("line 2: `x` is no id"), "{error}");
    }
}
