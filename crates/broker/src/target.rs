//! Where Redis is.

use std::fmt;
use std::str::FromStr;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult,
};

/// Where Redis is, read from a URL.
///
/// | URL | meaning |
/// | --- | --- |
/// | `redis://[user:password@]host[:6379][/database]`, `redis+unix:///path` | one server |
/// | `redis+sentinel://[user:password@]host:26379[,host..]/primary[/database]` | the primary that the sentinels name |
/// | `redis+cluster://[user:password@]host:6379[,host..]` | a cluster, found through any of its nodes |
///
/// `rediss` in place of `redis` asks for TLS. User and password are those of the data nodes;
/// sentinels that want some of their own get them as `?sentinel_user=..&sentinel_password=..`.
/// Whatever is not a letter, a digit or one of `-._~` is percent-encoded in them.
#[derive(Clone)]
pub enum Target {
    /// One server (or whatever answers at that address).
    Single(Box<Server>),
    /// The primary that the sentinels name; every new connection asks again.
    Sentinel {
        /// The sentinels, with their own user and password.
        sentinels: Vec<Server>,
        /// Name of the monitored primary.
        primary: String,
        /// User, password, database and TLS of the primary; its address is not used.
        node: Box<Server>,
    },
    /// A cluster, found through any of these nodes.
    Cluster {
        /// Nodes to ask for the others.
        nodes: Vec<Server>,
    },
}

/// Address and settings of one server.
#[derive(Clone)]
pub struct Server {
    pub(crate) addr: ConnectionAddr,
    pub(crate) redis: RedisConnectionInfo,
}

impl Server {
    pub(crate) fn info(&self) -> RedisResult<ConnectionInfo> {
        Ok(self.addr.clone().into_connection_info()?.set_redis_settings(self.redis.clone()))
    }
}

/// A URL that names no Redis. The text never repeats the URL: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}; expected redis://[user:password@]host[:6379][/database], \
     redis+sentinel://[user:password@]host:26379[,host:26379]/primary or \
     redis+cluster://[user:password@]host:6379[,host:6379], with rediss for TLS"
)]
pub struct TargetError {
    what: String,
}

impl Default for Target {
    /// The server that a package installs: `127.0.0.1:6379`.
    fn default() -> Self {
        Self::Single(Box::new(Server {
            addr: ConnectionAddr::Tcp("127.0.0.1".to_owned(), 6379),
            redis: RedisConnectionInfo::default(),
        }))
    }
}

impl Target {
    /// Whether keys are spread over nodes: then a transaction reaches no further than one
    /// [`Slot`](crate::Slot).
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(url: &str) -> Result<Self, TargetError> {
        let refused = |what: &str| TargetError { what: what.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("this is no URL"))?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !matches!(base, "redis" | "rediss") || kind == "unix" {
            return server(url).map(|info| Self::Single(Box::new(info)));
        }
        match kind {
            "" => server(url).map(|info| Self::Single(Box::new(info))),
            "sentinel" => Self::sentinel(base, rest),
            "cluster" => Self::cluster(base, rest),
            _ => Err(refused("the scheme is unknown")),
        }
    }
}

impl Target {
    fn sentinel(base: &str, rest: &str) -> Result<Self, TargetError> {
        let parts = Parts::of(rest)?;
        let (primary, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
        if primary.is_empty() {
            return Err(TargetError { what: "the name of the primary is missing".to_owned() });
        }
        let (mut user, mut password) = ("", "");
        for pair in parts.query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sentinel_user", value)) => user = value,
                Some(("sentinel_password", value)) => password = value,
                _ => {
                    let known = "sentinel_user and sentinel_password";
                    return Err(TargetError {
                        what: format!("a parameter is unknown, these are known: {known}"),
                    });
                }
            }
        }
        let own = if user.is_empty() && password.is_empty() {
            String::new()
        } else {
            format!("{user}:{password}@")
        };
        let sentinels = parts.hosts().map(|host| server(&format!("{base}://{own}{host}")));
        let sentinels = sentinels.collect::<Result<_, _>>()?;
        let node = server(&format!("{base}://{}primary/{database}", parts.credentials))?;
        Ok(Self::Sentinel { sentinels, primary: primary.to_owned(), node: Box::new(node) })
    }

    fn cluster(base: &str, rest: &str) -> Result<Self, TargetError> {
        let parts = Parts::of(rest)?;
        if !parts.path.is_empty() || !parts.query.is_empty() {
            let what = "a cluster has neither databases nor parameters".to_owned();
            return Err(TargetError { what });
        }
        let credentials = parts.credentials;
        let nodes = parts.hosts().map(|host| server(&format!("{base}://{credentials}{host}")));
        Ok(Self::Cluster { nodes: nodes.collect::<Result<_, _>>()? })
    }
}

/// What stands after the scheme of a URL with several hosts.
struct Parts<'a> {
    /// With the `@`, or empty.
    credentials: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str) -> Result<Self, TargetError> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let at = authority.rfind('@').map_or(0, |at| at + 1);
        let (credentials, hosts) = authority.split_at(at);
        if hosts.split(',').any(|host| host.trim().is_empty()) {
            return Err(TargetError { what: "a host is missing".to_owned() });
        }
        Ok(Self { credentials, hosts, path, query })
    }

    fn hosts(&self) -> impl Iterator<Item = &'a str> {
        self.hosts.split(',').map(str::trim)
    }
}

fn server(url: &str) -> Result<Server, TargetError> {
    // the client's own words may repeat the URL
    let info = url.into_connection_info();
    let info = info.map_err(|_| TargetError { what: "the URL cannot be read".to_owned() })?;
    Ok(Server { addr: info.addr().clone(), redis: info.redis_settings().clone() })
}

impl fmt::Debug for Target {
    /// Without users and passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Target {
    /// Where it is, for people; without users and passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |servers: &[Server]| {
            servers.iter().map(|server| server.addr.to_string()).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Single(server) => write!(f, "{}", server.addr),
            Self::Sentinel { sentinels, primary, .. } => {
                write!(f, "primary {primary} of the sentinels {}", list(sentinels))
            }
            Self::Cluster { nodes } => write!(f, "the cluster of {}", list(nodes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Target {
        url.parse().unwrap()
    }

    #[test]
    fn one_server() {
        let Target::Single(info) = parse("redis://app:p%40ss@h:7000/3") else { unreachable!() };
        assert_eq!(info.addr.to_string(), "h:7000");
        let redis = &info.redis;
        assert_eq!((redis.username(), redis.password()), (Some("app"), Some("p@ss")));
        assert_eq!(redis.db(), 3);
        assert_eq!(parse("redis+unix:///run/redis.sock").to_string(), "/run/redis.sock");
    }

    #[test]
    fn sentinels_have_credentials_of_their_own() {
        let url = "redis+sentinel://app:secret@a:1, b:2/main/4?sentinel_password=watch";
        let Target::Sentinel { sentinels, primary, node } = parse(url) else { unreachable!() };
        assert_eq!(primary, "main");
        let seen: Vec<_> =
            sentinels.iter().map(|info| (info.addr.to_string(), info.redis.password())).collect();
        assert_eq!(seen, [("a:1".to_owned(), Some("watch")), ("b:2".to_owned(), Some("watch"))]);
        let node = &node.redis;
        assert_eq!((node.username(), node.password()), (Some("app"), Some("secret")));
        assert_eq!(node.db(), 4);
    }

    #[test]
    fn a_cluster_is_found_through_any_node() {
        let target = parse("rediss+cluster://:secret@a:1,b:2");
        assert!(target.is_cluster());
        let Target::Cluster { nodes } = &target else { unreachable!() };
        assert!(nodes.iter().all(|node| node.redis.password() == Some("secret")));
        assert!(nodes.iter().all(|node| matches!(
            node.addr,
            redis::ConnectionAddr::TcpTls { insecure: false, .. }
        )));
        assert_eq!(target.to_string(), "the cluster of a:1, b:2");
    }

    #[test]
    fn what_names_no_redis_is_refused_without_repeating_it() {
        for (url, why) in [
            ("localhost:6379", "this is no URL"),
            ("http://localhost", "cannot be read"),
            ("redis+sentinel://h:1", "the name of the primary is missing"),
            ("redis+sentinel://h:1/", "the name of the primary is missing"),
            ("redis+sentinel://u:hush@h,/main", "a host is missing"),
            ("redis+sentinel://h/main?hush=1", "a parameter is unknown"),
            ("redis+sentinel://h/main/hush", "cannot be read"),
            ("redis+cluster://h/1", "neither databases"),
            ("redis+hush://h", "the scheme is unknown"),
        ] {
            let error = url.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        for url in [
            "redis://u:hush@h",
            "redis+sentinel://u:hush@h/main?sentinel_password=hush",
            "redis+cluster://u:hush@h",
        ] {
            let target = parse(url);
            let shown = format!("{target} {target:?}");
            assert!(!shown.contains("hush"), "{shown}");
        }
    }
}
