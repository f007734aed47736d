//! `outflow consume`: one worker of a consumer with a projection in SQL, until a signal.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use outflow_inbox::retention::Retention;
use outflow_inbox::{Connect, Consumer, SqlProjection, State, Status};
use outflow_pgoutput::ConnectOptions;
use tokio::sync::watch;

use crate::cli::Global;
use crate::config::{Config, Problem, Problems, Sources};
use crate::http::{Health, Probe};

/// Runs a consumer: applies events to a database, each exactly once
///
/// The inbox and a projection, a file of SQL over the relation `events`, share one transaction. Several
/// workers of one consumer share out its streams; each has its own consumer.worker. SIGTERM and SIGINT stop it
/// in order, a second one at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow consume                                   with outflow.toml
  outflow consume --from beginning                  a new consumer that applies all that is there
  outflow consume --from 2026-01-31T12:00:00Z       a new one that applies what committed since then
  outflow consume --set consumer.worker=worker-2    a second worker
  outflow consume --consumer postgres://books@db/books --projection turnover.sql

Exit codes: 0 stopped by a signal; 1 failed; 2 configuration; 3 refused, a person has to act.")]
pub(crate) struct Args {
    /// Database with the inbox [default: consumer.url]
    #[arg(long, value_name = "URL")]
    consumer: Option<String>,
    /// File of SQL statements over the relation `events` [default: consumer.projection]
    #[arg(long, value_name = "FILE")]
    projection: Option<String>,
    /// Where a consumer begins that is new to streams with entries: beginning, now, a position, an entry id or
    /// a time; without effect once it has begun [default: consumer.from]
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// Address of health, status and metrics [default: http.listen]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[command(flatten)]
    faults: crate::fault::Faults,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let flags = [
        ("--consumer", "consumer.url", args.consumer.as_deref()),
        ("--projection", "consumer.projection", args.projection.as_deref()),
        ("--from", "consumer.from", args.from.as_deref()),
        ("--listen", "http.listen", args.listen.as_deref()),
    ];
    let config = Config::load(&Sources::of_process(global, &flags)?)?;
    let consumer = config.consumer_config()?;
    let connect = config.consumer_connect()?;
    let projection = projection(&config)?;
    crate::log::start(&config, global)?;
    args.faults.arm()?;
    // reading, applying and acknowledging overlap
    crate::service::beside_servers()?.block_on(async {
        let stop = crate::service::stop_on_signal()?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            consumer = consumer.consumer_id,
            worker = consumer.worker,
            database = %connect,
            "consumer starts"
        );
        let metrics = crate::http::record(config.listen)?;
        let connect = connections(connect);
        // also where nothing is to be removed: the connector asks what this consumer needs
        let options = config.consumer_retention();
        let retention = Retention::new(consumer.clone(), options, connect.clone());
        let until = stop.clone();
        tokio::spawn(async move { retention.run(until).await });
        let consumer = Consumer::new(consumer, connect, projection);
        crate::http::serve(config.listen, metrics, probe(consumer.status())).await?;
        let summary = consumer.run(stop).await.context("consume")?;
        tracing::info!(clean = summary.clean, counts = ?summary.counts, "consumer stopped");
        Ok(ExitCode::SUCCESS)
    })
}

fn projection(config: &Config) -> anyhow::Result<SqlProjection> {
    let Some(path) = &config.consumer.projection else {
        let message = "is not set: it names the file of SQL that applies the relation `events`";
        return Err(Problems(vec![Problem::new("consumer.projection", message)]).into());
    };
    SqlProjection::from_file(path).map_err(|error| {
        let subject = format!("consumer.projection = \"{}\"", path.display());
        Problems(vec![Problem::new(subject, crate::failure::chain(&error.into()))]).into()
    })
}

/// Makes connections to the consumer's database.
pub(crate) fn connections(options: ConnectOptions) -> Connect {
    Arc::new(move || {
        let options = options.clone();
        Box::pin(async move { Ok(options.connect_sql().await?.client) })
    })
}

fn probe(status: watch::Receiver<Status>) -> Probe {
    Arc::new(move || {
        let status = status.borrow();
        Health::new("consume", reason(&status.state), detail(&status))
    })
}

/// Why it applies nothing; `None` if it does, or has nothing to apply.
fn reason(state: &State) -> Option<String> {
    match state {
        State::Running => None,
        State::Starting => Some("starting".to_owned()),
        State::Waiting { component, reason, .. } => Some(format!("{component} waits: {reason}")),
        State::Stopped => Some("stopped".to_owned()),
        // the enum may grow: an unknown state is no reason to take the process out of service
        _ => None,
    }
}

fn detail(status: &Status) -> serde_json::Value {
    let counts = status.counts;
    let since = match &status.state {
        State::Waiting { since, .. } => {
            since.duration_since(UNIX_EPOCH).ok().map(|at| at.as_secs())
        }
        _ => None,
    };
    serde_json::json!({
        "waiting_since": since,
        "lag_entries": status.lag_entries,
        "streams": status.streams,
        "batches": counts.batches,
        "applied": counts.applied,
        "duplicates": counts.duplicates,
        "conflicts": counts.conflicts,
        "malformed": counts.malformed,
        "lost": counts.lost,
        "claimed": counts.claimed,
        "acknowledged": counts.acknowledged,
        "retries": counts.retries,
        "failed": counts.failed,
        "parked": counts.parked,
        "dead": counts.dead,
        "gaps": counts.gaps,
        "held": {
            "parked_events": status.held.parked,
            "open_dead_letters": status.held.dead_letters,
            "oldest": status.held.oldest,
        },
    })
}
