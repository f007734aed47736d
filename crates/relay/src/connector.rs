//! Runs the connector: attempt after attempt, until it is told to stop or a person is needed.
//!
//! One attempt: compare the stored offset with slot and server, bring the snapshot if there is one
//! to bring, stream. Whatever ends an attempt, the next one starts from the stored offset; nothing
//! else is carried over.

use std::time::{Duration, Instant};

use outflow_pgoutput::{FeedbackOptions, ReplicationClient, StartOptions};
use tokio::sync::watch;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::batch::Batch;
use crate::config::ConnectorConfig;
use crate::error::{Error, Retry};
use crate::intake::Intake;
use crate::offset::{ConfiguredStore, LedgerPace, Offset, OffsetStore as _};
use crate::patience::{answered, watched};
use crate::pipeline::Pipeline;
use crate::preflight::{self, Due};
use crate::publisher::{Offsets, Publisher, pause};
use crate::resume::{self, Decision, Facts, Wait};
use crate::rewind;
use crate::sink::RedisSink;
use crate::sink::connection::RedisLink;
use crate::snapshot::{self, Bootstrap, SnapshotReader};
use crate::status::{On, Reporter, State};
use crate::stop::{self, LINK_DEADLINE, unless_stopped};
use crate::watch as watcher;

/// A link that has lasted this long has settled.
const SETTLED: Duration = Duration::from_secs(3);

/// Runs a connector until `shutdown` is cancelled.
///
/// Order and durability: what the guarantees G1-G3 and G6 say. After the return the slot is free
/// and everything that was taken in is published and confirmed, if both servers answered within
/// [`STOP_DEADLINE`](crate::STOP_DEADLINE); otherwise it is delivered at the next start.
///
/// # Errors
/// What a person has to decide or mend. Transient failures are retried for ever; after the
/// connector has streamed once, so are refusals that can be mended while it runs (publication,
/// table, a key of another type).
///
/// # Cancel safety
/// Dropping the future is like a crash: nothing is lost or doubled.
pub async fn run(
    config: ConnectorConfig,
    reporter: Reporter,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let give_up = CancellationToken::new();
    let overdue = stop::overdue(shutdown.clone(), give_up.clone());
    let mut connector = Connector {
        config,
        reporter: reporter.clone(),
        shutdown,
        give_up,
        has_streamed: false,
        failures: 0,
        streaming_since: None,
        warned: Vec::new(),
    };
    let result = tokio::select! {
        result = connector.run() => result,
        () = overdue => Ok(()),
    };
    reporter.state(State::Stopped);
    result
}

struct Connector {
    config: ConnectorConfig,
    reporter: Reporter,
    shutdown: CancellationToken,
    give_up: CancellationToken,
    has_streamed: bool,
    failures: u32,
    streaming_since: Option<Instant>,
    /// Warnings that were given.
    warned: Vec<&'static str>,
}

impl Connector {
    async fn run(&mut self) -> Result<(), Error> {
        loop {
            let Err(error) = self.attempt().await else { return Ok(()) };
            if error.retry() == Retry::Fatal && !(self.has_streamed && error.can_be_mended()) {
                return Err(error);
            }
            if self.shutdown.is_cancelled() {
                warn!(
                    "stopped before everything was published, the rest follows at the next start: {error}"
                );
                return Ok(());
            }
            if self.made_progress() {
                self.failures = 0;
            }
            self.failures += 1;
            // a link that was cut is made again without a word, unless that fails too
            if self.failures == 1 && error.retry() == Retry::Transient {
                info!("connecting again: {error}");
            } else {
                let reason = preflight::explain(&error, &self.config.source);
                let reason = reason.unwrap_or_else(|| error.to_string());
                self.reporter.state(State::Waiting { on: error.waits_on(), reason });
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause(self.failures)) => {}
            }
        }
    }

    /// Whether the last attempt got somewhere: then what ended it is not one in a row of failures.
    fn made_progress(&mut self) -> bool {
        self.streaming_since.take().is_some_and(|since| since.elapsed() >= SETTLED)
    }

    async fn attempt(&mut self) -> Result<(), Error> {
        let shutdown = self.shutdown.clone();
        let Some(found) = unless_stopped(&shutdown, self.look()).await? else { return Ok(()) };
        let Found { mut link, sql, mut store, stored, facts, decision } = found;
        let from = match decision {
            Decision::Bootstrap { drop_slot, epoch } => {
                let source = &self.config.source;
                let (facts, stored) = (&facts, stored.as_ref());
                let plan = Bootstrap { source, facts, stored, drop_slot, epoch, stop: &shutdown };
                let reporter = &self.reporter;
                let mut waiting = |reason| reporter.state(State::Waiting { on: On::Slot, reason });
                let begun =
                    snapshot::bootstrap(plan, &mut link, &sql, &mut store, &mut waiting).await?;
                let Some(from) = begun else { return Ok(()) };
                from
            }
            Decision::ContinueSnapshot { from } => from,
            Decision::Adopt { from } => {
                self.announce_adoption(&sql, &from).await;
                store.save(&from).await?;
                from
            }
            Decision::Resume { from, fork } => {
                if let Some(fork) = fork {
                    warn!("{fork}");
                    store.save(&from).await?;
                    fail::fail_point!("relay::epoch_raised");
                }
                from
            }
            Decision::Wait(wait) => return Err(Error::NotYet(wait)),
            Decision::Refuse(refusal) => return Err(Error::NoResume(refusal)),
        };
        let mut publisher = self.publisher(store);
        let from = match &from.snapshot {
            None => from,
            Some(progress) => {
                let opening = SnapshotReader::open(sql, &self.config.source, progress);
                let opening = self.patiently("preparing the snapshot", opening);
                let Some(mut reader) = unless_stopped(&shutdown, opening).await? else {
                    return Ok(());
                };
                self.reporter.state(State::Snapshot);
                let (publisher, give_up) = (&mut publisher, &self.give_up);
                let complete = snapshot::publish(
                    &mut reader,
                    from,
                    &self.config,
                    publisher,
                    &shutdown,
                    give_up,
                );
                match complete.await? {
                    Some(from) => from,
                    None => return Ok(()),
                }
            }
        };
        self.stream(link, publisher, from).await
    }

    /// Looks at the stored offset and at both servers before anything is asked of them.
    async fn look(&mut self) -> Result<Found, Error> {
        let mut store = ConfiguredStore::new(&self.config);
        let on = match store {
            ConfiguredStore::Redis(_) => On::Sink,
            ConfiguredStore::Postgres(_) => On::Offset,
        };
        let reading = (on, "reading the stored offset");
        let stored = watched(&self.reporter, reading, State::Starting, store.load()).await?;
        let source = &self.config.source;
        let connecting = async {
            let sql = source.connect.connect_sql().await?.client;
            Ok((sql, ReplicationClient::connect(&source.connect).await?))
        };
        let (sql, mut link) = self.patiently("connecting", connecting).await?;
        let looking = async {
            let looking = "looking at the slot";
            let inspect = resume::inspect(&mut link, &source.slot, stored.as_ref());
            let facts = answered(looking, inspect).await?;
            let decision = resume::decide(&facts, stored.as_ref(), source.snapshot);
            let back = rewind::go_back(&sql, &mut link, &facts, &decision);
            if !answered("putting the slot back", back).await? {
                return Ok((facts, decision));
            }
            let inspect = resume::inspect(&mut link, &source.slot, stored.as_ref());
            let facts = answered(looking, inspect).await?;
            let decision = resume::decide(&facts, stored.as_ref(), source.snapshot);
            Ok((facts, decision))
        };
        let (facts, decision) = self.patiently("looking at the slot", looking).await?;
        self.preflight(&sql, Due::of(&decision, &self.config.source)).await?;
        Ok(Found { link, sql, store, stored, facts, decision })
    }

    /// Says so when the source does not answer.
    async fn patiently<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        watched(&self.reporter, (On::Source, doing), State::Starting, work).await
    }

    async fn preflight(&mut self, sql: &Client, due: Due) -> Result<(), Error> {
        let config = &self.config;
        let source = preflight::check_source(&config.source, sql, due);
        let mut report = self.patiently("checking server, table and publication", source).await?;
        let mut redis = RedisLink::new(config.sink.redis.clone(), config.sink.timeout);
        let broker = preflight::check_broker(&config.sink, &mut redis);
        let checking = (On::Sink, "checking the server");
        let broker = watched(&self.reporter, checking, State::Starting, broker).await?;
        report.findings.extend(broker.findings);
        for warning in report.warnings() {
            if !self.warned.contains(&warning.code) {
                self.warned.push(warning.code);
                warn!(code = warning.code, "{}: {}", warning.message, warning.remedy);
            }
        }
        report.obstacle().map_or(Ok(()), Err)
    }

    async fn announce_adoption(&self, sql: &Client, from: &Offset) {
        let source = &self.config.source;
        let counting = snapshot::outbox_rows(sql, &source.table);
        let rows = match answered("counting outbox rows", counting).await {
            Ok(rows) => rows.to_string(),
            // streaming needs no right to read the table
            Err(error) => format!("an unknown number: {error}"),
        };
        info!(
            slot = source.slot,
            start = %from.end_lsn,
            "the slot was there before this connector and no offset is stored: beginning where \
             the slot stands; rows that are older than the slot are not published ({} has {rows})",
            source.table
        );
    }

    async fn stream(
        &mut self,
        link: ReplicationClient,
        publisher: Publisher<RedisSink, ConfiguredStore>,
        from: Offset,
    ) -> Result<(), Error> {
        let config = &self.config;
        let start = StartOptions {
            start: from.end_lsn,
            messages: config.source.message_prefix.is_some(),
            ..StartOptions::new(&config.source.slot, &config.source.publication)
        };
        let feedback = FeedbackOptions {
            status_interval: config.source.status_interval,
            // stored first, confirmed after that (docs/adr/0005)
            idle_advance: false,
            ..FeedbackOptions::default()
        };
        let walsender = link.process_id();
        let starting = async { Ok(link.start_replication(start, feedback).await?) };
        let starting = answered("starting replication", starting);
        let starting = self.patiently("starting replication", starting);
        let Some(mut stream) = unless_stopped(&self.shutdown, starting).await? else {
            return Ok(());
        };
        // after a failure, words wait until the link has lasted: some errors come with the stream
        let lasting = if self.failures == 0 { Duration::ZERO } else { SETTLED };
        self.has_streamed = true;
        self.streaming_since = Some(Instant::now());

        let (found, fault) = watch::channel(None);
        let pipeline = Pipeline {
            intake: Intake::new(config, from),
            publisher,
            batch: Batch::new(&config.sink.redis),
            batch_entries: config.sink.batch_entries,
            batch_bytes: config.sink.batch_bytes,
            reporter: self.reporter.clone(),
            fault,
            shutdown: self.shutdown.clone(),
            give_up: self.give_up.clone(),
        };
        let looking = CancellationToken::new();
        let watching =
            watcher::run(&config.source, walsender, &looking, &self.reporter, |report| {
                if let Some(reason) = report.fault() {
                    found.send_replace(Some(reason));
                }
            });
        let rewinding = rewind::keep(&config.source, &looking);
        let announcing = async {
            tokio::time::sleep(lasting).await;
            self.reporter.state(State::Streaming);
            std::future::pending::<()>().await;
        };
        let result = tokio::select! {
            result = pipeline.run(&mut stream) => result,
            () = watching => Ok(()),
            () = rewinding => Ok(()),
            () = announcing => Ok(()),
        };
        // an orderly end tells the server the last position and frees the slot for the next link
        if let Err(error) = stream.stop(LINK_DEADLINE).await
            && result.is_ok()
        {
            warn!("the link did not end in order, some events may be read again: {error}");
        }
        result
    }

    fn publisher(&self, store: ConfiguredStore) -> Publisher<RedisSink, ConfiguredStore> {
        let config = &self.config;
        let offsets = match store {
            // a transaction reaches no further than its slot: a cluster has the offset apart
            ConfiguredStore::Redis(_) if !config.sink.redis.is_cluster() => Offsets::Beside {
                connector: config.connector.clone(),
                ledger_entries: config.offset.ledger_entries,
                pace: LedgerPace::new(config.offset.ledger_interval),
            },
            ConfiguredStore::Redis(_) | ConfiguredStore::Postgres(_) => Offsets::Apart(store),
        };
        let sink = RedisSink::new(&config.sink, &config.connector);
        Publisher::new(sink, offsets, self.reporter.clone())
    }
}

/// What an attempt begins with.
struct Found {
    link: ReplicationClient,
    sql: Client,
    store: ConfiguredStore,
    stored: Option<Offset>,
    facts: Facts,
    decision: Decision,
}

impl Error {
    /// What a relay that meets this error waits for.
    pub(crate) fn waits_on(&self) -> On {
        match self {
            Self::SinkUnavailable(_)
            | Self::SinkRefused(_)
            | Self::Undurable { .. }
            | Self::EntriesLost { .. }
            | Self::StreamBehind { .. }
            | Self::GivenUp
            | Self::LeaseLost { .. } => On::Sink,
            Self::NotYet(Wait::Standby { .. }) => On::Source,
            Self::NotYet(_) => On::Slot,
            Self::NoResume(refusal) => refusal.waits_on(),
            Self::Superseded { .. } | Self::BadRecord { .. } => On::Offset,
            Self::Unsound(_)
            | Self::Refused(_)
            | Self::Replication(outflow_pgoutput::Error::PublicationMissing(_)) => On::Publication,
            Self::Replication(_)
            | Self::Sql { .. }
            | Self::LinkClosed
            | Self::NoAnswer { .. }
            | Self::Protocol(_)
            | Self::Position(_) => On::Source,
        }
    }

    /// Whether an operator can lift the cause without restarting the connector.
    fn can_be_mended(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::NoResume(_)
                | Self::SinkRefused(_)
                | Self::Replication(_)
                | Self::Sql { .. }
        )
    }
}
