//! The forms of single values. Every error says what is allowed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use outflow_broker::Target;
use outflow_inbox::{ConfigError, Start};
use outflow_pgoutput::ConnectOptions;
use outflow_relay::config::{Durability, TableName};

type Check = Result<(), String>;

/// Anything.
pub(super) fn any(_: &str) -> Check {
    Ok(())
}

/// Something.
pub(super) fn not_empty(text: &str) -> Check {
    if text.is_empty() { Err("expected a text that is not empty".to_owned()) } else { Ok(()) }
}

/// A name that appears in Redis keys, metrics and log lines.
pub(super) fn name(text: &str) -> Check {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if text.is_empty() || text.len() > 63 || !text.chars().all(allowed) {
        return Err("expected 1 to 63 letters, digits, `_`, `-` and `.`".to_owned());
    }
    Ok(())
}

/// A replication slot's name (PostgreSQL documentation, section "Querying And Manipulating
/// Replication Slots").
pub(super) fn slot(text: &str) -> Check {
    let allowed =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    if text.is_empty() || text.len() > 63 || !text.chars().all(allowed) {
        return Err("expected 1 to 63 lower-case letters, digits and `_`".to_owned());
    }
    Ok(())
}

/// An identifier of PostgreSQL, not quoted.
pub(super) fn identifier(text: &str) -> Check {
    if text.is_empty() || text.len() > 63 || text.contains('\0') {
        return Err("expected a name of 1 to 63 bytes, without quotes".to_owned());
    }
    Ok(())
}

/// An identifier, or nothing.
pub(super) fn optional_identifier(text: &str) -> Check {
    if text.is_empty() { Ok(()) } else { identifier(text) }
}

/// `schema.table`, or `table` in the schema `public`.
pub(super) fn table(text: &str) -> Result<TableName, String> {
    let (schema, name) = text.split_once('.').unwrap_or(("public", text));
    if identifier(schema).is_err() || identifier(name).is_err() || name.contains('.') {
        return Err("expected schema.table, without quotes".to_owned());
    }
    Ok(TableName { schema: schema.to_owned(), name: name.to_owned() })
}

/// A connection to PostgreSQL; empty where none is needed.
pub(super) fn postgres_url(text: &str) -> Check {
    if text.is_empty() {
        return Ok(());
    }
    ConnectOptions::parse(text)
        .map(|_| ())
        .map_err(|error| format!("{error}; expected postgres://user:password@host:5432/database"))
}

/// Where Redis is.
pub(super) fn redis_url(text: &str) -> Check {
    text.parse::<Target>().map(|_| ()).map_err(|error| error.to_string())
}

/// `memory`, `fsync` or `replicas:N`.
pub(super) fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "memory" => Ok(Durability::Memory),
        "fsync" => Ok(Durability::Fsync),
        _ => text
            .strip_prefix("replicas:")
            .and_then(|count| count.parse().ok())
            .filter(|count| (1..=16).contains(count))
            .map(Durability::Replicas)
            .ok_or_else(|| {
                "expected \"memory\" or \"fsync\" or \"replicas:N\" with N from 1 to 16".to_owned()
            }),
    }
}

/// Written as [`durability`] reads it.
pub(super) fn show_durability(durability: &Durability) -> String {
    match durability {
        Durability::Memory => "memory".to_owned(),
        Durability::Fsync => "fsync".to_owned(),
        Durability::Replicas(count) => format!("replicas:{count}"),
    }
}

/// Where to listen: an address with a port, or a port alone on the loopback address; empty for
/// nowhere.
pub(super) fn listen(text: &str) -> Result<Option<SocketAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
        return Ok(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
    }
    let named = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    named.as_deref().unwrap_or(text).parse().map(Some).map_err(|_| {
        "expected an address with a port such as 127.0.0.1:9187 or 0.0.0.0:9187, or \"\" for none"
            .to_owned()
    })
}

/// Written as [`listen`] reads it.
pub(super) fn show_listen(listen: &Option<SocketAddr>) -> String {
    listen.map(|address| address.to_string()).unwrap_or_default()
}

/// Where a new consumer begins; empty: nobody has said.
pub(super) fn start(text: &str) -> Result<Option<Start>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    // any offset from UTC will do here
    let time = || text.parse::<jiff::Timestamp>().ok().map(|time| Start::Time(time.into()));
    match text.parse() {
        Ok(start) => Ok(Some(start)),
        Err(error) => time().map(Some).ok_or_else(|| {
            let ConfigError { allowed, .. } = error;
            allowed.to_owned()
        }),
    }
}

/// Written as [`start`] reads it.
pub(super) fn show_start(start: &Option<Start>) -> String {
    start.map(|start| start.to_string()).unwrap_or_default()
}

/// An age, or nothing: everything is kept.
pub(super) fn age(text: &str) -> Result<Option<Duration>, String> {
    const EXPECTED: &str =
        "expected an age of at least 1s such as \"7days\", or \"\" to keep everything";
    if text.is_empty() {
        return Ok(None);
    }
    match humantime::parse_duration(text) {
        Ok(age) if age >= Duration::from_secs(1) => Ok(Some(age)),
        _ => Err(EXPECTED.to_owned()),
    }
}

/// Written as [`age`] reads it.
pub(super) fn show_age(age: &Option<Duration>) -> String {
    age.map(|age| humantime::format_duration(age).to_string()).unwrap_or_default()
}

/// A filter of log lines: a level, or levels by module.
pub(super) fn log_level(text: &str) -> Check {
    let filter = tracing_subscriber::EnvFilter::builder().parse(text);
    filter.map(|_| ()).map_err(|_| {
        "expected error, warn, info, debug or trace, or levels by module such as \
         info,outflow_relay=debug"
            .to_owned()
    })
}
