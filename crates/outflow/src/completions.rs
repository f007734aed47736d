//! `outflow completions`: shell completions.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Writes completions for a shell to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow completions bash > /etc/bash_completion.d/outflow
  outflow completions zsh > \"${fpath[1]}/_outflow\"
  outflow completions fish > ~/.config/fish/completions/outflow.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::cli::Cli::command(), "outflow", &mut script);
    crate::output::text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
