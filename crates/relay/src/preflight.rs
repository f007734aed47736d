//! Checks both servers before the first byte is asked for.
//!
//! Whatever would make the connector stand still, publish hollow events or lose some is found
//! here, named, and given a remedy. Findings are data: the connector acts on them, and `outflow
//! status` shows those about slot, publication and table.

mod broker;
mod publication;
mod server;
mod table;

pub use broker::check_broker;
pub(crate) use publication::Publication;
pub use publication::{explain, explain_missing_publication};
pub(crate) use table::Table;

use std::fmt;

use serde::Serialize;
use tokio_postgres::Client;

use crate::config::SourceConfig;
use crate::error::Error;
use crate::resume::{Decision, Wait};

/// Begins the codes of findings about the broker.
const BROKER: &str = "redis_";

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// The connector runs; somebody should look at it.
    Warn,
    /// The connector cannot run now; it may pass by itself.
    Wait,
    /// The connector does not run until a person has acted.
    Refuse,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// Its kind, stable, for scripts.
    pub code: &'static str,
    /// What is wrong with what.
    pub message: String,
    /// What to run or set.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.remedy)
    }
}

/// All findings of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// In the order in which they were found.
    pub findings: Vec<Finding>,
}

impl Report {
    /// What keeps the connector from running, as an error; `None` if nothing does.
    #[must_use]
    pub fn obstacle(&self) -> Option<Error> {
        let worst = self.findings.iter().map(|finding| finding.severity).max()?;
        let found = self.findings.iter().filter(|finding| finding.severity == worst);
        let all: Vec<String> = found.clone().map(ToString::to_string).collect();
        let of_broker = found.clone().all(|finding| finding.code.starts_with(BROKER));
        match worst {
            Severity::Warn => None,
            // so that what is waited for is called by its name
            Severity::Wait if of_broker => Some(Error::SinkUnavailable(all.join("; "))),
            Severity::Wait => Some(Error::NotYet(Wait::Conditions(all.join("; ")))),
            Severity::Refuse if of_broker => Some(Error::SinkRefused(all.join("; "))),
            Severity::Refuse => Some(Error::Refused(all.join("; "))),
        }
    }

    /// What does not keep the connector from running.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Warn)
    }

    /// Whether there is a finding of this kind.
    #[must_use]
    pub fn has(&self, code: &str) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }

    pub(crate) fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (message, remedy) = (message.into(), remedy.into());
        self.findings.push(Finding { severity, code, message, remedy });
    }

    pub(crate) fn refuse(
        &mut self,
        code: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Refuse, code, message, remedy);
    }

    pub(crate) fn wait(
        &mut self,
        code: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Wait, code, message, remedy);
    }

    pub(crate) fn warn(
        &mut self,
        code: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Warn, code, message, remedy);
    }
}

/// What the connector is about to do, which decides what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Due {
    /// A slot is to be created.
    pub slot: bool,
    /// Rows of the outbox are to be read.
    pub snapshot: bool,
}

impl Due {
    /// What a decision asks for.
    #[must_use]
    pub fn of(decision: &Decision, source: &SourceConfig) -> Self {
        let initial = source.snapshot == crate::config::SnapshotMode::Initial;
        match decision {
            Decision::Bootstrap { drop_slot, .. } => Self { slot: !drop_slot, snapshot: initial },
            Decision::ContinueSnapshot { .. } => Self { slot: false, snapshot: true },
            _ => Self::default(),
        }
    }
}

/// Checks the source: server, role, table and publication.
///
/// # Errors
/// Only when the server cannot be asked; what it answers is in the report. Transient: check again.
///
/// # Cancel safety
/// Reads only; dropping the future changes nothing.
pub async fn check_source(source: &SourceConfig, sql: &Client, due: Due) -> Result<Report, Error> {
    let mut report = Report::default();
    let version = server::check(&mut report, source, sql, due).await?;
    let table = Table::find(sql, &source.table).await?;
    let publication = Publication::find(sql, source, table.as_ref(), version).await?;
    match &table {
        None => table::missing(&mut report, source),
        Some(table) => table.check(&mut report, source, publication.as_ref(), version),
    }
    match &publication {
        None => publication::missing(&mut report, source, due),
        Some(publication) => publication.check(&mut report, source, table.as_ref()),
    }
    if let Some(table) = table.filter(|_| due.snapshot) {
        table.check_snapshot(&mut report, source, sql).await?;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::On;

    #[test]
    fn what_is_waited_for_is_the_broker_where_nothing_else_is_in_the_way() {
        let mut report = Report::default();
        report.wait("redis_role", "this Redis is a replica", "name the primary");
        let error = report.obstacle().unwrap();
        assert_eq!(error.waits_on(), On::Sink);
        assert!(error.to_string().contains("this Redis is a replica: name the primary"), "{error}");
        report.wait("slot_count", "no slot is free", "drop one");
        assert_eq!(report.obstacle().unwrap().waits_on(), On::Slot);
        report.refuse("publication_missing", "there is no publication", "create it");
        assert_eq!(report.obstacle().unwrap().waits_on(), On::Publication);

        let mut report = Report::default();
        report.refuse("redis_version", "this is Redis 5", "update Redis");
        assert_eq!(report.obstacle().unwrap().waits_on(), On::Sink);
    }
}
