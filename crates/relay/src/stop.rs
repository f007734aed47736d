//! A stop, and how long it may take.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Time for an orderly end: what was taken in is published, the offset stored and confirmed.
pub const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Time for the server to let go of the slot.
pub(crate) const LINK_DEADLINE: Duration = Duration::from_secs(5);

/// Cancels `give_up` when a stop has taken [`STOP_DEADLINE`], and completes when the time for the
/// link is over too: what still hangs then is left as a crash would leave it.
pub(crate) async fn overdue(shutdown: CancellationToken, give_up: CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(STOP_DEADLINE).await;
    give_up.cancel();
    tokio::time::sleep(LINK_DEADLINE + Duration::from_secs(1)).await;
    warn!(
        "stopped although a server has not answered: what was not published follows at the next \
         start"
    );
}

/// What `work` comes to; `None` if the stop comes first. For work that a crash may end anywhere.
pub(crate) async fn unless_stopped<T, E>(
    shutdown: &CancellationToken,
    work: impl Future<Output = Result<T, E>>,
) -> Result<Option<T>, E> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(None),
        done = work => done.map(Some),
    }
}
