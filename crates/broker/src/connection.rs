//! A connection to wherever Redis is.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerError,
    TlsMode, Value,
};

pub use redis::cluster_routing::Slot;

use crate::packed::Packed;
use crate::reply::{Replies, Reply};
use crate::target::{Server, Target};
use crate::wire::Wire;

/// One connection to a primary, or one to each primary of a cluster.
///
/// Clones share it. Commands that are sent through it at the same time may overtake each other
/// only where they go to different nodes. A request that is given up before its reply, by dropping
/// its future or after the reply's timeout, ends a connection to one server: the next one is refused.
#[derive(Clone)]
pub enum Connection {
    /// To one server.
    One(Wire),
    /// To every primary of a cluster. A pipeline must stay within one [`Slot`].
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::One(_) => "One(..)",
            Self::Cluster(_) => "Cluster(..)",
        })
    }
}

/// How often the cluster's client asks again on its own when slots have moved; beyond that the
/// caller's own retries take over.
const REDIRECTIONS: u32 = 3;

impl Target {
    /// Connects; a reply may take up to `reply` then. Sentinels are asked every time.
    ///
    /// # Errors
    /// Redis's or the operating system's own. A connection that took longer than `connect` (three
    /// times that where sentinels or a cluster have to be asked first) is an I/O error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn connect(&self, connect: Duration, reply: Duration) -> RedisResult<Connection> {
        match self {
            Self::Single(server) => {
                Wire::open(&server.info()?, connect, reply).await.map(Connection::One)
            }
            Self::Sentinel { sentinels, primary, node } => {
                let sentinels = sentinels.iter().map(Server::info);
                let mut client = SentinelClient::build(
                    sentinels.collect::<RedisResult<_>>()?,
                    primary.clone(),
                    Some(node_info(node)),
                    SentinelServerType::Master,
                )?;
                let client = within(connect * 2, client.async_get_client()).await?;
                let info = client.get_connection_info();
                Wire::open(info, connect, reply).await.map(Connection::One)
            }
            Self::Cluster { nodes } => {
                let nodes = nodes.iter().map(Server::info).collect::<RedisResult<Vec<_>>>()?;
                let client = ClusterClient::builder(nodes)
                    .connection_timeout(connect)
                    .response_timeout(reply)
                    .overall_response_timeout(Some(reply))
                    .retries(REDIRECTIONS)
                    .tcp_settings(TcpSettings::default().set_nodelay(true))
                    .build()?;
                let connection = client.get_async_connection();
                within(connect * 3, connection).await.map(Connection::Cluster)
            }
        }
    }
}

/// Bounds what the client itself does not: a sentinel or a node that takes a connection and never
/// answers.
async fn within<T>(
    limit: Duration,
    connecting: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    tokio::time::timeout(limit, connecting).await.unwrap_or_else(|_| {
        Err(RedisError::from(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("no connection within {limit:?}"),
        )))
    })
}

/// User, password, database and TLS of the primary, whatever its address turns out to be.
fn node_info(node: &Server) -> SentinelNodeConnectionInfo {
    let info = SentinelNodeConnectionInfo::default().set_redis_connection_info(node.redis.clone());
    match node.addr {
        ConnectionAddr::TcpTls { insecure: false, .. } => info.set_tls_mode(TlsMode::Secure),
        ConnectionAddr::TcpTls { .. } => info.set_tls_mode(TlsMode::Insecure),
        _ => info,
    }
}

/// What became of a command of a transaction: done, or refused.
pub type Outcome = Result<(), ServerError>;

/// One of the servers that take writes: the only one, or one of a cluster's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Primary {
    /// Host and port in a cluster.
    address: Option<(String, u16)>,
}

impl std::fmt::Display for Primary {
    /// Empty where there is only one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.address {
            Some((host, port)) => write!(f, "{host}:{port}"),
            None => Ok(()),
        }
    }
}

impl Connection {
    /// Every server that takes writes: what concerns a whole server (INFO, CONFIG, SCAN) must be
    /// asked of each.
    ///
    /// # Errors
    /// When one of a cluster's cannot be reached.
    pub async fn primaries(&mut self) -> RedisResult<Vec<Primary>> {
        let Self::Cluster(cluster) = self else { return Ok(vec![Primary { address: None }]) };
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let unexpected = |what: String| {
            RedisError::from((ErrorKind::UnexpectedReturnType, "an answer by node", what))
        };
        match cluster.route_command(redis::cmd("PING"), everywhere).await? {
            Value::Map(answers) => answers
                .into_iter()
                .map(|(node, _)| {
                    let node: String = redis::from_redis_value(node)?;
                    let address = node.rsplit_once(':').and_then(|(host, port)| {
                        Some((host.to_owned(), port.parse::<u16>().ok()?))
                    });
                    let address = Some(address.ok_or_else(|| unexpected(node))?);
                    Ok(Primary { address })
                })
                .collect(),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// Sends commands as one transaction (Redis documentation, "Transactions"). Returns what became of
    /// each of them, in order. In a cluster the commands must stay within one [`Slot`].
    ///
    /// # Errors
    /// Those of the connection, and what keeps the transaction from being executed: then nothing
    /// was done.
    ///
    /// # Cancel safety
    /// None: whether anything was done is not known.
    pub async fn transaction(&mut self, commands: &Packed) -> RedisResult<Vec<Outcome>> {
        match self {
            Self::One(wire) => wire.transaction(commands).await,
            Self::Cluster(cluster) => {
                let pipe = commands.pipeline();
                let executed = cluster.req_packed_commands(&pipe, pipe.len() + 1, 1).await?;
                outcomes(executed.first().map_or(Reply::Nil, Reply::from))
            }
        }
    }

    /// Sends commands whose replies are read where they are. In a cluster they must stay within one [`Slot`].
    ///
    /// # Errors
    /// Those of the connection. What the server refuses is a reply.
    ///
    /// # Cancel safety
    /// None: whether anything was done is not known.
    pub async fn replies(&mut self, commands: &Pipeline) -> RedisResult<Replies> {
        match self {
            Self::One(wire) => wire.replies(commands).await,
            Self::Cluster(cluster) => {
                let replies = cluster.req_packed_commands(commands, 0, commands.len()).await?;
                Ok(Replies::values(replies))
            }
        }
    }

    /// Sends a command that has no key to one of [`Connection::primaries`].
    ///
    /// # Errors
    /// Redis's own, or that of the connection.
    pub async fn ask(&mut self, primary: &Primary, command: &Cmd) -> RedisResult<Value> {
        match (self, &primary.address) {
            (Self::Cluster(cluster), Some((host, port))) => {
                let (host, port) = (host.clone(), *port);
                let node = SingleNodeRoutingInfo::ByAddress { host, port };
                cluster.route_command(command.clone(), RoutingInfo::SingleNode(node)).await
            }
            (connection, _) => {
                connection.req_packed_command(command).await.and_then(Value::extract_error)
            }
        }
    }
}

/// What EXEC answers with.
pub(crate) fn outcomes(executed: Reply<'_>) -> RedisResult<Vec<Outcome>> {
    let outcome = |reply| match reply {
        Reply::Error(error) => Err(*error),
        _ => Ok(()),
    };
    match executed {
        Reply::Array(replies) => Ok(replies.into_iter().map(outcome).collect()),
        Reply::Error(error) => Err((*error).into()),
        other => Err(RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "EXEC does not answer with an array",
            format!("{other:?}"),
        ))),
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
