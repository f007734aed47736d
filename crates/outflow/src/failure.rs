//! How a failed command ends: one lower-case sentence chain on standard error, and an exit code.

use std::fmt;
use std::process::ExitCode;

use crate::config::Problems;

/// Failed while running.
const FAILED: u8 = 1;
/// The command line or the configuration is not valid (clap uses 2 as well).
const INVALID: u8 = 2;
/// A person has to decide or to grant something.
pub(crate) const REFUSED: u8 = 3;

/// A refusal: nothing is broken, but going on needs a person. Ends with exit code 3.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Says on standard error what went wrong and returns the exit code for it.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", chain(error));
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Problems>()) {
        INVALID
    } else if error.chain().any(is_refusal) {
        REFUSED
    } else {
        FAILED
    }
}

fn is_refusal(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<Refused>()
        || cause.downcast_ref().is_some_and(refused_by_relay)
        || cause.downcast_ref().is_some_and(|error: &outflow_inbox::Error| {
            error.retry() == outflow_inbox::Retry::Fatal
                && !matches!(error, outflow_inbox::Error::Panicked(_))
        })
}

/// What ends a relay needs a person, unless the log makes no sense: that is a bug, or a server that is
/// not known here.
fn refused_by_relay(error: &outflow_relay::Error) -> bool {
    use outflow_pgoutput::Error as Link;
    use outflow_relay::Error;
    let senseless = matches!(
        error,
        Error::Protocol(_)
            | Error::Replication(
                Link::Protocol(_) | Link::Decode { .. } | Link::ConfirmBeyondReceived { .. }
            )
    );
    error.retry() == outflow_relay::Retry::Fatal && !senseless
}

/// The causes from the outermost to the innermost, each said once.
///
/// Many libraries print the cause as a part of their own message; a cause whose text stands in what
/// was already said adds nothing.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // a server's message is longer than what tokio-postgres prints of it
        let said = crate::database::describe(cause);
        if !text.contains(&said) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&said);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Problem;

    #[test]
    fn the_kind_of_failure_decides_the_exit_code() {
        let problems = Problems(vec![Problem::new("a", "b")]);
        assert_eq!(code(&anyhow::Error::new(problems).context("c")), INVALID);
        assert_eq!(code(&anyhow::Error::new(Refused("r".into()))), REFUSED);
        use outflow_relay::Error;
        let missing = || outflow_pgoutput::Error::SlotName { name: "Ob".into() };
        let lost = || Error::StreamBehind { stream: "s".into(), acked: "1-1".into() };
        let unreadable = || Error::BadRecord { what: "the offset".into(), why: "a field".into() };
        for refused in [
            Error::Refused("slot".into()),
            Error::SinkRefused("WRONGTYPE".into()),
            lost(),
            unreadable(),
            Error::Replication(missing()),
        ] {
            assert_eq!(code(&anyhow::Error::new(refused).context("relay")), REFUSED);
        }
        for failed in [Error::Protocol("kind".into()), Error::LinkClosed] {
            assert_eq!(code(&anyhow::Error::new(failed).context("relay")), FAILED);
        }
        assert_eq!(code(&anyhow::anyhow!("x")), FAILED);
        let fatal = |advice| outflow_inbox::Error::Database { source: "gone".into(), advice };
        assert_eq!(code(&anyhow::Error::new(fatal(Some("grant"))).context("consume")), REFUSED);
        assert_eq!(code(&anyhow::Error::new(fatal(None))), FAILED);
        assert_eq!(code(&anyhow::Error::new(outflow_inbox::Error::Panicked("reader"))), FAILED);
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no route").context("redis: no route").context("relay");
        assert_eq!(chain(&error), "relay: redis: no route");
    }
}
