//! `outflow offsets`: where a connector stands and stood, and the two ways out of a refusal.
//!
//! | module | does |
//! | --- | --- |
//! | `list` | the stored offset and the ledger, and what the slot still keeps of each line |
//! | `reset` | replaces the offset: begin again from the rows, or go on where the slot stands |

mod list;
mod reset;

use std::process::ExitCode;

use jiff::Timestamp;

use crate::cli::Global;
use crate::config::{Config, Sources};

/// Lists the stored offset and the ledger, or resets the offset after a refusal
///
/// The offset is the point from which the connector resumes; the ledger is its history. A slot cannot go
/// back: the stream only goes forward from the slot's confirmed position.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  outflow offsets                                 the stored offset and the newest lines of the ledger
  outflow offsets --at 2026-01-31T12:00:00Z       where the connector stood at that time
  outflow offsets reset --from-rows               what it would do
  outflow offsets reset --from-rows --yes         begin again with a new slot and every row of the outbox
  outflow offsets reset --from-slot --yes         go on where the slot stands, give up what is in between

Exit codes: 0 done; 1 failed; 2 configuration; 3 refused, or --yes is missing."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists the stored offset and the ledger, newest first
    List(ListArgs),
    /// Replaces the stored offset, with the connector stopped
    Reset(ResetArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Lines of the ledger
    #[arg(long, default_value_t = 20, value_name = "LINES")]
    limit: usize,
    /// Only the last line that was taken at or before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ResetArgs {
    /// The next start drops the slot, creates it anew and publishes every row of the outbox
    #[arg(long, required_unless_present = "from_slot", conflicts_with = "from_slot")]
    from_rows: bool,
    /// The next start goes on at the slot's position; what lies between is not delivered
    #[arg(long)]
    from_slot: bool,
    /// Do it; without this the plan is shown and nothing changed
    #[arg(long)]
    yes: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = Config::load(&Sources::of_process(global, &[])?)?;
    crate::service::single_threaded()?.block_on(async {
        match &args.command {
            None => list::run(&args.list, &config).await,
            Some(Command::List(args)) => list::run(args, &config).await,
            Some(Command::Reset(args)) => reset::run(args, &config).await,
        }
    })
}
