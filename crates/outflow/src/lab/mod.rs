//! `outflow lab`: why an outbox, in eight steps, with SQLite and a Redis list.
//!
//! Each step is a command that does its work for real in a folder, says what happened and why, and
//! leaves files behind. The lab is a model of the product, not a part of it: nothing here is used by
//! connector or consumer, whose mechanisms are others. docs/tutorial.md walks from one to the other.
//!
//! | module | does |
//! | --- | --- |
//! | `init`, `dual_write`, `place_order`, `relay`, `order_check`, `relay_crash`, `consume`, `report` | one step each |
//! | `all`, `check`, `clean` | all steps; the verdict; the end of the lab |
//! | `folder`, `database`, `broker` | what a lab consists of: mark and files, SQLite, Redis |
//! | `event`, `delivery`, `judge` | rows and entries, what has left the outbox, what is off: pure |
//! | `lesson` | what a step tells |

mod all;
mod broker;
mod check;
mod clean;
mod consume;
mod database;
mod delivery;
mod dual_write;
mod event;
mod folder;
mod init;
mod judge;
mod lesson;
mod order_check;
mod place_order;
mod relay;
mod relay_crash;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use self::broker::RedisUrl;
use self::folder::Lab;
use self::lesson::Lesson;
use crate::config::{Problem, Problems};

/// Where a lab is unless `--dir` says otherwise.
const DEFAULT_DIR: &str = "./outbox-lab";

/// Shows in eight steps why there is an outbox, with SQLite and a Redis list
///
/// A guided exercise in a folder. Each step does its work for real, says what happened and why, and leaves
/// files that sqlite3 and redis-cli can open. Steps may be repeated; one that comes too early says what is
/// missing. Without --redis the lab starts a Redis of its own, with its data in the folder: it listens on a
/// socket there, ends an hour after the last step, and comes back with the next one.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "\
Examples:
  outflow lab all                          every step, then the check
  outflow lab init                         or one step after the other, in the order above
  outflow lab dual-write
  outflow lab all --dir /tmp/lab --redis redis://127.0.0.1:6379/9
  outflow lab check --json                 what is off, for a script
  outflow lab clean                        ends the lab's Redis and removes the folder

Exit codes: 0 done; 1 failed, or something is off; 2 command line; 3 refused: a former step is missing,
or the folder or the Redis database is not this lab's."
)]
pub(crate) struct Args {
    /// Folder of the lab
    #[arg(long, global = true, default_value = DEFAULT_DIR, value_name = "FOLDER", help_heading = "Lab options")]
    dir: PathBuf,
    /// Redis for the lab; later steps remember it [default: one of the lab's own]
    #[arg(
        long,
        global = true,
        env = "OUTFLOW_LAB_REDIS",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Lab options"
    )]
    redis: Option<String>,
    /// Report as JSON
    #[arg(long, global = true, help_heading = "Lab options")]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Step 1: creates app.db with the tables orders and outbox
    #[command(after_help = "\
Examples:
  outflow lab init
  outflow lab init --dir /tmp/lab --redis redis://127.0.0.1:6379/9")]
    Init,
    /// Step 2: saves an order, then its publish fails; writes dualwrite.out
    #[command(after_help = "\
Examples:
  outflow lab dual-write
  sqlite3 outbox-lab/dualwrite.db 'SELECT * FROM orders'")]
    DualWrite,
    /// Step 3, three times: an order and its event in one transaction
    #[command(after_help = "\
Examples:
  outflow lab place-order                        the next of the three orders
  outflow lab place-order --fail                 an error before the commit: neither is kept
  outflow lab place-order --sku apple --qty 3    one more")]
    PlaceOrder(place_order::Args),
    /// Step 4: pushes pending rows to the list outbox.events, then marks them
    #[command(after_help = "\
Examples:
  outflow lab relay
  outflow lab relay --json")]
    Relay(relay::Args),
    /// Step 5: events of one aggregate leave by seq, even with one timestamp; writes order_check.out
    #[command(after_help = "\
Examples:
  outflow lab order-check
  outflow lab order-check --json")]
    OrderCheck,
    /// Step 6: a relay is killed between push and mark, the next one repeats; writes atleastonce.out
    #[command(after_help = "\
Examples:
  outflow lab relay-crash
  outflow lab relay-crash --json")]
    RelayCrash,
    /// Step 7: empties the list, filters by event id, keeps results in the hash processed
    #[command(after_help = "\
Examples:
  outflow lab consume
  outflow lab consume --json")]
    Consume,
    /// Step 8: counts orders, outbox rows, entries and results; writes report.txt
    #[command(after_help = "\
Examples:
  outflow lab report
  outflow lab report --json")]
    Report,
    /// Runs all steps in their order, then the check
    #[command(after_help = "\
Examples:
  outflow lab all
  outflow lab all --dir /tmp/lab --json

Exit code 1 if the check finds something off.")]
    All,
    /// Verifies the outcome of every step and says what is off
    #[command(after_help = "\
Examples:
  outflow lab check
  outflow lab check --json

Exit code 1 if something is off.")]
    Check,
    /// Ends the lab's own Redis; its data stays
    #[command(after_help = "\
Examples:
  outflow lab stop
  outflow lab stop --dir /tmp/lab")]
    Stop,
    /// Removes the lab: its Redis (or its keys in yours), its files, its folder
    #[command(after_help = "\
Examples:
  outflow lab clean
  outflow lab clean --dir /tmp/lab")]
    Clean,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    crate::service::single_threaded()?.block_on(run_command(args))
}

impl Args {
    /// The Redis that was named, if one was.
    fn redis(&self) -> anyhow::Result<Option<RedisUrl>> {
        // an empty variable is as good as none
        let named = self.redis.as_deref().filter(|url| !url.is_empty());
        let parsed = named.map(RedisUrl::parse).transpose();
        // the value is not shown: it may hold a password
        Ok(parsed.map_err(|why| Problems(vec![Problem::new("--redis", why)]))?)
    }

    fn open(&self) -> anyhow::Result<Lab> {
        Lab::open(&self.dir, self.redis()?)
    }
}

async fn run_command(args: &Args) -> anyhow::Result<ExitCode> {
    let open = || args.open();
    let lesson = match &args.command {
        Command::Init => init::run(&args.dir, args.redis()?).await?,
        Command::DualWrite => dual_write::run(&mut open()?).await?,
        Command::PlaceOrder(flags) => place_order::run(&open()?, flags)?,
        Command::Relay(relay::Args { die_before_mark: false }) => relay::run(&mut open()?).await?,
        Command::Relay(relay::Args { die_before_mark: true }) => {
            let mut lab = Lab::open_beside(&args.dir, args.redis()?)?;
            relay::die_before_mark(&mut lab).await?
        }
        Command::OrderCheck => order_check::run(&mut open()?).await?,
        Command::RelayCrash => relay_crash::run(&mut open()?).await?,
        Command::Consume => consume::run(&mut open()?).await?,
        Command::Report => report::run(&mut open()?).await?,
        Command::All => return run_all(args).await,
        Command::Check => return run_check(args, &mut open()?).await,
        Command::Stop => clean::stop(&open()?).await?,
        Command::Clean => clean::clean(open()?).await?,
    };
    if args.json {
        crate::output::json(&lesson)?;
    } else {
        crate::output::text(&lesson.to_string())?;
    }
    Ok(exit_code(lesson.ok))
}

async fn run_check(args: &Args, lab: &mut Lab) -> anyhow::Result<ExitCode> {
    let check = check::run(lab).await?;
    if args.json {
        crate::output::json(&check)?;
    } else {
        crate::output::text(&check.to_string())?;
    }
    Ok(exit_code(check.ok))
}

async fn run_all(args: &Args) -> anyhow::Result<ExitCode> {
    let init = init::run(&args.dir, args.redis()?).await?;
    let mut lab = args.open()?;
    let tell = |lesson: &Lesson| match args.json {
        true => Ok(()),
        false => crate::output::text(&format!("{lesson}\n")),
    };
    let all = all::run(&mut lab, init, tell).await?;
    if args.json {
        crate::output::json(&all)?;
    } else {
        crate::output::text(&all.check.to_string())?;
        crate::output::text(&all::farewell(&mut lab).await?)?;
    }
    Ok(exit_code(all.check.ok))
}

fn exit_code(ok: bool) -> ExitCode {
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
