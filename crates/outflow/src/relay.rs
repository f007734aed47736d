//! placeholder

use std::process::ExitCode;

use crate::cli::Global;

/// Later
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: &Args, _global: &Global) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
