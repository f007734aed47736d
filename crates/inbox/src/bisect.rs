//! Runs a handler over the events of a batch so that those which it cannot apply are found, and the
//! work of the others is kept.
//!
//! Every slice runs in a savepoint. A slice that fails is rolled back and halved, one that succeeds
//! stays: a failing event costs O(log n) calls of the handler and no transaction of its own. What
//! follows a failing event in its aggregate is left out, in order.
//!
//! Between two slices is one statement, and its answer is waited for: where a handler has ended the
//! transaction the next slice would run outside of one. Only for a handler that cannot do that both go out
//! at once ([`Handler::keeps_transaction`]).

use tokio_postgres::Error;

use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::handler::{Handler, HandlerError};
use crate::transaction::{Transaction, is_gone};

/// What stands around the slices.
struct Savepoint {
    /// Before the first one.
    begin: &'static str,
    /// After one that succeeded: it stays, and the next one begins.
    next: &'static str,
    /// After the last one.
    end: &'static str,
    /// After one that failed: the next one begins where it did.
    undo: &'static str,
}

const SAVEPOINT: Savepoint = Savepoint {
    begin: "SAVEPOINT outflow_slice",
    next: "RELEASE SAVEPOINT outflow_slice; SAVEPOINT outflow_slice",
    end: "RELEASE SAVEPOINT outflow_slice",
    undo: "ROLLBACK TO SAVEPOINT outflow_slice",
};

/// Finds what a COMMIT would find: who failed must be known before it.
const DEFERRED: Savepoint = Savepoint {
    begin: "SAVEPOINT outflow_slice; SET CONSTRAINTS ALL DEFERRED",
    next: "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT outflow_slice; \
           SAVEPOINT outflow_slice; SET CONSTRAINTS ALL DEFERRED",
    end: "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT outflow_slice",
    undo: "ROLLBACK TO SAVEPOINT outflow_slice; SET CONSTRAINTS ALL DEFERRED",
};

/// Into so many parts are events cut of which one most likely fails: more parts cost more calls, and
/// fewer cost more work that is undone.
const PARTS: usize = 12;

/// How many events to try first, by what is known about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Most likely they are all right.
    All,
    /// So many most likely fail, as in the batch before: what runs in vain shall be little. When they
    /// are found, the others are tried at once.
    Parts { failing: usize },
    /// All at once have failed already.
    Half,
    /// Each has failed before: by itself, and more at once while that goes well.
    One,
}

impl First {
    /// How many of `rest` to try next, where nothing is known to be wrong with them and `found` have
    /// failed; `all` were there at first.
    fn step(self, all: usize, rest: usize, found: usize) -> usize {
        match self {
            Self::Parts { failing } if found < failing => {
                all.div_ceil(PARTS * failing.isqrt().max(1))
            }
            Self::One => 1,
            Self::All | Self::Half | Self::Parts { .. } => rest,
        }
    }
}

/// What became of the events.
pub(crate) struct Sliced {
    /// So many stand applied at the front of the slice, in their order; the others have had no
    /// effect.
    pub(crate) applied: usize,
    /// The ordinals of those that failed, and why. The others of their aggregates only stand behind.
    pub(crate) failed: Vec<(usize, HandlerError)>,
}

/// Applies `events` and reorders them: applied ones first.
///
/// With `deferred`, constraints that wait for the commit are checked for each slice.
pub(crate) async fn run<H: Handler>(
    tx: &Transaction<'_>,
    handler: &mut H,
    events: &mut [Delivery],
    first: First,
    deferred: bool,
) -> Result<Sliced, Failure> {
    let savepoint = if deferred { DEFERRED } else { SAVEPOINT };
    // what checks constraints speaks about the slice before it
    let ahead = !deferred && handler.keeps_transaction();
    // no handler has used the transaction yet
    let due = Some(savepoint.begin);
    let mut slices = Slices { tx, handler, savepoint, ahead, due };
    let all = events.len();
    let (mut at, mut end) = (0, all);
    let (mut step, mut bad_until) = match first {
        First::Half => (end.div_ceil(2), end),
        _ => (first.step(all, end, 0), 0),
    };
    let mut failed = Vec::new();
    while at < end {
        let to = end.min(at + step.max(1));
        let slice = events.get(at..to).unwrap_or_default();
        match slices.attempt(slice, to == end).await {
            Ok(()) => {
                at = to;
                step = match first {
                    // the failing one stands in what is left of the slice that failed
                    _ if at < bad_until => (bad_until - at).div_ceil(2),
                    First::One => step.saturating_mul(2),
                    _ => first.step(all, end - at, failed.len()),
                };
            }
            Err(Failure::Handler(_)) if to - at > 1 => {
                bad_until = to;
                step = (to - at) / 2;
            }
            Err(Failure::Handler(error)) => {
                let rest = events.get_mut(at..end).unwrap_or_default();
                failed.extend(rest.first().map(|event| (event.ordinal, error)));
                end = at + without_first_aggregate(rest);
                bad_until = 0;
                step = first.step(all, end - at, failed.len());
            }
            Err(other) => return Err(other),
        }
    }
    slices.settle().await?;
    Ok(Sliced { applied: end, failed })
}

/// Moves the events of the first one's aggregate behind the others; returns how many others.
fn without_first_aggregate(events: &mut [Delivery]) -> usize {
    let Some(first) = events.first().map(|event| event.entry.event.clone()) else { return 0 };
    let is_of_it = |delivery: &Delivery| delivery.is_of(&first.aggregate_type, &first.aggregate_id);
    events.sort_by_key(|delivery| (is_of_it(delivery), delivery.ordinal));
    events.iter().filter(|delivery| !is_of_it(delivery)).count()
}

/// Slices, each in its savepoint.
struct Slices<'a, H> {
    tx: &'a Transaction<'a>,
    handler: &'a mut H,
    savepoint: Savepoint,
    /// What is between two slices goes out with the second one.
    ahead: bool,
    /// To be sent before the next slice.
    due: Option<&'static str>,
}

impl<H: Handler> Slices<'_, H> {
    /// Applies `events`. On [`Failure::Handler`] and [`Failure::Projection`] it is as if they had not been
    /// tried.
    async fn attempt(&mut self, events: &[Delivery], is_last: bool) -> Result<(), Failure> {
        let tx = self.tx;
        let apply = async {
            // what is due goes out first
            tokio::task::yield_now().await;
            self.handler.apply(tx, events).await
        };
        let applied = match self.due.take() {
            Some(statement) => {
                let (done, applied) = tokio::join!(tx.batch_execute(statement), apply);
                done?;
                applied
            }
            None => apply.await,
        };
        let close = if is_last { self.savepoint.end } else { self.savepoint.next };
        let ended = match applied {
            Ok(()) => match self.send(close).await {
                Err(error) if is_gone(&error) => return Err(Failure::ended_by_handler(events)),
                ended => ended.map_err(HandlerError::from),
            },
            Err(error) => Err(error),
        };
        match ended.map_err(Failure::from) {
            Err(failure @ (Failure::Handler(_) | Failure::Projection(_))) => {
                match self.send(self.savepoint.undo).await {
                    Err(error) if is_gone(&error) => Err(Failure::ended_by_handler(events)),
                    undone => undone.map_err(Failure::from).and(Err(failure)),
                }
            }
            ended => ended,
        }
    }

    async fn send(&mut self, statement: &'static str) -> Result<(), Error> {
        if self.ahead {
            self.due = Some(statement);
            return Ok(());
        }
        self.tx.batch_execute(statement).await
    }

    /// Sends what no slice comes behind.
    async fn settle(self) -> Result<(), Error> {
        match self.due {
            Some(statement) => self.tx.batch_execute(statement).await,
            None => Ok(()),
        }
    }
}
