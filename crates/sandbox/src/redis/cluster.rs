//! A throwaway Redis Cluster.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use super::{Redis, RedisBuilder};
use crate::daemon::POLL;
use crate::error::{Error, Result};
use crate::port::Port;

const SLOTS: usize = 16_384;
/// Nodes gossip once a second, and a node waits after a restart before it serves.
const FORMED_WITHIN: Duration = Duration::from_secs(30);

/// A Redis Cluster of masters, each with as many replicas as asked for. Needs Redis 7.0.
#[derive(Debug)]
pub struct RedisCluster {
    /// Masters first, then their replicas in the same order, round by round.
    nodes: Vec<Redis>,
}

/// Settings of a cluster that is not yet started; see [`RedisCluster::builder`].
#[derive(Debug, Clone)]
pub struct RedisClusterBuilder {
    node: RedisBuilder,
    masters: usize,
    replicas: usize,
}

impl RedisClusterBuilder {
    /// Settings of every node.
    #[must_use]
    pub fn node(mut self, settings: RedisBuilder) -> Self {
        self.node = settings;
        self
    }

    /// Number of masters; 3 by default.
    #[must_use]
    pub fn masters(mut self, masters: usize) -> Self {
        self.masters = masters.max(1);
        self
    }

    /// Number of replicas of each master; none by default.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Starts the nodes and waits until the cluster serves every slot.
    ///
    /// # Errors
    /// When a node does not start, or the cluster does not form.
    pub async fn start(self) -> Result<RedisCluster> {
        let mut nodes = Vec::new();
        for _ in 0..self.masters * (1 + self.replicas) {
            nodes.push(self.node.clone().cluster_node().start().await?);
        }
        let cluster = RedisCluster { nodes };
        cluster.meet().await?;
        cluster.assign_slots(self.masters).await?;
        cluster.formed().await?;
        cluster.replicate(self.masters).await?;
        cluster.formed().await?;
        Ok(cluster)
    }
}

impl RedisCluster {
    /// A cluster of three masters without replicas.
    #[must_use]
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder { node: Redis::builder(), masters: 3, replicas: 0 }
    }

    /// The nodes: masters first, then their replicas in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    async fn meet(&self) -> Result<()> {
        let Some((first, others)) = self.nodes.split_first() else { return Ok(()) };
        let mut connection = first.connect_locally().await?;
        for node in others {
            let bus = node.bus.as_ref().map(Port::number);
            let address = ("127.0.0.1", node.port(), bus);
            redis::cmd("CLUSTER").arg("MEET").arg(address).exec_async(&mut connection).await?;
        }
        Ok(())
    }

    async fn assign_slots(&self, masters: usize) -> Result<()> {
        for (index, node) in self.nodes.iter().take(masters).enumerate() {
            let mut connection = node.connect_locally().await?;
            let range = (index * SLOTS / masters, (index + 1) * SLOTS / masters - 1);
            let mut command = redis::cmd("CLUSTER");
            command.arg("ADDSLOTSRANGE").arg(range).exec_async(&mut connection).await?;
        }
        Ok(())
    }

    async fn replicate(&self, masters: usize) -> Result<()> {
        let mut ids = Vec::new();
        for master in self.nodes.iter().take(masters) {
            ids.push(cluster_text(&mut master.connect_locally().await?, "MYID").await?);
        }
        for (replica, master) in self.nodes.iter().skip(masters).zip(ids.iter().cycle()) {
            let mut connection = replica.connect_locally().await?;
            let mut command = redis::cmd("CLUSTER");
            command.arg("REPLICATE").arg(master).exec_async(&mut connection).await?;
        }
        Ok(())
    }

    /// Waits until every node knows all others and sees all slots served.
    async fn formed(&self) -> Result<()> {
        let since = Instant::now();
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        for node in &self.nodes {
            let mut connection = node.connect_locally().await?;
            loop {
                let info = cluster_text(&mut connection, "INFO").await?;
                if info.contains("cluster_state:ok") && info.contains(&known) {
                    break;
                }
                if since.elapsed() > FORMED_WITHIN {
                    return Err(Error::Cluster(info));
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }
}

async fn cluster_text(connection: &mut MultiplexedConnection, what: &str) -> Result<String> {
    Ok(redis::cmd("CLUSTER").arg(what).query_async(connection).await?)
}
