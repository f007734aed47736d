//! `outflow status`: looks at source, broker, consumer and process from the outside.
//!
//! | module | does |
//! | --- | --- |
//! | `source` | slot, publication and lag, as the connector's own watch sees them |
//! | `polling` | what waits to be polled, and whether that is standing still |
//! | `broker` | offset, streams and groups in Redis |
//! | `consumer` | inbox, conflicts and dead letters |
//! | `process` | what running processes say of themselves over HTTP |
//! | `report` | all of it, with what stands still, as a table and as JSON |
//!
//! What cannot be reached is said and does not keep the rest from being shown.

mod broker;
mod consumer;
mod polling;
mod process;
mod report;
mod source;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use self::report::Report;
use crate::cli::Global;
use crate::config::{Config, Sources};

/// A part that does not answer within this is unreachable.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shows where everything stands, and what stands still
///
/// Looks at slot and publication in the source, offset, streams and groups in Redis, the consumer's inbox, and
/// what processes say of themselves: those of --process, or the one at http.listen. Parts that are not configured
/// or not reachable are named.
///
/// Where the outbox is polled and there is no slot, it looks at what waits to be polled instead: rows, the age
/// of the oldest, claims.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow status                  a table
  outflow status --watch          again every 2 seconds
  outflow status --json           for scripts; the keys are stable
  outflow status --process 127.0.0.1:9187 --process 127.0.0.1:9188    connector and consumer in their own words

Exit codes: 0 healthy; 1 something stands still or cannot be reached; 2 configuration.")]
pub(crate) struct Args {
    /// Report as JSON, one object a line with --watch
    #[arg(long)]
    json: bool,
    /// Look again every SECONDS until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// Address where a process serves its status; may be repeated [default: http.listen]
    #[arg(long = "process", value_name = "HOST:PORT")]
    processes: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = Config::load(&Sources::of_process(global, &[])?)?;
    crate::service::single_threaded()?.block_on(async {
        loop {
            let report = look(&config, &args.processes).await;
            show(args, &report)?;
            let Some(seconds) = args.watch else {
                return Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            };
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    })
}

fn show(args: &Args, report: &Report) -> anyhow::Result<()> {
    match (args.json, args.watch) {
        (true, None) => crate::output::json(report),
        (true, Some(_)) => crate::output::text(&format!("{}\n", serde_json::to_string(report)?)),
        (false, None) => crate::output::text(&report.to_string()),
        (false, Some(_)) => {
            // from the top of a cleared screen, where there is a screen
            let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            crate::output::text(&format!("{clear}{report}\n"))
        }
    }
}

/// The last ids of the connector's streams.
pub(crate) async fn last_ids(config: &Config) -> anyhow::Result<Vec<outflow_event::EntryId>> {
    broker::last_ids(config).await
}

async fn look(config: &Config, processes: &[String]) -> Report {
    let (mut source, broker, consumer, processes) = tokio::join!(
        source::look(config),
        broker::look(config),
        consumer::look(config),
        process::look(config, processes),
    );
    // it depends on the offset: why that cannot be read is said already
    if let (Some(Ok(source)), Ok(_)) = (&mut source, &broker.0)
        && !source.slot_active
        && !source.polled_alone()
    {
        source.refusal = source::refusal(config).await;
    }
    Report::new(config, source, broker, consumer, processes)
}

/// `work`, unless it takes longer than a person would wait.
pub(crate) async fn in_time<T>(work: impl Future<Output = anyhow::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(crate::failure::chain(&error)),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests;
