//! Runs a handler over the events of a batch so that those which it cannot apply are found, and the
//! work of the others is kept.
//!
//! Every slice runs in a savepoint. A slice that fails is rolled back and halved, one that succeeds
//! stays: a failing event costs O(log n) calls of the handler and no transaction of its own. What
//! follows a failing event in its aggregate is left out, in order.

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;

use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::handler::{Handler, HandlerError};

const BEGIN: &str = "SAVEPOINT outflow_slice";
const END: &str = "RELEASE SAVEPOINT outflow_slice";
const UNDO: &str = "ROLLBACK TO SAVEPOINT outflow_slice; RELEASE SAVEPOINT outflow_slice";
// what a COMMIT would find: who failed must be known before it
const BEGIN_DEFERRED: &str = "SAVEPOINT outflow_slice; SET CONSTRAINTS ALL DEFERRED";
const END_DEFERRED: &str = "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT outflow_slice";

/// Into so many parts are events cut of which one most likely fails: more parts cost more calls, and
/// fewer cost more work that is undone.
const PARTS: usize = 6;

/// How many events to try first, by what is known about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Most likely they are all right.
    All,
    /// One of them most likely fails, as in the batches before: what runs in vain shall be little.
    Part,
    /// All at once have failed already.
    Half,
    /// Each has failed before: by itself, and more at once while that goes well.
    One,
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
    let (mut at, mut end) = (0, events.len());
    let part = end.div_ceil(PARTS);
    let (mut step, mut bad_until) = match first {
        First::All => (end, 0),
        First::Part => (part, 0),
        First::Half => (end.div_ceil(2), end),
        First::One => (1, 0),
    };
    let mut failed = Vec::new();
    while at < end {
        let to = end.min(at + step.max(1));
        let slice = events.get(at..to).unwrap_or_default();
        match try_slice(tx, handler, slice, deferred).await {
            Ok(()) => {
                at = to;
                step = match first {
                    // the failing one stands in what is left of the slice that failed
                    _ if at < bad_until => (bad_until - at).div_ceil(2),
                    First::One => step.saturating_mul(2),
                    First::Part => part,
                    First::All | First::Half => end - at,
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
                step = match first {
                    First::One => 1,
                    First::Part => part,
                    First::All | First::Half => end - at,
                };
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
    deferred: bool,
) -> Result<(), Failure> {
    let (begin, end) = if deferred { (BEGIN_DEFERRED, END_DEFERRED) } else { (BEGIN, END) };
    let apply = async {
        // the savepoint goes out first; its answer need not be waited for
        tokio::task::yield_now().await;
        handler.apply(tx, events).await
    };
    let (begun, applied) = tokio::join!(tx.batch_execute(begin), apply);
    begun?;
    let ended = match applied {
        Ok(()) => tx.batch_execute(end).await.map_err(HandlerError::from),
        Err(error) => Err(error),
    };
    match ended.map_err(Failure::from) {
        Err(Failure::Handler(error)) => {
            tx.batch_execute(UNDO).await.map_err(undo_failed)?;
            Err(Failure::Handler(error))
        }
        ended => ended,
    }
}

fn undo_failed(error: tokio_postgres::Error) -> Failure {
    match error.code() {
        Some(code)
            if [SqlState::S_E_INVALID_SPECIFICATION, SqlState::NO_ACTIVE_SQL_TRANSACTION]
                .contains(code) =>
        {
            Failure::ended_by_handler()
        }
        _ => error.into(),
    }
}
