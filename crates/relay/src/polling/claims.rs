//! Claims over one connection, each call one message to the server and one transaction.

use std::pin::pin;
use std::time::Instant;

use futures_util::StreamExt as _;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::statements::{Key, Statements};
use crate::error::Error;
use crate::patience::{answered, watched};
use crate::status::{On, Reporter, State};

/// Claims rows under one name.
#[derive(Debug)]
pub(crate) struct Claims {
    client: Client,
    statements: Statements,
    claimant: String,
    reporter: Reporter,
}

/// Rows that this relay may publish until the lease runs out.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// The rows, in order.
    pub(crate) keys: Vec<Key>,
    /// Rows among them whose earlier claim had lapsed.
    pub(crate) taken_over: u64,
    /// Rows that were marked before the claim.
    pub(crate) marked: u64,
    /// Before the claim was asked for: the lease ends no earlier than a lease after this.
    pub(crate) since: Instant,
}

impl Claims {
    pub(crate) fn new(
        client: Client,
        statements: Statements,
        claimant: &str,
        reporter: &Reporter,
    ) -> Self {
        let (claimant, reporter) = (claimant.to_owned(), reporter.clone());
        Self { client, statements, claimant, reporter }
    }

    /// Marks `done` and claims the next rows, in one transaction. Each claimed row goes to
    /// `on_row`: the event's columns first.
    ///
    /// # Errors
    /// As for any statement. Whether the transaction committed is unknown then: `done` has to be
    /// marked again, and the claims, if there are any, given back.
    pub(crate) async fn mark_and_claim(
        &self,
        done: &[Key],
        wanted: usize,
        max_bytes: usize,
        mut on_row: impl FnMut(&SimpleQueryRow) -> Result<(), Error>,
    ) -> Result<Claimed, Error> {
        const DOING: &str = "claiming rows of the outbox";
        let mut sql = String::new();
        if !done.is_empty() {
            sql = self.statements.mark(&self.claimant, done);
            sql.push_str("; ");
        }
        sql.push_str(&self.statements.claim(&self.claimant, wanted, max_bytes));
        let since = Instant::now();
        let mut claimed = Claimed { keys: Vec::new(), taken_over: 0, marked: 0, since };
        let work = async {
            let stream = self.client.simple_query_raw(&sql).await.map_err(Error::sql(DOING))?;
            let mut stream = pin!(stream);
            while let Some(message) = stream.next().await {
                match message.map_err(Error::sql(DOING))? {
                    SimpleQueryMessage::Row(row) => {
                        let (key, lapsed) = self.key(&row)?;
                        on_row(&row)?;
                        claimed.keys.push(key);
                        claimed.taken_over += u64::from(lapsed);
                    }
                    SimpleQueryMessage::CommandComplete(count) if claimed.keys.is_empty() => {
                        // of the mark; the claim's own count comes behind its rows
                        claimed.marked = claimed.marked.max(count);
                    }
                    _ => {}
                }
            }
            Ok(claimed)
        };
        self.answered(DOING, work).await
    }

    /// Marks rows that were published; the number of those that were still this relay's.
    pub(crate) async fn mark(&self, done: &[Key]) -> Result<u64, Error> {
        if done.is_empty() {
            return Ok(0);
        }
        let sql = self.statements.mark(&self.claimant, done);
        self.count("marking rows published", &sql).await
    }

    /// Prolongs the lease; the number of rows that are claimed.
    pub(crate) async fn renew(&self) -> Result<u64, Error> {
        self.count("renewing claims", &self.statements.renew(&self.claimant)).await
    }

    /// Leaves everything to other relays.
    pub(crate) async fn give_back(&self) -> Result<u64, Error> {
        self.count("giving claims back", &self.statements.give_back(&self.claimant)).await
    }

    pub(crate) fn columns(&self) -> &[String] {
        self.statements.columns()
    }

    async fn count(&self, doing: &'static str, sql: &str) -> Result<u64, Error> {
        let work = async {
            let messages = self.client.simple_query(sql).await.map_err(Error::sql(doing))?;
            let counts = messages.iter().filter_map(|message| match message {
                SimpleQueryMessage::CommandComplete(count) => Some(*count),
                _ => None,
            });
            Ok(counts.sum())
        };
        self.answered(doing, work).await
    }

    /// Says so when the server is slow, and gives up when it is silent.
    async fn answered<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let work = answered(doing, work);
        watched(&self.reporter, (On::Source, doing), State::Polling, work).await
    }

    fn key(&self, row: &SimpleQueryRow) -> Result<(Key, bool), Error> {
        let first = self.statements.columns().len();
        let after = first + self.statements.key_columns();
        let value = |index: usize| row.try_get(index).map_err(|_| not_utf8());
        let key = (first..after)
            .map(|index| Ok(value(index)?.unwrap_or_default().to_owned()))
            .collect::<Result<_, Error>>()?;
        Ok((key, value(after)? == Some("t")))
    }
}

/// The simple query protocol hands out text alone.
pub(crate) fn not_utf8() -> Error {
    Error::BadRecord {
        what: "a row of the outbox".to_owned(),
        why: "it holds bytes that are not UTF-8 (the database's encoding is probably SQL_ASCII): \
              the polling relay cannot publish it, the connector can"
            .to_owned(),
    }
}
