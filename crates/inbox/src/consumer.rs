//! The consumer as a whole: reader, applier and acker, each with its own connection, so that the
//! next read and the last acknowledgement are under way while a transaction runs; and the keeper of
//! this worker's leases.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outflow_event::EntryId;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::acker::Acker;
use crate::applier::Applier;
use crate::broker::Broker;
use crate::config::ConsumerConfig;
use crate::database::Connect;
use crate::delivery::InFlight;
use crate::error::Error;
use crate::handler::Handler;
use crate::keeper::Keeper;
use crate::lease::Leases;
use crate::reader::Reader;
use crate::status::{Board, Counts, Status};

/// Batches read ahead of the one that is being applied.
const READ_AHEAD: usize = 1;
/// Committed batches that wait for their XACK; then the applier waits too.
const UNACKNOWLEDGED: usize = 2;

/// What the three parts share.
pub(crate) struct Shared {
    pub(crate) config: ConsumerConfig,
    /// Tells this process from another one under the same name.
    pub(crate) instance: String,
    /// The name in the groups of Redis.
    pub(crate) me: String,
    /// The keys, by the index that the parts use.
    pub(crate) streams: Vec<Arc<str>>,
    pub(crate) board: Board,
    pub(crate) in_flight: InFlight,
    pub(crate) leases: Leases,
    /// Up to where each stream is applied and acknowledged, as far as it is known.
    resume: Mutex<Vec<EntryId>>,
}

impl Shared {
    /// The key of a stream.
    pub(crate) fn key(&self, stream: usize) -> Option<&str> {
        self.streams.get(stream).map(|key| &**key)
    }

    pub(crate) fn resume(&self) -> Vec<EntryId> {
        self.lock().clone()
    }

    /// Never moves back: Redis may forget what was acknowledged, the inbox does not.
    pub(crate) fn raise_resume(&self, done: &[EntryId]) {
        for (known, done) in self.lock().iter_mut().zip(done) {
            *known = (*known).max(*done);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<EntryId>> {
        self.resume.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a consumer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// What it did.
    pub counts: Counts,
    /// Everything that was read is applied and acknowledged, or was given back by a stop during a
    /// failure; `false` if the deadline of the stop came first. Nothing is lost either way: what
    /// is not acknowledged stays pending and comes again.
    pub clean: bool,
}

/// Applies the events of some streams to one database, each exactly once.
pub struct Consumer<H> {
    shared: Arc<Shared>,
    connect: Connect,
    handler: H,
}

impl<H: Handler> Consumer<H> {
    /// A consumer that is not running yet.
    #[must_use]
    pub fn new(config: ConsumerConfig, connect: Connect, handler: H) -> Self {
        let streams: Vec<Arc<str>> =
            config.streams.iter().map(|key| Arc::from(key.as_str())).collect();
        let instance = format!("{:032x}", rand::random::<u128>());
        let shared = Shared {
            me: name_in_group(&config, &instance),
            board: Board::new(&config.consumer_id),
            in_flight: InFlight::default(),
            leases: Leases::new(streams.len(), config.share_streams),
            resume: Mutex::new(vec![EntryId::ZERO; streams.len()]),
            streams,
            config,
            instance,
        };
        Self { shared: Arc::new(shared), connect, handler }
    }

    /// What the consumer is doing, from now until it has stopped.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.board.subscribe()
    }

    /// Runs until `shutdown` is cancelled.
    ///
    /// Order: each stream is read by one worker at a time, and its entries are applied in its order;
    /// what was pending at another worker comes first. With `share_streams` each worker applies in the
    /// order in which it is given entries.
    /// Durability: an entry is acknowledged after the transaction that applied it has committed.
    /// A stop finishes the batches that were read and acknowledges them, within `stop_timeout`.
    ///
    /// # Errors
    /// Only what waiting cannot help ([`Error::retry`] is fatal): fix what the message names and
    /// run again. Lost connections, failovers and refused events are waited out, and
    /// [`Consumer::status`] says so meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future stops everything at once, as a crash would: open transactions roll back,
    /// unacknowledged entries stay pending.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Summary, Error> {
        let Self { shared, connect, handler } = self;
        let board_of = shared.clone();
        let result = run(shared, connect, handler, shutdown).await;
        board_of.board.stopped();
        let clean = result?;
        Ok(Summary { counts: board_of.board.counts(), clean })
    }
}

/// What a paused process of the same name is given when it wakes up must not look like one's own. Where
/// streams are shared, what was pending under the name comes back at once, and no order is at stake.
fn name_in_group(config: &ConsumerConfig, instance: &str) -> String {
    if config.share_streams {
        return config.worker.clone();
    }
    format!("{}:{instance:.8}", config.worker)
}

/// Ends one of the parts.
enum Ended<H> {
    Reader,
    Applier(Box<Applier<H>>),
    Acker,
    Keeper(Box<Keeper>),
}

async fn run<H: Handler>(
    shared: Arc<Shared>,
    connect: Connect,
    handler: H,
    shutdown: CancellationToken,
) -> Result<bool, Error> {
    let broker = Broker::new(shared.config.redis.clone(), shared.config.response_timeout);
    // also cancelled when one part fails: the others then finish what they have
    let stop = shutdown.child_token();
    let (batches, to_apply) = mpsc::channel(READ_AHEAD);
    let (acks, to_acknowledge) = mpsc::channel(UNACKNOWLEDGED);
    let reader =
        Reader::new(shared.clone(), broker.clone(), connect.clone(), batches, stop.clone());
    let applier = Applier::new(shared.clone(), connect.clone(), handler, stop.clone());
    // the leases are kept until nothing is in work any more
    let release = CancellationToken::new();
    let keeper = Keeper::new(shared.clone(), connect, release.clone());
    let acker = Acker::new(shared.clone(), broker);

    // dropped with this future, and the tasks with it
    let mut tasks = JoinSet::new();
    let names = [
        (tasks.spawn(async { reader.run().await.map(|()| Ended::Reader) }).id(), "reader"),
        (
            tasks
                .spawn(
                    async move { Ok(Ended::Applier(Box::new(applier.run(to_apply, acks).await?))) },
                )
                .id(),
            "applier",
        ),
        (
            tasks.spawn(async { acker.run(to_acknowledge).await.map(|()| Ended::Acker) }).id(),
            "acker",
        ),
        (tasks.spawn(async { Ok(Ended::Keeper(Box::new(keeper.run().await?))) }).id(), "keeper"),
    ];
    let stop_timeout = shared.config.stop_timeout;
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(stop_timeout).await;
    };
    tokio::pin!(deadline);
    let mut first_error = None;
    let mut finished: Option<Box<Applier<H>>> = None;
    let mut kept: Option<Box<Keeper>> = None;
    loop {
        if tasks.len() == 1 {
            release.cancel();
        }
        let ended = tokio::select! {
            ended = tasks.join_next() => ended,
            () = &mut deadline => {
                tracing::warn!(
                    consumer = shared.config.consumer_id,
                    "stopped at the deadline of {stop_timeout:?}: what is not acknowledged comes again"
                );
                return first_error.map_or(Ok(false), Err);
            }
        };
        let error = match ended {
            None => break,
            Some(Ok(Ok(Ended::Applier(applier)))) => {
                finished = Some(applier);
                continue;
            }
            Some(Ok(Ok(Ended::Keeper(keeper)))) => {
                kept = Some(keeper);
                continue;
            }
            Some(Ok(Ok(Ended::Reader | Ended::Acker))) => continue,
            Some(Ok(Err(error))) => error,
            Some(Err(join)) => {
                let name = names.iter().find(|(id, _)| *id == join.id()).map(|(_, name)| *name);
                Error::Panicked(name.unwrap_or("task"))
            }
        };
        first_error.get_or_insert(error);
        stop.cancel();
    }
    if let Some(applier) = finished {
        // the acker's last measurement came after the applier's last transaction
        let _ = tokio::time::timeout(stop_timeout, applier.finish()).await;
    }
    if let Some(keeper) = kept {
        let _ = tokio::time::timeout(stop_timeout, keeper.finish()).await;
    }
    first_error.map_or(Ok(true), Err)
}
