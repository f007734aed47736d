//! What Redis says when it refuses, and what to do about it.

use redis::{ErrorKind, RedisError, ServerError};

use crate::error::Error;

/// Turns an error of the Redis client into ours, with advice where there is any.
///
/// Codes: Redis documentation, "RESP protocol specification", "Simple errors", and the server's
/// own messages.
pub(crate) fn classify(error: &RedisError) -> Error {
    // a refused transaction carries the errors of its commands: they hold the reason
    if let Some(errors) = error.clone().into_server_errors()
        && let Some((_, reason)) = errors.iter().find(|(_, reason)| reason.code() != "EXECABORT")
    {
        return classify_server_error(reason);
    }
    if let Some(code) = error.code() {
        return classify_code(code, error.detail().unwrap_or_default());
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            Error::SinkRefused(format!("{error}: check user and password in sink.url"))
        }
        ErrorKind::InvalidClientConfig => Error::SinkRefused(format!("{error}: check sink.url")),
        _ => Error::SinkUnavailable(error.to_string()),
    }
}

/// As [`classify`], for the reply to a single command.
pub(crate) fn classify_server_error(error: &ServerError) -> Error {
    classify_code(error.code(), error.details().unwrap_or_default())
}

fn classify_code(code: &str, detail: &str) -> Error {
    let said = format!("{code} {detail}");
    let advised = |advice: &str| Error::SinkRefused(format!("{said}: {advice}"));
    // where EXEC itself is refused the reason has a code, too
    let inner = detail.strip_prefix("Transaction discarded because of: ");
    let code = inner.and_then(|inner| inner.split(' ').next()).unwrap_or(code);
    match code {
        "WRONGTYPE" => advised(
            "a key that outflow writes holds another type; DEL or RENAME it, or set another \
             sink.stream_prefix",
        ),
        "NOPERM" => advised(
            "grant the user of sink.url +xadd +xrange +xrevrange +xinfo +type +exists +eval +multi \
             +exec on outflow's keys (WAIT or WAITAOF and +set for sink.durability; +watch +del \
             +scan for `outflow offsets reset` and `outflow status`)",
        ),
        "NOAUTH" | "WRONGPASS" => advised("check user and password in sink.url"),
        "CROSSSLOT" => advised(
            "this is a cluster, and sink.url names one server: write it as redis+cluster://host:6379",
        ),
        // every other condition passes or is lifted without a change of what is sent:
        // OOM READONLY LOADING MISCONF BUSY CLUSTERDOWN TRYAGAIN MOVED ASK MASTERDOWN NOREPLICAS
        "ERR" if detail.contains("unknown command") => {
            advised("outflow needs Redis 6.2 or later with streams and scripts")
        }
        "ERR" if detail.contains("invalid bulk length") => advised(
            "an entry exceeds the server's proto-max-bulk-len; raise it or lower \
             source.max_payload",
        ),
        _ => Error::SinkUnavailable(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Retry;

    #[test]
    fn conditions_that_pass_are_transient() {
        for code in [
            "OOM",
            "READONLY",
            "LOADING",
            "MISCONF",
            "BUSY",
            "CLUSTERDOWN",
            "TRYAGAIN",
            "MOVED",
            "ASK",
            "MASTERDOWN",
            "NOREPLICAS",
        ] {
            let error = classify_code(code, "for now");
            assert_eq!(error.retry(), Retry::Transient, "{code}");
            assert_eq!(error.to_string(), format!("redis: {code} for now"));
        }
    }

    #[test]
    fn conditions_that_need_a_person_are_fatal_and_advise() {
        for code in ["WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT"] {
            let error = classify_code(code, "text");
            assert_eq!(error.retry(), Retry::Fatal, "{code}");
            assert!(error.to_string().starts_with(&format!("redis: {code} text: ")), "{error}");
        }
        let refused = "Transaction discarded because of: NOPERM this user may not";
        assert_eq!(classify_code("EXECABORT", refused).retry(), Retry::Fatal);
        assert_eq!(classify_code("EXECABORT", "for now").retry(), Retry::Transient);
    }
}
