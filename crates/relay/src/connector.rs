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
use crate::config::{ConnectorConfig, OffsetStoreKind};
use crate::error::{Error, Retry};
use crate::intake::Intake;
use crate::offset::{LedgerPace, Offset, OffsetStore, PostgresOffsetStore, RedisOffsetStore};
use crate::pipeline::Pipeline;
use crate::preflight::{self, Due};
use crate::publisher::{Offsets, Publisher, pause};
use crate::resume::{self, Decision, Wait};
use crate::rewind;
use crate::sink::RedisSink;
use crate::sink::connection::RedisLink;
use crate::snapshot::{self, Bootstrap, SnapshotReader};
use crate::status::{On, Reporter, State};
use crate::watch as watcher;

/// Time for an orderly end: what was taken in is published, the offset stored and confirmed.
pub const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A link that has lasted this long has settled.
const SETTLED: Duration = Duration::from_secs(3);

/// Time for the server to let go of the slot.
const LINK_DEADLINE: Duration = Duration::from_secs(5);

/// Runs a connector until `shutdown` is cancelled.
///
/// Order and durability: what the guarantees G1-G3 and G6 say. After the return the slot is free
/// and everything that was taken in is published and confirmed, if both servers answered within
/// [`STOP_DEADLINE`]; otherwise it is delivered at the next start.
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
    let deadline = tokio::spawn({
        let (shutdown, give_up) = (shutdown.clone(), give_up.clone());
        async move {
            shutdown.cancelled().await;
            tokio::time::sleep(STOP_DEADLINE).await;
            give_up.cancel();
        }
    });
    let mut connector = Connector {
        config,
        reporter,
        shutdown,
        give_up,
        has_streamed: false,
        failures: 0,
        streaming_since: None,
        warned: Vec::new(),
    };
    let result = connector.run().await;
    deadline.abort();
    connector.reporter.state(State::Stopped);
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
            if self.shutdown.is_cancelled() {
                if error.retry() == Retry::Fatal {
                    return Err(error);
                }
                warn!(
                    "stopped before everything was published, the rest follows at the next start: {error}"
                );
                return Ok(());
            }
            if error.retry() == Retry::Fatal && !(self.has_streamed && error.can_be_mended()) {
                return Err(error);
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
        let source = &self.config.source;
        let mut store = self.store().await?;
        let stored = store.load().await?;
        let sql = source.connect.connect_sql().await?.client;
        let mut link = ReplicationClient::connect(&source.connect).await?;
        let mut facts = resume::inspect(&mut link, &source.slot, stored.as_ref()).await?;
        let mut decision = resume::decide(&facts, stored.as_ref(), source.snapshot);
        if rewind::go_back(&sql, &source.slot, &decision).await? {
            facts = resume::inspect(&mut link, &source.slot, stored.as_ref()).await?;
            decision = resume::decide(&facts, stored.as_ref(), source.snapshot);
        }
        self.preflight(&sql, Due::of(&decision, &self.config.source)).await?;

        let from = match decision {
            Decision::Bootstrap { drop_slot, epoch } => {
                let source = &self.config.source;
                let (facts, stored) = (&facts, stored.as_ref());
                let plan = Bootstrap { source, facts, stored, drop_slot, epoch };
                let reporter = &self.reporter;
                let mut waiting = |reason| reporter.state(State::Waiting { on: On::Slot, reason });
                snapshot::bootstrap(plan, &mut link, &sql, &mut store, &mut waiting).await?
            }
            Decision::ContinueSnapshot { from } => from,
            Decision::Adopt { from } => {
                self.announce_adoption(&sql, &from).await?;
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
            Decision::Refuse(refusal) => return Err(Error::Refused(refusal.to_string())),
        };
        let mut publisher = self.publisher(store);
        let from = match &from.snapshot {
            None => from,
            Some(progress) => {
                let mut reader = SnapshotReader::open(sql, &self.config.source, progress).await?;
                self.reporter.state(State::Snapshot);
                let (shutdown, give_up) = (&self.shutdown, &self.give_up);
                let publisher = &mut publisher;
                let complete = snapshot::publish(
                    &mut reader,
                    from,
                    &self.config,
                    publisher,
                    shutdown,
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

    /// Looks at both servers before anything is asked of them.
    async fn preflight(&mut self, sql: &Client, due: Due) -> Result<(), Error> {
        let config = &self.config;
        let mut redis = RedisLink::new(config.sink.redis.clone(), config.sink.timeout);
        let report = preflight::check(config, sql, &mut redis, due).await?;
        for warning in report.warnings() {
            if !self.warned.contains(&warning.code) {
                self.warned.push(warning.code);
                warn!(code = warning.code, "{}: {}", warning.message, warning.remedy);
            }
        }
        report.obstacle().map_or(Ok(()), Err)
    }

    async fn announce_adoption(&self, sql: &Client, from: &Offset) -> Result<(), Error> {
        let source = &self.config.source;
        let rows = snapshot::outbox_rows(sql, &source.table).await?;
        info!(
            slot = source.slot,
            start = %from.end_lsn,
            "the slot was there before this connector and no offset is stored: beginning where \
             the slot stands; rows that are older than the slot are not published ({} has {rows})",
            source.table
        );
        Ok(())
    }

    async fn stream(
        &mut self,
        link: ReplicationClient,
        publisher: Publisher<RedisSink, Store>,
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
        let mut stream = link.start_replication(start, feedback).await?;
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
        let watching = watcher::run(&config.source, walsender, &looking, |report| {
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

    fn publisher(&self, store: Store) -> Publisher<RedisSink, Store> {
        let config = &self.config;
        let offsets = match store {
            // a transaction reaches no further than its slot: a cluster has the offset apart
            Store::Redis(_) if !config.sink.redis.is_cluster() => Offsets::Beside {
                connector: config.connector.clone(),
                ledger_entries: config.offset.ledger_entries,
                pace: LedgerPace::new(config.offset.ledger_interval),
            },
            Store::Redis(_) | Store::Postgres(_) => Offsets::Apart(store),
        };
        let sink = RedisSink::new(&config.sink, &config.connector);
        Publisher::new(sink, offsets, self.reporter.clone())
    }

    async fn store(&self) -> Result<Store, Error> {
        let config = &self.config;
        Ok(match config.offset.store {
            OffsetStoreKind::Redis => {
                let link = RedisLink::new(config.sink.redis.clone(), config.sink.timeout);
                Store::Redis(RedisOffsetStore::new(link, &config.connector, &config.offset))
            }
            OffsetStoreKind::Postgres => {
                let sql = config.source.connect.connect_sql().await?;
                let store = PostgresOffsetStore::new(sql.client, &config.connector, &config.offset);
                Store::Postgres(store.await?)
            }
        })
    }
}

/// The configured offset store.
#[derive(Debug)]
enum Store {
    Redis(RedisOffsetStore),
    Postgres(PostgresOffsetStore),
}

impl OffsetStore for Store {
    async fn load(&mut self) -> Result<Option<Offset>, Error> {
        match self {
            Self::Redis(store) => store.load().await,
            Self::Postgres(store) => store.load().await,
        }
    }

    async fn save(&mut self, offset: &Offset) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.save(offset).await,
            Self::Postgres(store) => store.save(offset).await,
        }
    }

    async fn ledger(&mut self, limit: usize) -> Result<Vec<Offset>, Error> {
        match self {
            Self::Redis(store) => store.ledger(limit).await,
            Self::Postgres(store) => store.ledger(limit).await,
        }
    }
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
            | Self::LeaseLost { .. } => On::Sink,
            Self::NotYet(Wait::Standby { .. }) => On::Source,
            Self::NotYet(_) => On::Slot,
            Self::Superseded { .. } | Self::BadRecord { .. } => On::Offset,
            Self::Unsound(_) | Self::Refused(_) => On::Publication,
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
            Self::Refused(_) | Self::SinkRefused(_) | Self::Replication(_) | Self::Sql { .. }
        )
    }
}
