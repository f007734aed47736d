//! The polling relay: claims rows of the outbox, publishes them, marks them published.
//!
//! It is the connector's rival, on the same table, with the same entries, batches and sink. It
//! needs no logical replication, no slot and no publication, and pays with writes: a claim and a
//! mark for every row.
//!
//! | module | does |
//! | --- | --- |
//! | [`config`](self::PollingConfig) | settings |
//! | `statements` | the SQL, as text: pure |
//! | `table` | looks whether the table has what the statements need |
//! | `claims` | runs them over one connection: claim, renew, mark, give back |
//! | `pace` | when to ask again: pure |
//! | `wake_up` | listens for NOTIFY |
//! | `cleanup` | deletes rows that were published long ago |
//! | [`backlog()`] | what waits, for those who look from outside |
//! | `cycle` | the loop: claim, publish, mark |
//!
//! What it promises, and what not:
//! - A committed row is published at least once, whatever dies. A row is taken because it is not
//!   published, never because of its place in a sequence or its time: a transaction that commits
//!   late is late and not lost (C87).
//! - A crash, or a lease that runs out while Redis stands still, repeats entries. The event id
//!   stays the same, so consumers that deduplicate by it see no difference. Entry ids are Redis's.
//! - Within an aggregate, the first delivery of each event follows the order of
//!   `source.order_by` (by default the primary key) among the rows that are visible together. That
//!   is the order of commits wherever transactions on one aggregate follow each other, which a lock
//!   on the aggregate's own row brings about. A relay claims the rows of an aggregate from the
//!   first unpublished one on, and leaves out aggregates of which another relay holds any row.
//! - No order across aggregates.
//! - A row that is inserted and deleted in one transaction is never seen (C04), and neither is
//!   `outflow.emit_message`: only the log has these.

mod backlog;
mod claims;
mod cleanup;
mod config;
mod cycle;
mod pace;
mod statements;
mod table;
mod wake_up;

pub use backlog::{Backlog, COUNTED, backlog};
pub use config::{ClaimColumns, PollingConfig, WakeUp};

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{ConnectorConfig, EntryIdMode};
use crate::error::{Error, Retry};
use crate::patience::watched;
use crate::preflight;
use crate::publisher::{Offsets, Publisher, pause};
use crate::sink::RedisSink;
use crate::sink::connection::RedisLink;
use crate::status::{On, Reporter, State};
use crate::stop::{self, unless_stopped};
use claims::Claims;
use cycle::Cycle;
use statements::{Key, Statements};
use wake_up::Bell;

/// An attempt that has lasted this long has settled.
const SETTLED: Duration = Duration::from_secs(3);

/// Runs a polling relay until `shutdown` is cancelled.
///
/// Of `config` it uses connector name, source and sink; slot, publication, snapshot and offset are
/// the connector's. Entry ids are made by Redis.
///
/// Order and durability: see the module. After the return what was published is marked and what
/// was claimed and not published is given back, if both servers answered within
/// [`STOP_DEADLINE`](crate::STOP_DEADLINE); otherwise it is free when the lease has run out.
///
/// # Errors
/// What a person has to decide or mend: a table without the columns, a missing privilege, a key of
/// another type in Redis. Transient failures are retried for ever.
///
/// # Cancel safety
/// Dropping the future is like a crash: nothing is lost, entries may be repeated.
pub async fn run(
    mut config: ConnectorConfig,
    polling: PollingConfig,
    reporter: Reporter,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    config.sink.entry_id = EntryIdMode::Auto;
    let give_up = CancellationToken::new();
    let overdue = stop::overdue(shutdown.clone(), give_up.clone());
    let mut relay = PollingRelay {
        // a claim names the run: one that was killed is never mistaken for its successor
        claimant: format!("{}/{:08x}", polling.relay, rand::random::<u32>()),
        config,
        polling,
        reporter: reporter.clone(),
        shutdown,
        give_up,
        unmarked: Vec::new(),
        failures: 0,
        warned: Vec::new(),
    };
    let result = tokio::select! {
        result = relay.run() => result,
        () = overdue => Ok(()),
    };
    reporter.state(State::Stopped);
    result
}

struct PollingRelay {
    claimant: String,
    config: ConnectorConfig,
    polling: PollingConfig,
    reporter: Reporter,
    shutdown: CancellationToken,
    give_up: CancellationToken,
    /// Published and not yet marked: outlives a lost connection.
    unmarked: Vec<Key>,
    failures: u32,
    /// Warnings that were given.
    warned: Vec<&'static str>,
}

impl PollingRelay {
    async fn run(&mut self) -> Result<(), Error> {
        loop {
            let started = Instant::now();
            let Err(error) = self.attempt().await else { return Ok(()) };
            if error.retry() == Retry::Fatal {
                return Err(error);
            }
            if self.shutdown.is_cancelled() {
                warn!("stopped before everything was marked, it may be published again: {error}");
                return Ok(());
            }
            if started.elapsed() >= SETTLED {
                self.failures = 0;
            }
            self.failures += 1;
            // a connection that was cut is made again without a word, unless that fails too
            if self.failures == 1 {
                info!("connecting again: {error}");
            } else {
                let reason = error.to_string();
                self.reporter.state(State::Waiting { on: error.waits_on(), reason });
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause(self.failures)) => {}
            }
        }
    }

    async fn attempt(&mut self) -> Result<(), Error> {
        let shutdown = self.shutdown.clone();
        let Some(found) = unless_stopped(&shutdown, self.look()).await? else { return Ok(()) };
        let (client, bell, statements) = found;
        let (config, polling) = (&self.config, &self.polling);
        let claims = Claims::new(client, statements.clone(), &self.claimant, &self.reporter);
        let sink = RedisSink::new(&config.sink, &config.connector);
        let publisher = Publisher::new(sink, Offsets::InTheRows, self.reporter.clone());
        let cycle = Cycle::new(config, polling, claims, bell, publisher)?;
        // after a failure, words wait until the connection has lasted
        let lasting = if self.failures == 0 { Duration::ZERO } else { SETTLED };
        let announcing = async {
            tokio::time::sleep(lasting).await;
            self.reporter.state(State::Polling);
            std::future::pending::<()>().await;
        };
        let cleaning = async {
            let Some(retention) = polling.retention else { return std::future::pending().await };
            let client = config.source.connect.connect_sql().await?.client;
            cleanup::run(&client, &statements, retention).await
        };
        tokio::select! {
            result = cycle.run(&mut self.unmarked, &self.shutdown, &self.give_up) => result,
            result = cleaning => result,
            () = announcing => Ok(()),
        }
    }

    /// Looks at both servers before a row is claimed.
    async fn look(&mut self) -> Result<(Client, Bell, Statements), Error> {
        let (config, polling) = (&self.config, &self.polling);
        let connecting = wake_up::connect(&config.source.connect, polling.wake_up);
        let waiting = (On::Source, "connecting");
        let (client, bell) = watched(&self.reporter, waiting, State::Starting, connecting).await?;
        // no limit: where no index tells rows apart, all of them are looked at
        let inspecting = table::inspect(&client, config, polling);
        let waiting = (On::Source, "looking at the table");
        let statements = watched(&self.reporter, waiting, State::Starting, inspecting).await?;
        self.check_broker().await?;
        Ok((client, bell, statements))
    }

    async fn check_broker(&mut self) -> Result<(), Error> {
        let sink = &self.config.sink;
        let mut redis = RedisLink::new(sink.redis.clone(), sink.timeout);
        let checking = preflight::check_broker(sink, &mut redis);
        let waiting = (On::Sink, "checking the server");
        let report = watched(&self.reporter, waiting, State::Starting, checking).await?;
        for warning in report.warnings() {
            if !self.warned.contains(&warning.code) {
                self.warned.push(warning.code);
                warn!(code = warning.code, "{}: {}", warning.message, warning.remedy);
            }
        }
        report.obstacle().map_or(Ok(()), Err)
    }
}
