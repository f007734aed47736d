//! `outflow conflicts`: two payloads under one event id, looked at and settled.
//!
//! | module | does |
//! | --- | --- |
//! | `select` | flags that choose conflicts |
//! | `report` | tables and JSON of conflicts, and of one with its differences |
//! | `resolve` | writes down what a person decided |

mod report;
mod resolve;
mod select;

use std::process::ExitCode;

use anyhow::Context;
use outflow_inbox::conflicts::{self, Filter, Which};
use tokio_postgres::Client;

use self::report::{Listed, Shown};
use self::select::Selection;
use crate::cli::Global;
use crate::config::{Config, Sources};
use crate::failure::Refused;

/// Lists conflicts, shows where their payloads differ, and records how they are settled
///
/// A conflict is a known event id that arrived with another payload. It was not applied, nothing waits for it,
/// and both payloads are kept until somebody decides which one holds.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  outflow conflicts                                      what is open
  outflow conflicts list --type order --since 2026-01-31T12:00:00Z --json
  outflow conflicts show 17                              both payloads, and where they differ
  outflow conflicts resolve keep 17 --reason 'producer sent a draft twice'
  outflow conflicts resolve replace 18 --reason 'the first one was the draft'
  outflow conflicts resolve keep --type order --dry-run --reason 'test data'

Exit codes: 0 done; 1 failed; 2 configuration; 3 refused, nothing was settled."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// Whose conflicts, and where they are.
#[derive(Debug, clap::Args)]
struct Place {
    /// Database with the inbox [default: consumer.url]
    #[arg(long, global = true, value_name = "URL")]
    consumer: Option<String>,
    /// The consumer [default: consumer.id]
    #[arg(long, global = true, value_name = "ID")]
    consumer_id: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists conflicts, oldest first
    List(ListArgs),
    /// Shows one conflict: both payloads, and where they differ
    Show(ShowArgs),
    /// Settles conflicts
    Resolve(resolve::Args),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    selection: Selection,
    /// Those that are settled
    #[arg(long, conflicts_with = "all")]
    resolved: bool,
    /// Open and settled ones
    #[arg(long)]
    all: bool,
    /// Most conflicts to list
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: usize,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The conflict
    conflict: i64,
    /// Report as JSON, with every difference
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let flags = [
        ("--consumer", "consumer.url", args.place.consumer.as_deref()),
        ("--consumer-id", "consumer.id", args.place.consumer_id.as_deref()),
    ];
    let config = Config::load(&Sources::of_process(global, &flags)?)?;
    let consumer_id = config.consumer_id()?.to_owned();
    let connect = config.consumer_connect()?;
    crate::service::single_threaded()?.block_on(async {
        let client = crate::database::connect(&connect).await?;
        match &args.command {
            None => list(&args.list, consumer_id, &client).await,
            Some(Command::List(args)) => list(args, consumer_id, &client).await,
            Some(Command::Show(args)) => show(args, consumer_id, &client).await,
            Some(Command::Resolve(args)) => resolve::run(args, consumer_id, &client).await,
        }
    })
}

async fn list(args: &ListArgs, consumer_id: String, client: &Client) -> anyhow::Result<ExitCode> {
    let which = match (args.resolved, args.all) {
        (true, _) => Which::Resolved,
        (_, true) => Which::All,
        _ => Which::Open,
    };
    let filter = Filter { which, ..args.selection.filter(consumer_id)? };
    // one more tells whether there are more
    let mut found = conflicts::list(client, &filter, false, args.limit.saturating_add(1)).await?;
    let more = found.len() > args.limit;
    found.truncate(args.limit);
    let listed = Listed::new(&filter, &found, more);
    if args.json {
        crate::output::json(&listed)?;
    } else {
        crate::output::text(&listed.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &ShowArgs, consumer_id: String, client: &Client) -> anyhow::Result<ExitCode> {
    let filter = Filter {
        consumer_id,
        conflict_ids: Some(vec![args.conflict]),
        which: Which::All,
        ..Filter::default()
    };
    let found = conflicts::list(client, &filter, true, 1).await?;
    let Some(conflict) = found.into_iter().next() else {
        let (conflict, consumer) = (args.conflict, &filter.consumer_id);
        let message = format!(
            "consumer `{consumer}` has no conflict {conflict}: see `outflow conflicts list --all`"
        );
        return Err(Refused(message).into());
    };
    let shown = Shown::new(&conflict);
    if args.json {
        crate::output::json(&shown)?;
    } else {
        crate::output::text(&shown.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Who runs this, as far as the machine and the database know.
async fn somebody(client: &Client) -> anyhow::Result<String> {
    let role =
        client.query_one("SELECT session_user::text", &[]).await.context("asking who I am")?;
    let role: String = role.try_get(0)?;
    let login = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    Ok(match login.filter(|login| !login.is_empty()) {
        Some(login) => format!("{login} (database role {role})"),
        None => format!("database role {role}"),
    })
}
