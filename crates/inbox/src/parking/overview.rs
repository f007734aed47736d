//! What is held back, as people see it.

use tokio_postgres::{Client, Error};

use super::Parking;

/// What is held back, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Held {
    /// Events that wait in `outflow.parked`.
    pub parked: u64,
    /// Dead letters that nobody has resolved.
    pub dead_letters: u64,
    /// The event that has been waiting for the longest time, and why.
    pub oldest: Option<String>,
}

impl Parking {
    /// Counts what is held back.
    pub(crate) async fn overview(&self, client: &Client, consumer_id: &str) -> Result<Held, Error> {
        let row = client.query_one(&self.overview, &[&consumer_id]).await?;
        let count = |name| -> Result<u64, Error> {
            Ok(u64::try_from(row.try_get::<_, i64>(name)?).unwrap_or(0))
        };
        let text = |name| row.try_get::<_, Option<String>>(name);
        let oldest = match (text("event_id")?, text("cause")?) {
            (Some(event), Some(cause)) => {
                let about = format!(
                    "event {event} of {} {}",
                    text("aggregate_type")?.unwrap_or_default(),
                    text("aggregate_id")?.unwrap_or_default(),
                );
                let started = row.try_get::<_, Option<i32>>("started")?.unwrap_or(0);
                Some(match text("error")? {
                    Some(error) => format!("{about} ({cause}, {started} attempts): {error}"),
                    None => format!("{about} ({cause})"),
                })
            }
            _ => None,
        };
        Ok(Held { parked: count("parked")?, dead_letters: count("dead_letters")?, oldest })
    }
}
