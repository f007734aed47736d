//! The command line: global flags, the list of commands, exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ColorChoice, Parser, Subcommand};

use crate::config::LogFormat;

/// Moves events from a PostgreSQL outbox to Redis Streams and applies them exactly once
#[derive(Debug, Parser)]
#[command(
    name = "outflow",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  outflow init --source postgres://postgres@db/shop    outbox, publication and roles
  outflow relay                                        publish, with outflow.toml
  outflow consume                                      apply, with outflow.toml
  outflow status --watch                               where everything stands
  outflow offsets                                      where the connector stood, and ways out of a refusal
  outflow dead-letters                                 events that were set aside; retry or discard them
  outflow conflicts                                    event ids that came with two payloads
  outflow retention show                               what nobody needs any more
  outflow drill windows                                failures, injected for real and judged
  outflow compare --quick                              the log against polling, measured
  outflow lab all                                      why there is an outbox at all, in eight steps

Configuration: outflow.toml or --config FILE, then variables such as OUTFLOW_SOURCE__URL, then flags.

Exit codes:
  0  done, or stopped by a signal with everything in order
  1  failed while running; `status`: something stands still
  2  the command line or the configuration is not valid
  3  refused: a person has to decide or to grant something; the message says what to run
  130  stopped by a second signal, without waiting for anything"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Configuration file [default: outflow.toml, if there is one]
    #[arg(
        long,
        short,
        global = true,
        env = "OUTFLOW_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    pub(crate) config: Option<PathBuf>,
    /// Overrides one setting, for example --set sink.batch_entries=100; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// What is logged: a level, or levels by module (info,outflow_relay=debug); outranks RUST_LOG
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log_level: Option<String>,
    /// Form of log lines; auto is human on a terminal and JSON elsewhere
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Colours; auto is colours on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
}

/// The commands; each is one module with `Args` and `run`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(crate::init::Args),
    Relay(crate::relay::Args),
    Consume(crate::consume::Args),
    Status(crate::status::Args),
    Offsets(crate::offsets::Args),
    DeadLetters(Box<crate::dead_letters::Args>),
    Conflicts(Box<crate::conflicts::Args>),
    Retention(crate::retention::Args),
    Bench(crate::bench::Args),
    Compare(crate::bench::compare::Args),
    Demo(crate::demo::Args),
    Drill(crate::drill::Args),
    Lab(crate::lab::Args),
    Config(crate::config::show::Args),
    Completions(crate::completions::Args),
}

impl Command {
    fn run(&self, global: &Global) -> anyhow::Result<ExitCode> {
        match self {
            Self::Init(args) => crate::init::run(args, global),
            Self::Relay(args) => crate::relay::run(args, global),
            Self::Consume(args) => crate::consume::run(args, global),
            Self::Status(args) => crate::status::run(args, global),
            Self::Offsets(args) => crate::offsets::run(args, global),
            Self::DeadLetters(args) => crate::dead_letters::run(args, global),
            Self::Conflicts(args) => crate::conflicts::run(args, global),
            Self::Retention(args) => crate::retention::run(args, global),
            Self::Bench(args) => crate::bench::run(args, global),
            Self::Compare(args) => crate::bench::compare::run(args, global),
            Self::Demo(args) => crate::demo::run(args),
            Self::Drill(args) => crate::drill::run(args),
            Self::Lab(args) => crate::lab::run(args),
            Self::Config(args) => crate::config::show::run(args, global),
            Self::Completions(args) => crate::completions::run(args),
        }
    }
}

/// Parses the command line, runs the command, reports its failure.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run(&cli.global) {
        Ok(code) => code,
        Err(error) => crate::failure::report(&error),
    }
}
