//! The broker: whether Redis keeps what it acknowledges.

use std::collections::HashMap;

use redis::{Cmd, Value, cmd};

use outflow_broker::Primary;

use super::{Finding, Report};
use crate::config::{Durability, SinkConfig};
use crate::error::{Error, Retry};
use crate::resume::bytes;
use crate::sink::connection::RedisLink;

/// What INFO and, where it is permitted, CONFIG GET say.
#[derive(Debug, Default)]
struct Facts {
    info: HashMap<String, String>,
    save: Option<String>,
    appendfsync: Option<String>,
}

/// Checks the broker: version, role, eviction, persistence, and what `sink.durability` needs.
///
/// What a managed service does not let be asked is passed over.
///
/// # Errors
/// Only when Redis cannot be asked at all. Transient: check again.
///
/// # Cancel safety
/// Reads only; dropping the future changes nothing.
pub async fn check_broker(sink: &SinkConfig, redis: &mut RedisLink) -> Result<Report, Error> {
    let mut report = Report::default();
    let primaries = redis.get().await?.primaries().await;
    for primary in primaries.map_err(|error| crate::sink::classify(&error))? {
        let mut facts = Facts::default();
        let info = ask(redis, &primary, cmd("INFO").arg("all")).await?;
        if let Some(text) = info.and_then(|info| redis::from_redis_value::<String>(info).ok()) {
            facts.info = parse_info(&text);
        }
        facts.save = setting(redis, &primary, "save").await?;
        facts.appendfsync = setting(redis, &primary, "appendfsync").await?;
        let mut found = Report::default();
        facts.check(&mut found, sink);
        report.findings.extend(found.findings.into_iter().map(|finding| at(finding, &primary)));
    }
    Ok(report)
}

/// Says which node of a cluster a finding is about.
fn at(mut finding: Finding, primary: &Primary) -> Finding {
    let node = primary.to_string();
    if !node.is_empty() {
        finding.message = format!("{node}: {}", finding.message);
    }
    finding
}

/// The answer to a command; `None` where the server does not permit or know it.
async fn ask(
    redis: &mut RedisLink,
    primary: &Primary,
    command: &Cmd,
) -> Result<Option<Value>, Error> {
    match redis.get().await?.ask(primary, command).await {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let refused = error.code().is_some_and(|code| matches!(code, "NOPERM" | "ERR"));
            if refused {
                return Ok(None);
            }
            redis.reset();
            let error = crate::sink::classify(&error);
            if error.retry() == Retry::Fatal { Ok(None) } else { Err(error) }
        }
    }
}

async fn setting(
    redis: &mut RedisLink,
    primary: &Primary,
    name: &str,
) -> Result<Option<String>, Error> {
    let answer = ask(redis, primary, cmd("CONFIG").arg("GET").arg(name)).await?;
    Ok(match answer {
        Some(Value::Array(parts)) => match parts.get(1) {
            Some(Value::BulkString(value)) => Some(String::from_utf8_lossy(value).into_owned()),
            _ => None,
        },
        _ => None,
    })
}

fn parse_info(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

impl Facts {
    fn text(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.text("redis_version")?.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    }

    /// Replicas that are connected and have their data.
    fn replicas(&self) -> usize {
        let online = |(name, value): &(&String, &String)| {
            name.strip_prefix("slave").is_some_and(|n| n.parse::<u32>().is_ok())
                && value.contains("state=online")
        };
        self.info.iter().filter(online).count()
    }

    fn check(&self, report: &mut Report, sink: &SinkConfig) {
        if let Some((major, minor)) = self.version().filter(|version| *version < (6, 2)) {
            report.refuse(
                "redis_version",
                format!("this is Redis {major}.{minor}, outflow needs 6.2 or later"),
                "update Redis, or set sink.url to another server",
            );
        }
        if self.text("cluster_enabled") == Some("1") && !sink.redis.is_cluster() {
            report.refuse(
                "redis_cluster",
                "this Redis is a node of a cluster, and sink.url names one server: streams of the \
                 other nodes could not be written",
                "write sink.url as redis+cluster://host:6379, with one or more of the nodes",
            );
        }
        if self.text("role") == Some("slave") {
            report.wait(
                "redis_role",
                "this Redis is a replica and refuses writes",
                "set sink.url to the primary, or name sentinels that know it",
            );
        }
        if self.text("loading") == Some("1") {
            report.wait("redis_loading", "this Redis is loading its data", "wait until it is done");
        }
        self.check_memory(report);
        self.check_persistence(report);
        self.check_durability(report, sink.durability);
    }

    fn check_memory(&self, report: &mut Report) {
        let policy = self.text("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" && !policy.starts_with("volatile-") {
            report.warn(
                "redis_eviction",
                format!(
                    "maxmemory-policy is {policy}: when memory runs out, Redis removes whole \
                     streams with all that consumers have not read"
                ),
                "run CONFIG SET maxmemory-policy noeviction, and CONFIG REWRITE",
            );
        }
        let (used, limit) = (self.number("used_memory"), self.number("maxmemory"));
        if let (Some(used), Some(limit @ 1..)) = (used, limit)
            && used > limit / 5 * 4
        {
            report.warn(
                "redis_memory",
                format!("{} of maxmemory = {} are in use", bytes(used), bytes(limit)),
                "raise maxmemory, or XTRIM the streams below what every consumer has applied \
                 (docs/guarantees.md, G9)",
            );
        }
    }

    fn check_persistence(&self, report: &mut Report) {
        if self.text("aof_enabled") != Some("0") {
            return;
        }
        let consequence = match self.save.as_deref() {
            Some("") => "Redis writes nothing to disk: a restart loses streams and offset",
            Some(_) => {
                "Redis writes only snapshots to disk: a crash loses what came after the last one"
            }
            // managed services do not say; they have ways of their own
            None => return,
        };
        report.warn(
            "redis_persistence",
            format!(
                "{consequence}. What is lost must be published again (docs/runbook.md, \"Redis \
                 lost data\")"
            ),
            "run CONFIG SET appendonly yes, and CONFIG REWRITE",
        );
    }

    fn check_durability(&self, report: &mut Report, durability: Durability) {
        match durability {
            Durability::Memory => {}
            Durability::Fsync => self.check_fsync(report),
            Durability::Replicas(wanted) => {
                let connected = self.replicas();
                if usize::try_from(wanted).is_ok_and(|wanted| connected < wanted) {
                    report.wait(
                        "redis_replicas",
                        format!(
                            "sink.durability asks for {wanted} replicas, {connected} are connected"
                        ),
                        "connect replicas (REPLICAOF), or lower sink.durability",
                    );
                }
            }
        }
    }

    fn check_fsync(&self, report: &mut Report) {
        if self.text("aof_enabled") == Some("0") {
            report.refuse(
                "redis_fsync",
                "sink.durability is \"fsync\", and Redis has no append-only file",
                "run CONFIG SET appendonly yes, and CONFIG REWRITE; or set sink.durability = \
                 \"memory\"",
            );
            return;
        }
        if self.version().is_none_or(|version| version >= (7, 2)) {
            return;
        }
        match self.appendfsync.as_deref() {
            Some("always") => {}
            Some(other) => report.refuse(
                "redis_fsync",
                format!(
                    "sink.durability is \"fsync\"; with appendfsync {other} this Redis cannot \
                     tell when it has written (WAITAOF came with 7.2)"
                ),
                "run CONFIG SET appendfsync always, and CONFIG REWRITE; or update Redis",
            ),
            None => report.warn(
                "redis_fsync",
                "sink.durability is \"fsync\"; whether this Redis has appendfsync always could \
                 not be asked",
                "make sure that it has",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(info: &str, save: Option<&str>, durability: Durability) -> Vec<&'static str> {
        let facts = Facts {
            info: parse_info(info),
            save: save.map(ToOwned::to_owned),
            appendfsync: Some("everysec".to_owned()),
        };
        let sink = SinkConfig {
            redis: "redis://localhost".parse().unwrap(),
            naming: outflow_event::StreamNaming::new("outflow:", 1),
            entry_id: crate::config::EntryIdMode::Lsn,
            durability,
            batch_entries: 1,
            batch_bytes: 1,
            timeout: std::time::Duration::from_secs(1),
        };
        let mut report = Report::default();
        facts.check(&mut report, &sink);
        report.findings.iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn an_unknown_server_is_not_suspected() {
        assert_eq!(findings("", None, Durability::Memory), [""; 0]);
    }

    #[test]
    fn each_condition_is_found() {
        let memory = Durability::Memory;
        assert_eq!(findings("redis_version:6.0.16\r\n", None, memory), ["redis_version"]);
        assert_eq!(findings("cluster_enabled:1\r\n", None, memory), ["redis_cluster"]);
        assert_eq!(
            findings("role:slave\r\nloading:1\r\n", None, memory),
            ["redis_role", "redis_loading"]
        );
        assert_eq!(findings("maxmemory_policy:allkeys-lru\r\n", None, memory), ["redis_eviction"]);
        assert_eq!(findings("maxmemory_policy:volatile-lru\r\n", None, memory), [""; 0]);
        assert_eq!(findings("used_memory:90\r\nmaxmemory:100\r\n", None, memory), ["redis_memory"]);
        assert_eq!(findings("used_memory:90\r\nmaxmemory:0\r\n", None, memory), [""; 0]);
        assert_eq!(findings("aof_enabled:0\r\n", Some(""), memory), ["redis_persistence"]);
        assert_eq!(findings("aof_enabled:0\r\n", None, memory), [""; 0]);
        assert_eq!(findings("aof_enabled:1\r\n", Some(""), memory), [""; 0]);
    }

    #[test]
    fn durability_asks_for_what_it_needs() {
        let (fsync, two) = (Durability::Fsync, Durability::Replicas(2));
        assert_eq!(findings("aof_enabled:0\r\n", None, fsync), ["redis_fsync"]);
        assert_eq!(
            findings("redis_version:7.0.15\r\naof_enabled:1\r\n", None, fsync),
            ["redis_fsync"]
        );
        assert_eq!(findings("redis_version:7.2.0\r\naof_enabled:1\r\n", None, fsync), [""; 0]);
        let one = "slave0:ip=::1,port=1,state=online\r\nslave1:ip=::1,port=2,state=wait_bgsave\r\n";
        assert_eq!(findings(one, None, two), ["redis_replicas"]);
        let both = one.replace("wait_bgsave", "online");
        assert_eq!(findings(&both, None, two), [""; 0]);
    }
}
