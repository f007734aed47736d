//! What `outflow init` did, for people and for scripts.

use std::fmt;

use serde::Serialize;

use super::apply::{Outcome, Step};
use super::preflight::Need;

/// All of it; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Nothing is left to do for a person.
    pub(super) ready: bool,
    dry_run: bool,
    databases: Vec<DatabaseReport>,
}

/// One database.
#[derive(Debug, Serialize)]
pub(super) struct DatabaseReport {
    pub(super) sides: Vec<String>,
    /// Without the password.
    pub(super) url: String,
    pub(super) steps: Vec<Step>,
    pub(super) notes: Vec<String>,
    pub(super) needs: Vec<Need>,
}

impl Report {
    pub(super) fn new(databases: Vec<DatabaseReport>, dry_run: bool) -> Self {
        let ready = databases.iter().all(|database| database.needs.is_empty());
        Self { ready, dry_run, databases }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for database in &self.databases {
            database.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for DatabaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} in {}", self.sides.join(" and "), self.url)?;
        for step in &self.steps {
            let outcome = match step.outcome {
                Outcome::Applied => "applied",
                Outcome::Present => "already there",
                Outcome::Differs => "differs",
                Outcome::Pending => "would be applied",
            };
            writeln!(f, "  {outcome:<16} {}", step.name)?;
        }
        if self.steps.iter().any(|step| step.outcome == Outcome::Differs) {
            writeln!(
                f,
                "  note: what differs was applied with another text, and is left as it is"
            )?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        for need in &self.needs {
            writeln!(f, "  needed: {}\n    {}", need.what, need.sql)?;
            if let Some(then) = need.then {
                writeln!(f, "    {then}")?;
            }
        }
        Ok(())
    }
}
