//! The configuration of connector and consumer: the ways that they take, and what else they need.

use std::path::Path;

use super::CONSUMER;

/// URLs of the ways that processes take.
pub(crate) struct Ways {
    /// From the relay to PostgreSQL.
    pub(crate) source: String,
    /// From the relay to Redis.
    pub(crate) sink: String,
    /// From the consumer to Redis.
    pub(crate) inbox: String,
    /// From the consumer to PostgreSQL.
    pub(crate) books: String,
}

impl Ways {
    /// The text of a configuration that `command` has made; keys of streams begin with `prefix`.
    pub(crate) fn config(
        &self,
        command: &str,
        connector: &str,
        prefix: &str,
        projection: &Path,
    ) -> String {
        // URLs and paths may hold any letter
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let [source, sink, inbox, books] =
            [&self.source, &self.sink, &self.inbox, &self.books].map(|url| quoted(url));
        let projection = quoted(&projection.display().to_string());
        format!(
            r#"# made by `outflow {command}`
connector = "{connector}"

[source]
url = {source}

[sink]
url = {sink}
stream_prefix = "{prefix}"

[polling]
relay = "relay-1"

[consumer]
id = "{CONSUMER}"
# stays the same over restarts, so that a worker that was killed finds what it had not acknowledged
worker = "worker-1"
url = {books}
redis_url = {inbox}
streams = ["journal"]
projection = {projection}
# it is new, and the relay may have published before it looks
from = "beginning"

[log]
format = "human"
"#
        )
    }
}
