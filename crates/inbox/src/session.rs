//! A connection that is ready to apply, and what is done on it outside of a batch's transaction.

use std::time::Duration;

use tokio_postgres::Client;

use crate::database::{self, Verdict, statement_failed, verdict};
use crate::delivery::{Batch, Delivery};
use crate::error::Error;
use crate::failure::{Failure, encode_failed};
use crate::handler::Handler;
use crate::parking::Parking;
use crate::projection::ProjectionError;
use crate::sequence::Sequence;
use crate::statements::{InboxRows, Reached, Statements};

/// A connection that is ready to apply.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// A batch's transaction was begun and its end not seen.
    pub(crate) is_open: bool,
    pub(crate) parking: Parking,
    pub(crate) sequence: Sequence,
    pub(crate) statements: Statements,
}

impl Session {
    /// Prepares what a fresh connection needs.
    pub(crate) async fn open<H: Handler>(
        client: Client,
        handler: &mut H,
        apply_timeout: Duration,
    ) -> Result<Self, Error> {
        database::prepare_session(&client, apply_timeout).await?;
        let statements = Statements::prepare(&client).await.map_err(statement_failed)?;
        let parking = Parking::prepare(&client).await.map_err(statement_failed)?;
        let sequence = Sequence::prepare(&client).await.map_err(statement_failed)?;
        match handler.connected(&client).await {
            Ok(()) => Ok(Self { client, is_open: false, parking, sequence, statements }),
            Err(error) => Err(not_prepared(error)),
        }
    }

    /// Finds the payloads that this server's `jsonb` refuses, one by one, outside of a transaction.
    /// Returns how many were found.
    pub(crate) async fn check_payloads(&self, batch: &mut Batch) -> Result<usize, Failure> {
        let mut found = 0;
        for delivery in &mut batch.deliveries {
            let Some(text) = delivery.payload_json() else { continue };
            let checked =
                self.client.query_one("SELECT $1::text::jsonb IS NOT NULL", &[&text]).await;
            match checked {
                Ok(_) => {}
                Err(error) if verdict(&error) == Verdict::Data => {
                    tracing::debug!(
                        event_id = delivery.entry.event.event_id,
                        "the server's jsonb refuses the payload: it is compared by its bytes"
                    );
                    delivery.not_jsonb();
                    found += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        batch.deliveries.sort_unstable_by_key(|delivery| delivery.ordinal);
        batch.rows = InboxRows::of(&batch.deliveries).map_err(encode_failed)?;
        Ok(found)
    }

    /// Makes a parked event a dead letter without another attempt.
    pub(crate) async fn bury(
        &mut self,
        consumer_id: &str,
        delivery: &Delivery,
        reason: &str,
        holds: bool,
    ) -> Result<(), tokio_postgres::Error> {
        let tx = self.client.transaction().await?;
        self.parking.bury(tx.client(), consumer_id, delivery, Some(reason), holds).await?;
        self.parking.advance(tx.client(), consumer_id, std::iter::once(delivery)).await?;
        tx.commit().await
    }

    /// Stores how far the streams are applied, outside of a batch.
    pub(crate) async fn store_resume(
        &self,
        consumer_id: &str,
        reached: &[Reached<'_>],
    ) -> Result<(), tokio_postgres::Error> {
        self.statements.position(&self.client, consumer_id, reached, None).await.map(drop)
    }
}

fn not_prepared(error: ProjectionError) -> Error {
    match error.database().map(verdict) {
        Some(Verdict::Reconnect | Verdict::Again) => {
            Error::Database { source: error.into(), advice: None }
        }
        Some(Verdict::Data | Verdict::Fatal(_) | Verdict::Statement) | None => error.into(),
    }
}
