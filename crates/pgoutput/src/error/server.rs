//! Errors in the server's own words.

use std::fmt;

use tokio_postgres::error::SqlState;

use crate::reader::Reader;

/// What to do about the errors that operators meet.
pub(super) fn remedy(code: &str) -> Option<&'static str> {
    Some(match code {
        "55006" => {
            "another process holds it, see active_pid in pg_replication_slots; it is free once that ends"
        }
        "42704" => {
            "create the missing slot or publication; a publication must exist before the slot does"
        }
        "55000" => {
            "set wal_level = logical and restart the server; if the slot is invalidated \
             (wal_status = lost) it must be created again"
        }
        "53300" => "raise max_wal_senders or max_connections, or wait for a free one",
        "53400" => "raise max_replication_slots, or drop an unused slot",
        "42501" => "the role needs: alter role ... replication",
        "28P01" => "check the password",
        "28000" => "check pg_hba.conf: the role, the database and the address need a line there",
        "3D000" => "check the database name",
        "57P03" => "the server is starting up or shutting down",
        "58P01" => "the log that the slot needs was removed",
        _ => return None,
    })
}

/// An error as the server reported it
/// (PostgreSQL documentation, "Error and Notice Message Fields").
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerError {
    /// `ERROR`, `FATAL` or `PANIC`, never translated.
    pub severity: String,
    /// The SQLSTATE.
    pub code: SqlState,
    /// The primary message, in the language of the server's `lc_messages`.
    pub message: String,
    /// More about the cause.
    pub detail: Option<String>,
    /// The server's own advice.
    pub hint: Option<String>,
    /// Where it happened: for errors of the stream, the slot, the plugin and the LSN.
    pub context: Option<String>,
    /// The server's own function: the only part besides the code that is never translated.
    pub routine: Option<String>,
}

impl ServerError {
    /// Reads the body of an ErrorResponse or NoticeResponse. A body that ends too early gives what it has.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let mut e = Self {
            severity: String::new(),
            code: SqlState::INTERNAL_ERROR,
            message: String::new(),
            detail: None,
            hint: None,
            context: None,
            routine: None,
        };
        let mut reader = Reader::new(body);
        while let Ok(kind @ 1..) = reader.u8() {
            let Ok(value) = reader.cstr() else { break };
            let text = String::from_utf8_lossy(value).into_owned();
            match kind {
                b'V' => e.severity = text,
                b'C' => e.code = SqlState::from_code(&text),
                b'M' => e.message = text,
                b'D' => e.detail = Some(text),
                b'H' => e.hint = Some(text),
                b'W' => e.context = Some(text),
                b'R' => e.routine = Some(text),
                // position, source file and so on: for the server's developers
                _ => {}
            }
        }
        e
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server: {} (sqlstate {})", self.message, self.code.code())?;
        for part in [&self.detail, &self.hint, &self.context].into_iter().flatten() {
            write!(f, "; {part}")?;
        }
        match remedy(self.code.code()) {
            Some(remedy) => write!(f, ": {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ServerError {}
