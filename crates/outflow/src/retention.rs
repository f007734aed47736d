//! `outflow retention`: removes what nobody needs any more, or shows what would go and what holds the
//! rest back.
//!
//! | module | does |
//! | --- | --- |
//! | `report` | what a run did, as a table and as JSON |

mod report;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use outflow_relay::retention::{Progress, Retention};

use self::report::Report;
use crate::cli::Global;
use crate::config::{Config, Problem, Problems, Sources};

/// How long to wait between two looks at what holds the outbox back.
const LOOK: Duration = Duration::from_millis(200);

/// Removes what nobody needs any more from outbox, streams and inbox
///
/// Nothing is removed that a consumer has not applied, that an open dead letter needs, or that is younger than
/// the age that is configured for it. What holds the rest back is named. `outflow relay` and `outflow consume`
/// do the same by themselves, every retention.interval.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  outflow retention show                          what would go, and what holds the rest back
  outflow retention run                           once, now
  outflow retention run --outbox 7days --streams 7days --inbox 30days --settled 90days

Exit codes: 0 done, also where something is held back; 1 failed; 2 configuration."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows what would be removed, and what holds the rest back; changes nothing
    Show(RunArgs),
    /// Removes it, in small steps that may be interrupted
    Run(RunArgs),
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Keep outbox rows for so long [default: retention.outbox]
    #[arg(long, value_name = "AGE")]
    outbox: Option<String>,
    /// Keep entries of streams for so long [default: retention.streams]
    #[arg(long, value_name = "AGE")]
    streams: Option<String>,
    /// Keep inbox rows for so long [default: retention.inbox]
    #[arg(long, value_name = "AGE")]
    inbox: Option<String>,
    /// Keep settled conflicts and dead letters for so long [default: retention.settled]
    #[arg(long, value_name = "AGE")]
    settled: Option<String>,
    /// How long to wait until consumers have passed the present end of the log, for the outbox
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Change nothing, as `show`
    #[arg(long)]
    dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let command = &args.command;
    let (args, dry_run) = match command {
        Command::Show(args) => (args, true),
        Command::Run(args) => (args, args.dry_run),
    };
    let flags = [
        ("--outbox", "retention.outbox", args.outbox.as_deref()),
        ("--streams", "retention.streams", args.streams.as_deref()),
        ("--inbox", "retention.inbox", args.inbox.as_deref()),
        ("--settled", "retention.settled", args.settled.as_deref()),
    ];
    let config = Config::load(&Sources::of_process(global, &flags)?)?;
    let retention = &config.retention;
    if !retention.of_relay() && !retention.of_consumer() && matches!(command, Command::Run(_)) {
        return Err(Problems(vec![Problem::new("retention", report::NOTHING)]).into());
    }
    crate::service::single_threaded()?.block_on(async {
        let mut report = Report::new(dry_run);
        let bar = bar();
        if retention.of_relay() {
            report.relay = Some(relay(&config, args.wait, dry_run, &bar).await?);
        }
        if retention.of_consumer() {
            report.consumer = Some(consumer(&config, dry_run, &bar).await?);
        }
        bar.finish_and_clear();
        if args.json {
            crate::output::json(&report)?;
        } else {
            crate::output::text(&report.to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Outbox and streams; waits for a while until everybody has passed the moment at which it begins.
async fn relay(
    config: &Config,
    wait: Duration,
    dry_run: bool,
    bar: &ProgressBar,
) -> anyhow::Result<outflow_relay::retention::Report> {
    let mut retention = Retention::new(config.connector_config()?, config.relay_retention());
    let since = Instant::now();
    loop {
        let mut progress = Progress::to(|what, done, total| {
            bar.set_message(what.to_owned());
            bar.set_length(total);
            bar.set_position(done);
        });
        let report = retention.run_once(dry_run, &mut progress).await.context("retention")?;
        let held = report.outbox.as_ref().is_some_and(|outbox| outbox.held_by.is_some());
        if !held || since.elapsed() >= wait {
            return Ok(report);
        }
        bar.set_message("waiting for consumers");
        tokio::time::sleep(LOOK).await;
    }
}

async fn consumer(
    config: &Config,
    dry_run: bool,
    bar: &ProgressBar,
) -> anyhow::Result<outflow_inbox::retention::Report> {
    let consumer = config.consumer_config()?;
    let connect = crate::consume::connections(config.consumer_connect()?);
    let retention =
        outflow_inbox::retention::Retention::new(consumer, config.consumer_retention(), connect);
    bar.set_message("inbox");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    retention.run_once(dry_run, &mut progress).await.context("retention of the inbox")
}

/// Draws on a terminal only.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{spinner} {msg} [{bar:30}] {human_pos}/{human_len} {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
