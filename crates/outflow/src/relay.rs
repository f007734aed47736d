//! `outflow relay`: the connector or the polling relay, until a signal.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use outflow_relay::status::{Reporter, State, Status};
use tokio::sync::watch;

use crate::cli::Global;
use crate::config::{Config, Sources};
use crate::http::{Health, Probe};

/// Runs the connector: reads the database's log and publishes the outbox's events
///
/// With --polling it runs the polling relay instead, which asks the table: no slot and no publication, but
/// a write for every claim and mark, entries that a crash may repeat, and a delay of polling.interval. Any number
/// of polling relays may run side by side; `outflow compare` measures both.
///
/// Resumes where it stopped, whatever ended it. On the first start it creates the slot and publishes the
/// rows that are already there (source.snapshot). Standing still is never silent: the log, /readyz and
/// `outflow status` say why. SIGTERM and SIGINT stop it in order, a second one at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow relay                                     with outflow.toml
  outflow relay --listen 127.0.0.1:9187             with health, status and metrics
  outflow relay --polling                           after outflow init --polling
  outflow relay --set source.snapshot=never --log-level debug

Exit codes: 0 stopped by a signal; 1 failed; 2 configuration; 3 refused, the message has the way out.")]
pub(crate) struct Args {
    /// Ask the table instead of reading the log (section `polling` of the configuration)
    #[arg(long)]
    polling: bool,
    /// Database with the outbox [default: source.url]
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// Redis [default: sink.url]
    #[arg(long, value_name = "URL")]
    sink: Option<String>,
    /// Address of health, status and metrics [default: http.listen]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[command(flatten)]
    faults: crate::fault::Faults,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let flags = [
        ("--source", "source.url", args.source.as_deref()),
        ("--sink", "sink.url", args.sink.as_deref()),
        ("--listen", "http.listen", args.listen.as_deref()),
    ];
    let config = Config::load(&Sources::of_process(global, &flags)?)?;
    let connector = config.connector_config()?;
    crate::log::start(&config, global)?;
    args.faults.arm()?;
    if !args.polling {
        crate::service::let_servers_go_first();
    }
    // one loop that is busy with two sockets: a second thread would only hand work over
    crate::service::single_threaded()?.block_on(async {
        let stop = crate::service::stop_on_signal()?;
        let reporter = Reporter::new();
        let metrics = crate::http::record(config.listen)?;
        crate::http::serve(config.listen, metrics, probe(reporter.subscribe())).await?;
        let (version, table) = (env!("CARGO_PKG_VERSION"), &connector.source.table);
        let source = &connector.source.connect;
        if args.polling {
            let relay = &config.polling.relay;
            tracing::info!(version, relay, %source, %table, "polling relay starts");
            let polling = config.polling.clone();
            outflow_relay::polling::run(connector, polling, reporter, stop).await
        } else {
            let (name, slot) = (&connector.connector, &connector.source.slot);
            tracing::info!(version, connector = name, %source, %table, slot, "connector starts");
            if config.retention.of_relay() {
                // beside the connector: whatever happens to it, events go on
                let retention = config.relay_retention();
                let retention =
                    outflow_relay::retention::run(connector.clone(), retention, stop.clone());
                tokio::spawn(retention);
            }
            outflow_relay::connector::run(connector, reporter, stop).await
        }
        .context("relay")?;
        Ok(ExitCode::SUCCESS)
    })
}

fn probe(status: watch::Receiver<Status>) -> Probe {
    Arc::new(move || {
        let status = status.borrow();
        let detail = serde_json::to_value(&*status).unwrap_or_default();
        Health::new("relay", reason(&status.state), detail)
    })
}

/// Why it does not move events; `None` if it does.
fn reason(state: &State) -> Option<String> {
    match state {
        State::Snapshot | State::Streaming | State::Polling => None,
        State::Starting => Some("starting".to_owned()),
        State::Waiting { on, reason } => Some(format!("waiting for {}: {reason}", on.as_str())),
        State::Stopped => Some("stopped".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outflow_relay::status::On;

    #[test]
    fn readiness_follows_the_state_and_says_why_not() {
        let reporter = Reporter::new();
        let probe = probe(reporter.subscribe());
        assert_eq!(probe().reason.as_deref(), Some("starting"));
        reporter.state(State::Streaming);
        assert!(probe().ready);
        reporter.state(State::Waiting { on: On::Sink, reason: "redis: OOM".to_owned() });
        assert!(!probe().ready);
        assert_eq!(probe().reason.as_deref(), Some("waiting for sink: redis: OOM"));
    }
}
