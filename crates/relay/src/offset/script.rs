//! The script that moves an offset in Redis, and the names of the keys.

use outflow_broker::Outcome;
use redis::Cmd;

use crate::batch::StreamSpan;
use crate::error::Error;
use crate::offset::Offset;
use crate::sink::classify_server_error;

const SAVE: &str = include_str!("save.lua");

/// Key of the offset: a stream that holds one record, whose id is the resume point.
///
/// The braces are a hash tag: in a cluster all keys of a connector are in one slot, so that a
/// script may use them together.
#[must_use]
pub fn offset_key(connector: &str) -> String {
    format!("outflow:offset:{{{connector}}}")
}

/// Key of the ledger: a stream of earlier offsets.
#[must_use]
pub fn ledger_key(connector: &str) -> String {
    format!("outflow:ledger:{{{connector}}}")
}

/// Key of the connector's dead letters: a stream of rows that could not become entries.
#[must_use]
pub fn dead_letter_key(connector: &str) -> String {
    format!("outflow:dead-letters:{{{connector}}}")
}

/// The command that saves `offset` if the entries of `streams` are in place.
///
/// `ledger_length` of 0 adds no line to the ledger.
///
/// # Errors
/// When the resume point does not fit into an entry id.
pub fn save_command(
    connector: &str,
    offset: &Offset,
    ledger_length: u64,
    streams: &[StreamSpan],
) -> Result<Cmd, Error> {
    let mut command = redis::cmd("EVAL");
    command.arg(SAVE).arg(streams.len() + 2).arg(offset_key(connector)).arg(ledger_key(connector));
    for stream in streams {
        command.arg(stream.key.as_slice());
    }
    command.arg(offset.resume_point().entry_id()?.to_string()).arg(ledger_length);
    for stream in streams {
        match stream.ids {
            Some((first, last)) => command.arg(first.to_string()).arg(last.to_string()),
            None => command.arg("").arg(""),
        };
    }
    for (name, value) in offset.to_fields() {
        command.arg(name).arg(value);
    }
    Ok(command)
}

/// What a refusal of the script means for the connector.
///
/// # Errors
/// [`Error::Superseded`] when a later offset is stored; fatal when entries that should be covered
/// are not there; otherwise whatever Redis refused with.
pub fn script_outcome(outcome: &Outcome, connector: &str, own: &Offset) -> Result<(), Error> {
    let Err(error) = outcome else { return Ok(()) };
    let detail = error.details().unwrap_or_default();
    match error.code() {
        "OUTFLOWAHEAD" => Err(Error::Superseded {
            connector: connector.to_owned(),
            stored: detail.to_owned(),
            own: own.resume_point().entry_id()?.to_string(),
        }),
        "OUTFLOWABSENT" => Err(Error::SinkRefused(format!(
            "the offset was not moved: {detail}; a stream was replaced, trimmed or written by \
             something else while a batch was published"
        ))),
        _ => Err(classify_server_error(error)),
    }
}
