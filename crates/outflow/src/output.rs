//! Standard output. A reader that went away (`outflow config | head`) ends the command in silence.

use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

/// Writes `text` as it is.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    tolerate_closed(io::stdout().lock().write_all(text.as_bytes()))
}

/// Writes `value` as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut json =
        serde_json::to_string_pretty(value).context("this report cannot be written as JSON")?;
    json.push('\n');
    text(&json)
}

fn tolerate_closed(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        _ => Ok(()),
    }
}
