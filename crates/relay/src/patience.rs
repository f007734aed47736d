//! Waiting for answers: nobody should have to guess for what, and nothing waits for ever for a host
//! that is gone.

use std::pin::pin;
use std::time::Duration;

use crate::error::Error;
use crate::status::{On, Reporter, State};

/// After this long somebody should know.
pub(crate) const SLOW: Duration = Duration::from_secs(5);

/// After this long there will be no answer: the sessions of relays end their statements at 30 s.
pub(crate) const NO_ANSWER: Duration = Duration::from_secs(35);

/// Waits for statements, but not for a server that is silent.
///
/// # Errors
/// [`Error::NoAnswer`] after [`NO_ANSWER`], otherwise the work's own.
///
/// # Cancel safety
/// That of `work`.
pub(crate) async fn answered<T>(
    doing: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let seconds = NO_ANSWER.as_secs();
    tokio::time::timeout(NO_ANSWER, work).await.unwrap_or(Err(Error::NoAnswer { doing, seconds }))
}

/// Waits for `work`, and reports what stands still when there is no answer for [`SLOW`]; `then` is the
/// state that a success after that brings back.
///
/// # Errors
/// The work's own.
///
/// # Cancel safety
/// That of `work`.
pub(crate) async fn watched<T>(
    reporter: &Reporter,
    (on, doing): (On, &'static str),
    then: State,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut work = pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = tokio::time::sleep(SLOW) => {}
    }
    let who = if on == On::Sink { "Redis" } else { "PostgreSQL" };
    let reason = format!("{who} has not answered for {} s: {doing}", SLOW.as_secs());
    reporter.state(State::Waiting { on, reason });
    let done = work.await;
    if done.is_ok() {
        reporter.recovered(on, then);
    }
    done
}
