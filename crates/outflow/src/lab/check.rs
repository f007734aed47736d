//! `outflow lab check`: whether every step has left what must be there.

use std::fmt;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::broker::{Broker, DUAL_WRITE as DUAL_WRITE_LIST};
use super::database::Database;
use super::folder::{AT_LEAST_ONCE, DUAL_WRITE, DUAL_WRITE_DATABASE, Lab, ORDER_CHECK, REPORT};
use super::judge::{Facts, judge};
use super::lesson::OwnRedis;

/// One line of the table of outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) step: &'static str,
    pub(super) must_hold: &'static str,
    pub(super) ok: bool,
    /// What is there; where something is off, what.
    pub(super) found: String,
    /// The command line that mends it, or begins to.
    pub(super) remedy: Option<String>,
}

/// Everything that was verified; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    step: &'static str,
    pub(super) ok: bool,
    outcomes: Vec<Outcome>,
    /// The lab's own Redis, if it uses that.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<OwnRedis>,
}

/// Runs the command.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Check> {
    let mut broker = lab.broker().await?;
    let facts = collect(lab, &mut broker).await?;
    let outcomes: Vec<_> = judge(&facts)
        .into_iter()
        .map(|outcome| Outcome { remedy: outcome.remedy.map(|step| lab.command(&step)), ..outcome })
        .collect();
    let ok = outcomes.iter().all(|outcome| outcome.ok);
    Ok(Check { step: "check", ok, outcomes, redis: OwnRedis::of(lab, &broker) })
}

async fn collect(lab: &Lab, broker: &mut Broker) -> anyhow::Result<Facts> {
    let database = lab.database()?;
    let shape = database.shape()?;
    // without its tables there is nothing to read
    let whole = shape.has_tables();
    let dual_write_database = lab.path(DUAL_WRITE_DATABASE);
    let saved = match dual_write_database.exists() {
        true => Some(Database::open(dual_write_database)?.orders()?.len()),
        false => None,
    };
    Ok(Facts {
        shape,
        orders: if whole { database.orders()? } else { Vec::new() },
        outbox: if whole { database.outbox()? } else { Vec::new() },
        deliveries: broker.deliveries().await?,
        dual_write: (saved, broker.length(DUAL_WRITE_LIST).await?),
        dual_write_file: lab.read(DUAL_WRITE)?,
        order_check_file: lab.read(ORDER_CHECK)?,
        at_least_once_file: lab.read(AT_LEAST_ONCE)?,
        report_file: lab.read(REPORT)?,
    })
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(["step", "must hold", "found", ""]);
        for outcome in &self.outcomes {
            let mark = if outcome.ok { "ok" } else { "OFF" };
            table.add_row([outcome.step, outcome.must_hold, &outcome.found, mark]);
        }
        writeln!(f, "{table}")?;
        self.write_remedies(f)?;
        match &self.redis {
            Some(redis) => write!(f, "{redis}"),
            None => Ok(()),
        }
    }
}

impl Check {
    fn write_remedies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off: Vec<_> = self.outcomes.iter().filter(|outcome| !outcome.ok).collect();
        if off.is_empty() {
            return writeln!(f, "every outcome is as it must be");
        }
        writeln!(f, "{} of {} outcomes are off", off.len(), self.outcomes.len())?;
        let mut told = Vec::new();
        for outcome in off {
            if let Some(remedy) = &outcome.remedy
                && !told.contains(&remedy)
            {
                let what = if remedy.contains("lab clean") { "begin again" } else { "mend it" };
                writeln!(f, "  to {what} ({}): {remedy}", outcome.step)?;
                told.push(remedy);
            }
        }
        Ok(())
    }
}
