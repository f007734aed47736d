//! Runs a handler over the events of a batch so that those which it cannot apply are found, and the
//! work of the others is kept.
//!
//! Every slice runs in a savepoint. A slice that fails is rolled back and halved, one that succeeds
//! stays: a failing event costs O(log n) calls of the handler and no transaction of its own. What
//! follows a failing event in its aggregate is left out, in order.
//!
//! Between two slices is one statement, and its answer is waited for: where a handler has ended the
//! transaction the next slice would run outside of one.

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
    let all = events.len();
    let (mut at, mut end) = (0, all);
    let (mut step, mut bad_until) = match first {
        First::Half => (end.div_ceil(2), end),
        _ => (first.step(all, end, 0), 0),
    };
    let mut failed = Vec::new();
    let mut is_first = true;
    while at < end {
        let to = end.min(at + step.max(1));
        let slice = events.get(at..to).unwrap_or_default();
        let place = (std::mem::take(&mut is_first), to == end);
        match try_slice(tx, handler, slice, &savepoint, place).await {
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
    Ok(Sliced { applied: end, failed })
}

/// Moves the events of the first one's aggregate behind the others; returns how many others.
fn without_first_aggregate(events: &mut [Delivery]) -> usize {
    let Some(first) = events.first().map(|event| event.entry.event.clone()) else { return 0 };
    let is_of_it = |delivery: &Delivery| delivery.is_of(&first.aggregate_type, &first.aggregate_id);
    events.sort_by_key(|delivery| (is_of_it(delivery), delivery.ordinal));
    events.iter().filter(|delivery| !is_of_it(delivery)).count()
}

async fn try_slice<H: Handler>(
    tx: &Transaction<'_>,
    handler: &mut H,
    events: &[Delivery],
    savepoint: &Savepoint,
    (is_first, is_last): (bool, bool),
) -> Result<(), Failure> {
    let applied = if is_first {
        let apply = async {
            // the savepoint goes out first; no handler has used the transaction yet, so its answer
            // need not be waited for
            tokio::task::yield_now().await;
            handler.apply(tx, events).await
        };
        let (begun, applied) = tokio::join!(tx.batch_execute(savepoint.begin), apply);
        begun?;
        applied
    } else {
        handler.apply(tx, events).await
    };
    let close = if is_last { savepoint.end } else { savepoint.next };
    let ended = match applied {
        Ok(()) => match tx.batch_execute(close).await {
            Err(error) if is_gone(&error) => return Err(Failure::ended_by_handler(events)),
            ended => ended.map_err(HandlerError::from),
        },
        Err(error) => Err(error),
    };
    match ended.map_err(Failure::from) {
        Err(failure @ (Failure::Handler(_) | Failure::Projection(_))) => {
            match tx.batch_execute(savepoint.undo).await {
                Err(error) if is_gone(&error) => Err(Failure::ended_by_handler(events)),
                undone => undone.map_err(Failure::from).and(Err(failure)),
            }
        }
        ended => ended,
    }
}
