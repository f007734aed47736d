//! What tests apply.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use outflow_inbox::{Delivery, Handler, HandlerError, ProjectionError, SqlProjection, Transaction};
use tokio::sync::{Semaphore, mpsc};
use tokio_postgres::Client;

/// What most tests apply: every fresh event becomes a row of `seen`.
pub(crate) fn seen() -> SqlProjection {
    SqlProjection::parse(
        "INSERT INTO seen (event_id, aggregate_id, v) \
         SELECT event_id, aggregate_id, payload ->> 'v' FROM events ORDER BY ordinal",
    )
    .unwrap()
}

type Applied<'a> = BoxFuture<'a, Result<(), HandlerError>>;

/// [`seen`], and then something else.
struct Then<F> {
    seen: SqlProjection,
    then: F,
}

/// Applies [`seen`], and then calls `then` in the same transaction.
pub(crate) fn seen_then<F>(then: F) -> impl Handler
where
    F: for<'a> FnMut(&'a Transaction<'_>, &'a [Delivery]) -> Applied<'a> + Send + 'static,
{
    Then { seen: seen(), then }
}

impl<F> Handler for Then<F>
where
    F: for<'a> FnMut(&'a Transaction<'_>, &'a [Delivery]) -> Applied<'a> + Send + 'static,
{
    async fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> Result<(), HandlerError> {
        self.seen.apply(tx, events).await?;
        (self.then)(tx, events).await
    }

    async fn connected(&mut self, client: &Client) -> Result<(), ProjectionError> {
        self.seen.connected(client).await
    }
}

/// [`seen`], and then something that may refuse the events.
pub(crate) fn checked<F>(mut check: F) -> impl Handler
where
    F: FnMut(&[Delivery]) -> Result<(), HandlerError> + Send + 'static,
{
    seen_then(move |_, events| Box::pin(std::future::ready(check(events))))
}

/// A handler that stops at a gate inside its transaction: it says so, and goes on when it is let.
pub(crate) fn gated() -> (impl Handler, mpsc::UnboundedReceiver<usize>, Arc<Semaphore>) {
    let (entered, enters) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let handler = seen_then(move |_, events| {
        let _ = entered.send(events.len());
        let gate = opened.clone();
        Box::pin(async move {
            gate.acquire().await.map_err(HandlerError::other)?.forget();
            Ok(())
        })
    });
    (handler, enters, gate)
}
