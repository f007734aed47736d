//! `outflow dead-letters`: what was set aside so that the others could go on, and what becomes of it.
//!
//! | module | does |
//! | --- | --- |
//! | `select` | which letters a command is about |
//! | `list` | a line for each |
//! | `show` | everything about some |
//! | `settle` | asks for a retry, or discards |

mod list;
mod select;
mod settle;
mod show;

use std::process::ExitCode;

use anyhow::Context;
use tokio_postgres::Client;

use crate::cli::Global;
use crate::config::{Config, Problem, Problems, Sources};

/// Lists dead letters, shows them, has them tried again, or gives them up
///
/// A dead letter is an event that failed consumer.max_attempts times, an event that ended its worker again and
/// again, or an entry that is no event. It has had no effect. With consumer.on_failure = "park_aggregate" later
/// events of its aggregate wait behind it until it is retried or discarded.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  outflow dead-letters                                         the open ones
  outflow dead-letters show 17                                 everything about one
  outflow dead-letters retry --reason 23514 --dry-run          what would be tried again
  outflow dead-letters retry --type OrderPlaced --wait         try them again, and say what came of it
  outflow dead-letters discard 17 --note 'a test order'        give one up

Exit codes: 0 done; 1 failed, or a retry that was waited for failed again; 2 configuration; 3 refused."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: list::ListArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists dead letters, the oldest first
    List(list::ListArgs),
    /// Shows everything about some: payload as delivered, headers, error, attempts
    Show(show::ShowArgs),
    /// Has them tried again, under the same event id and in the order of their aggregate
    Retry(settle::RetryArgs),
    /// Gives them up: they will have no effect, and what waits behind them goes on
    Discard(settle::DiscardArgs),
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = Config::load(&Sources::of_process(global, &[])?)?;
    crate::service::single_threaded()?.block_on(async {
        let mut store = Store::open(&config).await?;
        match &args.command {
            None => list::run(&args.list, &store).await,
            Some(Command::List(args)) => list::run(args, &store).await,
            Some(Command::Show(args)) => show::run(args, &store).await,
            Some(Command::Retry(args)) => settle::retry(args, &store).await,
            Some(Command::Discard(args)) => settle::discard(args, &mut store).await,
        }
    })
}

/// The dead letters of the configured consumer.
struct Store {
    client: Client,
    consumer_id: String,
}

impl Store {
    async fn open(config: &Config) -> anyhow::Result<Self> {
        let consumer_id = config.consumer.options.consumer_id.clone();
        if consumer_id.is_empty() {
            let message = "is not set: it names the consumer, for example \"accounting\"";
            return Err(Problems(vec![Problem::new("consumer.id", message)]).into());
        }
        let client = crate::database::connect(&config.consumer_connect()?).await?;
        Ok(Self { client, consumer_id })
    }
}

/// What an error of these commands most likely means.
fn explain<T>(result: Result<T, tokio_postgres::Error>) -> anyhow::Result<T> {
    use tokio_postgres::error::SqlState;
    let outdated = |error: &tokio_postgres::Error| {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN];
        error.code().is_some_and(|code| missing.contains(code))
    };
    match result {
        Err(error) if outdated(&error) => {
            Err(error).context("the inbox is not there or older than this program: outflow init")
        }
        result => Ok(result?),
    }
}
