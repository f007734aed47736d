//! `outflow bench`: what the connector and the consumer cost, as ratios taken in one run on one
//! machine, against what the servers can do by themselves.
//!
//! | module | does |
//! | --- | --- |
//! | `drain` | a backlog into Redis, in alternation with `pg_recvlogical` into nothing |
//! | `memory` | peak memory with one huge transaction, and while Redis stands still |
//! | `latency` | from the acknowledged commit to the readable entry, open loop |
//! | `inbox` | the consumer, in alternation with its own statements run from memory; with duplicates and refused events; with two workers |
//! | `stage`, `broker`, `backlog` | servers, databases and backlogs to measure with |
//! | `compare` | is the command `outflow compare`, on the same stage |
//! | `process`, `machine` | what `/proc` tells of a process and of the machine |
//! | `figure`, `report`, `progress` | what is reported, and how |
//!
//! Absolute figures move by tens of per cent from run to run and from machine to machine. Where there
//! is a rival, each round runs both on the same data right after each other, in changing order; the
//! ratio is taken within the round, and the median of the rounds is reported with its range.
//!
//! The connector and the consumer run as processes of their own, this same program with a
//! configuration file that holds nothing but addresses and names, so CPU time and memory are theirs
//! alone and every setting has its default.

mod backlog;
mod broker;
pub(crate) mod compare;
mod drain;
mod figure;
mod inbox;
mod latency;
mod machine;
mod memory;
mod process;
mod progress;
mod report;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;

use self::figure::Figure;
use self::progress::Progress;
use self::report::Report;
use self::stage::Stage;
use crate::cli::Global;

/// Measures the connector and the consumer against the servers themselves
///
/// Starts PostgreSQL (fsync on) and Redis from the binaries on this machine, in temporary folders,
/// and ends them afterwards. Needs Linux, 8 GB of disk, 4 GB of memory, and a machine with nothing else
/// to do. Overrides by --set reach the programs under measurement, to compare settings.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow bench --quick                               a first impression in about three minutes
  outflow bench                                       everything, about 30 minutes
  outflow bench --scenario drain --aof off --rows-per-transaction 1,100,10000
  outflow bench --scenario latency --set sink.batch_entries=100
  outflow bench --check --json > bench.json           for CI: exit code 1 on a missed target

Exit code 1: a scenario failed; with --check also a missed target.")]
pub(crate) struct Args {
    /// Small sizes, for a first impression
    #[arg(long)]
    quick: bool,
    /// Only these scenarios; may be repeated or separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    scenario: Vec<Scenario>,
    /// Events in a backlog [default: 500000, with --quick 100000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    events: Option<u64>,
    /// Rounds of each comparison [default: 5, with --quick 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Redis without persistence, with an append-only file synced every second, or both in turn
    #[arg(long, value_enum, default_value = "both", value_name = "WHICH")]
    aof: Aof,
    /// Shapes of the backlog: how many events a transaction writes
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rows_per_transaction: Vec<u64>,
    /// Reach PostgreSQL through its Unix socket rather than TCP
    #[arg(long)]
    unix_socket: bool,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the results into this Markdown file, between its result marks if it has them
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// End with exit code 1 when a target is missed
    #[arg(long)]
    check: bool,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// Throughput and CPU: a backlog into Redis, against `pg_recvlogical`
    Drain,
    /// Peak memory of the connector when things are large or stuck
    Memory,
    /// Commit to readable entry
    Latency,
    /// Throughput of the consumer, against its own statements
    Inbox,
}

impl Scenario {
    const ALL: [Self; 4] = [Self::Drain, Self::Memory, Self::Latency, Self::Inbox];

    fn name(self) -> &'static str {
        match self {
            Self::Drain => drain::SCENARIO,
            Self::Memory => memory::SCENARIO,
            Self::Latency => latency::SCENARIO,
            Self::Inbox => inbox::SCENARIO,
        }
    }
}

/// How Redis persists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Aof {
    /// No persistence
    Off,
    /// `appendonly yes`, `appendfsync everysec`
    Everysec,
    /// Both in turn
    Both,
}

/// The sizes of a run.
#[derive(Debug, Clone, Serialize)]
struct Options {
    quick: bool,
    /// Events in a backlog.
    events: u64,
    /// Rounds of each comparison.
    rounds: u32,
    /// Whether Redis has an append-only file, one value for each case.
    aof: Vec<bool>,
    /// Shapes of the backlog.
    rows_per_transaction: Vec<u64>,
    /// Whether PostgreSQL is reached through its Unix socket.
    unix_socket: bool,
    /// Rows of the huge transaction.
    huge_transaction: u64,
    /// How long Redis stands still, in seconds.
    stall_seconds: u64,
    /// Events a second of the latency scenario.
    rate: u32,
    /// How long one round of it takes, in seconds.
    latency_seconds: u32,
    /// Events that the consumer applies.
    inbox_events: u64,
    /// Settings that are not at their defaults.
    overrides: Vec<String>,
}

impl Options {
    fn new(args: &Args, overrides: &[String]) -> Self {
        let quick = |small, full| if args.quick { small } else { full };
        let events = args.events.unwrap_or(quick(100_000, 500_000));
        Self {
            quick: args.quick,
            events,
            rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 5 }),
            aof: match args.aof {
                Aof::Off => vec![false],
                Aof::Everysec => vec![true],
                Aof::Both => vec![false, true],
            },
            rows_per_transaction: args.rows_per_transaction.clone(),
            unix_socket: args.unix_socket,
            huge_transaction: events.saturating_mul(quick(2, 4)),
            stall_seconds: quick(10, 60),
            rate: 1000,
            latency_seconds: if args.quick { 5 } else { 20 },
            inbox_events: events.saturating_mul(2) / 5,
            overrides: overrides.to_vec(),
        }
    }

    /// For a stage that measures nothing of this.
    fn bare(overrides: &[String]) -> Self {
        Self {
            quick: false,
            events: 0,
            rounds: 0,
            aof: Vec::new(),
            rows_per_transaction: Vec::new(),
            unix_socket: false,
            huge_transaction: 0,
            stall_seconds: 0,
            rate: 0,
            latency_seconds: 0,
            inbox_events: 0,
            overrides: overrides.to_vec(),
        }
    }

    fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_seconds)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    if !cfg!(target_os = "linux") {
        bail!("bench reads CPU time and memory of processes from /proc: run it on Linux");
    }
    let options = Options::new(args, &global.set);
    let scenarios =
        if args.scenario.is_empty() { Scenario::ALL.to_vec() } else { args.scenario.clone() };
    let report = crate::service::multi_threaded()?.block_on(async {
        let stop = crate::service::stop_on_signal()?;
        tokio::select! {
            // dropping the work ends its servers and programs
            () = stop.cancelled() => bail!("stopped by a signal"),
            report = measure(&scenarios, options) => report,
        }
    })?;
    if let Some(file) = &args.markdown {
        report::write_markdown(&report, file)?;
    }
    if args.json {
        crate::output::json(&report)?;
    } else {
        crate::output::text(&report.to_string())?;
    }
    let missed = args.check && report.figures.iter().any(Figure::is_missed);
    let failed = missed || !report.failures.is_empty();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn measure(scenarios: &[Scenario], options: Options) -> anyhow::Result<Report> {
    let progress = Progress::start();
    let machine = machine::Machine::read();
    // a quick run writes a fifth of the events
    let disk_gib = if options.quick { 2 } else { 8 };
    progress.say(&machine.warnings(disk_gib).join("\n"));
    let stage = Stage::open(options, &progress).await?;
    // asked now: at the end the server may be one of the failures
    let postgres = stage.server_version().await?;
    let (mut figures, mut failures) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        let result = match scenario {
            Scenario::Drain => drain::run(&stage, &progress).await,
            Scenario::Memory => memory::run(&stage, &progress).await,
            Scenario::Latency => latency::run(&stage, &progress).await,
            Scenario::Inbox => inbox::run(&stage, &progress).await,
        };
        match result {
            Ok(found) => figures.extend(found),
            // what the other scenarios found took long enough to be shown
            Err(error) => {
                let text = format!("{}: {}", scenario.name(), crate::failure::chain(&error));
                progress.say(&format!("failed: {text}"));
                failures.push(text);
            }
        }
    }
    progress.finish();
    let redis = stage.redis_version();
    Ok(Report::new(machine, (postgres, redis), stage.options, figures, failures))
}
