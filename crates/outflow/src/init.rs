//! `outflow init`: applies `sql/` to the databases.
//!
//! | module | does |
//! | --- | --- |
//! | `migrations` | holds the files, compiled in |
//! | `preflight` | says what the role or the server lacks, with the statement that gives it |
//! | `apply` | applies and records |
//! | `report` | says what was done |

mod apply;
mod migrations;
mod preflight;
mod report;

use std::process::ExitCode;

use anyhow::Context;
use outflow_pgoutput::ConnectOptions;
use tokio_postgres::Client;

use self::apply::{Outcome, Publication, Step};
use self::migrations::{Migration, Side};
use self::preflight::Facts;
use self::report::{DatabaseReport, Report};
use crate::cli::Global;
use crate::config::{Config, Sources};
use crate::failure::Refused;

/// Group roles that the files create.
const PRODUCER_ROLES: [&str; 2] = ["outflow_connector", "outflow_producer"];
const CONSUMER_ROLES: [&str; 1] = ["outflow_consumer"];

/// Creates outbox, publication, roles and inbox in the databases
///
/// Applies the numbered SQL files that this program carries, each in a transaction, and records them in
/// outflow.migration. Running it again changes nothing. An outbox of another name (source.table) is left
/// as it is and gets a publication.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow init --source postgres://postgres@db/shop
  outflow init --source postgres://postgres@db/shop --consumer postgres://postgres@db/books --demo
  outflow init --source postgres://postgres@db/shop --polling
  outflow init --dry-run                       what would be done
  outflow init --print-sql > init.sql          for a DBA to read and run

URLs on a command line are seen by every user of the machine: prefer OUTFLOW_SOURCE__URL, or a password
file. Exit code 3: a privilege or a setting is missing, and the message has the statement.")]
pub(crate) struct Args {
    /// Database with the outbox [default: source.url]
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// Database with the inbox [default: consumer.url; none: no inbox]
    #[arg(long, value_name = "URL")]
    consumer: Option<String>,
    /// Also the demo: a double-entry ledger that emits events, and a projection of turnover
    #[arg(long)]
    demo: bool,
    /// Also what `outflow relay --polling` needs in outflow.outbox: three columns and their indexes
    #[arg(long)]
    polling: bool,
    /// Print everything as one SQL script and connect to nothing
    #[arg(long, conflicts_with_all = ["dry_run", "json"])]
    print_sql: bool,
    /// Say what would be done and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let flags = [
        ("--source", "source.url", args.source.as_deref()),
        ("--consumer", "consumer.url", args.consumer.as_deref()),
    ];
    let config = Config::load(&Sources::of_process(global, &flags)?)?;
    if args.print_sql {
        crate::output::text(&script(args, &config))?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = crate::service::single_threaded()?.block_on(init(args, &config))?;
    if args.json {
        crate::output::json(&report)?;
    } else {
        crate::output::text(&report.to_string())?;
    }
    // what was applied stays applied; what is left needs a person
    Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::from(crate::failure::REFUSED) })
}

async fn init(args: &Args, config: &Config) -> anyhow::Result<Report> {
    // a consumer's host may have no access to the source at all
    let consumer_only = config.source.url.is_empty() && !config.consumer.url.is_empty();
    let mut databases = Vec::new();
    if !consumer_only {
        let connect = config.source_connect()?;
        let sides = producer_sides(args);
        databases.push(init_database(&connect, &sides, config, args.dry_run).await?);
    }
    if !config.consumer.url.is_empty() {
        let side =
            if args.demo { vec![Side::Consumer, Side::DemoConsumer] } else { vec![Side::Consumer] };
        let connect = config.consumer_connect()?;
        databases.push(init_database(&connect, &side, config, args.dry_run).await?);
    }
    Ok(Report::new(databases, args.dry_run))
}

fn producer_sides(args: &Args) -> Vec<Side> {
    let mut sides = vec![Side::Producer];
    sides.extend(args.polling.then_some(Side::Polling));
    sides.extend(args.demo.then_some(Side::DemoProducer));
    sides
}

async fn init_database(
    connect: &ConnectOptions,
    sides: &[Side],
    config: &Config,
    dry_run: bool,
) -> anyhow::Result<DatabaseReport> {
    let mut client = crate::database::connect(connect).await?;
    let is_producer = sides.contains(&Side::Producer);
    let work = async {
        let facts = Facts::read(&client).await?;
        let steps = apply_all(&mut client, &facts, sides, config, dry_run).await?;
        let roles: &[_] = if is_producer { &PRODUCER_ROLES } else { &CONSUMER_ROLES };
        let mut notes = if is_producer { facts.remarks() } else { Vec::new() };
        if !dry_run {
            notes.extend(preflight::missing_roles(&client, roles).await?);
        }
        let needs = if is_producer { facts.missing_settings() } else { Vec::new() };
        let sides = sides.iter().map(ToString::to_string).collect();
        anyhow::Ok(DatabaseReport { sides, url: connect.redacted(), steps, notes, needs })
    };
    work.await.with_context(|| connect.redacted())
}

async fn apply_all(
    client: &mut Client,
    facts: &Facts,
    sides: &[Side],
    config: &Config,
    dry_run: bool,
) -> anyhow::Result<Vec<Step>> {
    let recorded = apply::recorded(client).await?;
    let files: Vec<_> = files(sides, config).collect();
    let mut publication = foreign_publication(config).filter(|_| sides.contains(&Side::Producer));
    let mut steps = Vec::new();
    if let Some(there) = &publication
        && there.exists(client).await?
    {
        steps.push(Step { name: there.title(), outcome: Outcome::Present });
        publication = None;
    }
    let pending: Vec<_> =
        files.iter().filter(|file| apply::outcome(file, &recorded) == Outcome::Pending).collect();
    if !pending.is_empty() || publication.is_some() {
        let creates_publication =
            publication.is_some() || pending.iter().any(|file| file.name == "publication");
        refuse(facts, creates_publication)?;
    }
    for file in files {
        steps.push(match apply::outcome(file, &recorded) {
            Outcome::Pending if !dry_run => apply::apply(client, file).await?,
            outcome => Step { name: file.title(), outcome },
        });
    }
    if let Some(publication) = &publication {
        steps.push(match dry_run {
            true => Step { name: publication.title(), outcome: Outcome::Pending },
            false => publication.create(client).await?,
        });
    }
    Ok(steps)
}

fn refuse(facts: &Facts, creates_publication: bool) -> anyhow::Result<()> {
    let needs = facts.missing_privileges(creates_publication);
    if needs.is_empty() {
        return Ok(());
    }
    let list: Vec<_> =
        needs.iter().map(|need| format!("{}: run {}", need.what, need.sql)).collect();
    Err(Refused(list.join("\n  ")).into())
}

/// The files of `sides` that apply: an outbox of another name needs none of ours.
fn files(sides: &[Side], config: &Config) -> impl Iterator<Item = &'static Migration> {
    sides.iter().flat_map(|side| Migration::of(*side)).filter(|file| !is_skipped(file, config))
}

fn is_skipped(file: &Migration, config: &Config) -> bool {
    let our_table = config.source.table.to_string() == "outflow.outbox";
    let our_publication = our_table && config.source.publication == "outflow";
    match (file.side, file.name) {
        // another table gets its columns by hand: the relay says which
        (Side::Producer, "outbox" | "emit") | (Side::Polling, _) => !our_table,
        (Side::Producer, "publication") => !our_publication,
        _ => false,
    }
}

/// The publication that no file creates.
fn foreign_publication(config: &Config) -> Option<Publication<'_>> {
    let ours = config.source.table.to_string() == "outflow.outbox"
        && config.source.publication == "outflow";
    let publication = Publication { name: &config.source.publication, table: &config.source.table };
    (!ours).then_some(publication)
}

/// The sides that the flags name, or both.
fn script(args: &Args, config: &Config) -> String {
    let both = args.source.is_some() == args.consumer.is_some();
    let mut sides = Vec::new();
    if both || args.source.is_some() {
        sides.extend(producer_sides(args));
    }
    if both || args.consumer.is_some() {
        sides.push(Side::Consumer);
        sides.extend(args.demo.then_some(Side::DemoConsumer));
    }
    let mut script = migrations::script(&sides, |file| is_skipped(file, config));
    if let Some(publication) =
        foreign_publication(config).filter(|_| sides.contains(&Side::Producer))
    {
        script.push_str(&format!("-- {}\n{}", publication.title(), publication.sql()));
    }
    script
}
