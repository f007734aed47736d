//! A projection that is a file of SQL.
//!
//! Its statements run in order, each over the relation `events`, which holds the fresh events of the
//! batch. `events` is a common table expression put in front of each statement: a temporary table
//! costs several milliseconds for each transaction, a CTE over `unnest` costs what is read of it
//! (a column that no statement names is never computed).
//!
//! | column | type | |
//! | --- | --- | --- |
//! | `ordinal` | bigint | place in the batch, from 1: order by it where the order of events counts |
//! | `event_id`, `aggregate_type`, `aggregate_id`, `event_type` | text | |
//! | `seq` | bigint | may be NULL |
//! | `payload` | jsonb | NULL when `jsonb` cannot hold it |
//! | `payload_text` | text | NULL when `text` cannot hold it |
//! | `payload_raw` | bytea | only where `payload` is NULL |
//! | `headers` | jsonb | NULL when it is no JSON |
//! | `created_at` | text | as the producer's database printed it |
//! | `position` | text | commit LSN and index, `0/16B3748:3`; NULL from the polling relay |
//! | `commit_time` | timestamptz | NULL from the polling relay |
//! | `stream`, `entry_id` | text | the delivery |
//! | `extra` | jsonb | further fields of the entry, as an object of strings |
//! | `is_replacement` | boolean | a person decided that it takes the place of another event with its id |
//! | `replaced_payload` | jsonb | of that other event, whose effect is to be taken back; else NULL |

mod relation;
mod split;

use std::path::Path;

use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use crate::delivery::Delivery;
use crate::error::Chain;
use crate::handler::{Handler, HandlerError};
use crate::transaction::Transaction;
use relation::{EVENTS, Relation};

/// Statements are sent without waiting for each other up to this many.
const PIPELINED: usize = 30;

/// Applies events by the statements of a file.
pub struct SqlProjection {
    statements: Vec<Source>,
    prepared: Vec<Statement>,
    /// The events that were announced, encoded.
    expected: Option<Relation>,
}

/// One statement of the file, with `events` put in front.
struct Source {
    sql: String,
    /// Where `events` was put in, in characters, and how long it is.
    inserted_at: usize,
    inserted: usize,
    /// The file's line of each line of the statement begins here.
    line: usize,
}

/// Why a projection cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// The file cannot be read.
    #[error("projection {path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The file has no statement.
    #[error("projection: there is no statement in it")]
    Empty,
    /// A statement cannot be run over `events`.
    #[error("projection, line {line}: {reason}")]
    Statement {
        /// Line of the file, from 1.
        line: usize,
        /// Why not.
        reason: String,
    },
    /// The database refused a statement.
    #[error("projection, line {line}: {}", Chain::new(.source))]
    Database {
        /// Line of the file, from 1: where the database saw the error if it said so, else where the
        /// statement begins.
        line: usize,
        /// What the database said.
        source: tokio_postgres::Error,
    },
}

impl ProjectionError {
    /// The database's error, where there is one.
    #[must_use]
    pub fn database(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Self::Database { source, .. } => Some(source),
            Self::Read { .. } | Self::Empty | Self::Statement { .. } => None,
        }
    }
}

impl SqlProjection {
    /// Reads a projection from a file.
    ///
    /// # Errors
    /// As [`SqlProjection::parse`]; and the file may not be readable.
    pub fn from_file(path: &Path) -> Result<Self, ProjectionError> {
        let sql = std::fs::read_to_string(path)
            .map_err(|source| ProjectionError::Read { path: path.display().to_string(), source })?;
        Self::parse(&sql)
    }

    /// Takes the text of a projection apart.
    ///
    /// Statements may be SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or TABLE, each with or
    /// without WITH. The transaction belongs to the inbox, and what creates or sets something does
    /// not belong into every batch.
    ///
    /// # Errors
    /// [`ProjectionError`] names the line. Only the database can say whether tables and columns
    /// exist: it is asked when the consumer connects.
    pub fn parse(sql: &str) -> Result<Self, ProjectionError> {
        let pieces = split::split(sql).map_err(|open| ProjectionError::Statement {
            line: line_at(sql, open.at),
            reason: format!("{} begins here and never ends", open.what),
        })?;
        if pieces.is_empty() {
            return Err(ProjectionError::Empty);
        }
        let statements =
            pieces.iter().map(|piece| Source::new(sql, piece)).collect::<Result<_, _>>()?;
        Ok(Self { statements, prepared: Vec::new(), expected: None })
    }

    fn failed(&self, index: usize, source: tokio_postgres::Error) -> ProjectionError {
        let line = self.statements.get(index).map_or(1, |statement| statement.line_of(&source));
        ProjectionError::Database { line, source }
    }
}

impl Source {
    fn new(file: &str, piece: &split::Piece<'_>) -> Result<Self, ProjectionError> {
        let line = line_at(file, piece.start);
        let refuse = |at: usize, reason: String| {
            Err(ProjectionError::Statement { line: line_at(file, piece.start + at), reason })
        };
        match piece.words.first().map(String::as_str) {
            // a parenthesis can only begin a SELECT
            None
            | Some(
                "WITH" | "SELECT" | "INSERT" | "UPDATE" | "DELETE" | "MERGE" | "VALUES" | "TABLE",
            ) => {}
            Some(word) => {
                return refuse(
                    0,
                    format!(
                        "{word} cannot run over `events`: expected WITH, SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or TABLE"
                    ),
                );
            }
        }
        if let Some(at) = piece.parameter {
            return refuse(at, "there are no parameters: the events are in `events`".to_owned());
        }
        let at = piece.after_with.unwrap_or(0);
        let (head, tail) = piece.text.split_at(at);
        let inserted = match piece.after_with {
            Some(_) => format!(" {EVENTS},"),
            None => format!("WITH {EVENTS} "),
        };
        Ok(Self {
            sql: format!("{head}{inserted}{tail}"),
            inserted_at: head.chars().count(),
            inserted: inserted.chars().count(),
            line,
        })
    }

    /// The line of the file that an error of this statement is about.
    fn line_of(&self, error: &tokio_postgres::Error) -> usize {
        let position = match error.as_db_error().and_then(|error| error.position()) {
            // counted in characters, from 1
            Some(ErrorPosition::Original(position)) => {
                usize::try_from(*position).unwrap_or(0).saturating_sub(1)
            }
            Some(ErrorPosition::Internal { .. }) | None => return self.line,
        };
        let before = self.inserted_at;
        let newlines = |from: usize, to: usize| {
            self.sql.chars().take(to).skip(from).filter(|c| *c == '\n').count()
        };
        if position <= before {
            return self.line + newlines(0, position);
        }
        let behind = before + self.inserted;
        self.line + newlines(0, before) + newlines(behind, position.max(behind))
    }
}

impl Handler for SqlProjection {
    async fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> Result<(), HandlerError> {
        let made;
        let relation = match &self.expected {
            Some(relation) if relation.is_of(events) => relation,
            expected => {
                // of what was announced some are duplicates, or others are to be tried first
                let part = expected.as_ref().and_then(|relation| relation.part(events));
                made =
                    part.map_or_else(|| Relation::of(events), Ok).map_err(HandlerError::other)?;
                &made
            }
        };
        let parameters = relation.parameters();
        let run = |statement| run(tx, statement, &parameters);
        for (chunk, prepared) in self.prepared.chunks(PIPELINED).enumerate() {
            let results = futures_util::future::join_all(prepared.iter().map(run)).await;
            // those behind the first failure only say that the transaction has failed
            for (index, result) in results.into_iter().enumerate() {
                result.map_err(|error| self.failed(chunk * PIPELINED + index, error))?;
            }
        }
        Ok(())
    }

    /// Its statements are known, and a function that they call cannot end the transaction (PostgreSQL
    /// documentation, "Transaction Management").
    fn keeps_transaction(&self) -> bool {
        true
    }

    fn expect(&mut self, events: &[Delivery]) {
        // whatever goes wrong goes wrong again where it can be reported
        self.expected = Relation::of(events).ok();
    }

    async fn connected(&mut self, client: &Client) -> Result<(), ProjectionError> {
        let mut prepared = Vec::with_capacity(self.statements.len());
        for (index, statement) in self.statements.iter().enumerate() {
            let done = client.prepare(&statement.sql).await;
            prepared.push(done.map_err(|error| self.failed(index, error))?);
        }
        self.prepared = prepared;
        Ok(())
    }
}

async fn run(
    tx: &Transaction<'_>,
    statement: &Statement,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<u64, tokio_postgres::Error> {
    tx.execute(statement, parameters).await
}

/// The line of the byte at `offset`, from 1.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(sql: &str) -> String {
        SqlProjection::parse(sql).err().unwrap().to_string()
    }

    #[test]
    fn events_stand_in_front_of_every_statement() {
        let projection = SqlProjection::parse(
            "-- a\nINSERT INTO a SELECT FROM events;\n\nWITH x AS (SELECT 1)\nSELECT * FROM x, events",
        )
        .unwrap();
        let [insert, with] = projection.statements.as_slice() else { panic!() };
        assert!(insert.sql.starts_with("WITH events AS (") && insert.line == 2);
        assert!(with.sql.starts_with("WITH events AS (") && with.line == 4);
        assert!(with.sql.ends_with("), x AS (SELECT 1)\nSELECT * FROM x, events"));
    }

    #[test]
    fn what_cannot_run_is_named_with_its_line() {
        assert_eq!(error("-- nothing\n"), "projection: there is no statement in it");
        assert!(error("SELECT 1;\nCOMMIT").starts_with("projection, line 2: COMMIT cannot run"));
        assert!(error("SELECT\n\n$1").starts_with("projection, line 3: there are no parameters"));
        assert!(error("SELECT 1;\n\n 'x").contains("line 3: a string begins here"));
    }
}
