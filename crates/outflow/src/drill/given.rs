//! Servers that were given: `--postgres URL`, `--redis URL`, or both.
//!
//! Drills break things, so they touch only servers that are disposable: such that hold nothing but what
//! drills have left there, or that carry a mark, which `--disposable` puts on them. That is looked at
//! before every scene. Everything that drills make begins with [`NAME`] and is removed before the next
//! scene and at the end; what a drill that was killed has left, the next one removes.

mod postgres;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use outflow_sandbox::{Postgres, Redis};
use tokio::time::Instant;

pub(super) use self::postgres::GivenPostgres;
pub(super) use self::redis::GivenRedis;
use super::list::{Drill, Server};
use crate::failure::Refused;

/// Begins the name of every database, connector, slot and stream of a drill.
pub(super) const NAME: &str = "outflow_drill";
/// Marks a server as disposable: the name of an empty database, and of a key.
const MARK: &str = "outflow_disposable";

/// How long a server may take to notice that a drill that was killed is gone.
const LEAVES_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks at that.
const POLL: Duration = Duration::from_millis(50);

/// The servers that drills are not to start themselves.
#[derive(Debug, Clone, Default)]
pub(super) struct Given {
    pub(super) postgres: Option<Arc<GivenPostgres>>,
    pub(super) redis: Option<Arc<GivenRedis>>,
}

impl Given {
    /// Looks at the servers, marks them if asked to, and removes what earlier drills have left.
    ///
    /// # Errors
    /// A refusal, and nothing was touched, when one of them may be worth keeping, is in use by another
    /// drill, or cannot do what a connector needs.
    pub(super) async fn prepare(
        postgres: Option<&str>,
        redis: Option<&str>,
        disposable: bool,
    ) -> anyhow::Result<Self> {
        let postgres = match postgres {
            Some(url) => Some(GivenPostgres::reach(url).await?),
            None => None,
        };
        let mut redis = match redis {
            Some(url) => Some(GivenRedis::reach(url).await?),
            None => None,
        };
        if !disposable {
            let mut found = Vec::new();
            if let Some(postgres) = &postgres {
                found.extend(postgres.worth_keeping().await?);
            }
            if let Some(redis) = &redis {
                found.extend(redis.worth_keeping().await?);
            }
            if !found.is_empty() {
                return Err(not_disposable(&found).into());
            }
        }
        if let Some(postgres) = &postgres {
            postgres.prepare(disposable).await?;
        }
        if let Some(redis) = &mut redis {
            redis.prepare(disposable).await?;
        }
        Ok(Self { postgres: postgres.map(Arc::new), redis: redis.map(Arc::new) })
    }

    /// Why a drill cannot be run on these servers; `None`: it can.
    pub(super) fn forbids(&self, drill: &Drill) -> Option<String> {
        let is_given = |server: &&Server| match server {
            Server::Postgres => self.postgres.is_some(),
            Server::Redis => self.redis.is_some(),
        };
        let server = drill.breaks.iter().find(is_given)?;
        let (name, flag) = (server.name(), server.flag());
        Some(format!("breaks {name} itself, which is for throwaway servers: run it without {flag}"))
    }

    /// Versions of the servers, and of those that drills start.
    pub(super) async fn versions(&self) -> anyhow::Result<String> {
        let postgres = match &self.postgres {
            Some(given) => given.version().await?,
            None => Postgres::builder().start().await?.version().to_string(),
        };
        let redis = match &self.redis {
            Some(given) => given.version().to_owned(),
            None => Redis::builder().start().await?.version().to_owned(),
        };
        Ok(format!("PostgreSQL {postgres}, Redis {redis}"))
    }

    /// Removes everything that drills have made, but no mark.
    ///
    /// # Errors
    /// Says what may be left.
    pub(super) async fn clean_up(&self) -> anyhow::Result<()> {
        let remove = async {
            if let Some(postgres) = &self.postgres {
                postgres.clean_up().await?;
            }
            if let Some(redis) = &self.redis {
                redis.clear().await?;
            }
            anyhow::Ok(())
        };
        remove.await.with_context(|| {
            format!("databases, slots and keys with {NAME} in their names, and roles, may be left")
        })
    }
}

fn not_disposable(found: &[String]) -> Refused {
    Refused(format!(
        "these servers are not obviously disposable: {}. Drills break what they run on, and flush Redis. Name others, \
         or, if all of it may be lost, mark them once with --disposable",
        found.join("; ")
    ))
}

/// Waits until no other drill is at work on a server, which `others` counts.
///
/// # Errors
/// A refusal when there still is one after [`LEAVES_WITHIN`].
async fn must_be_alone(
    server: Server,
    mut others: impl AsyncFnMut() -> anyhow::Result<usize>,
) -> anyhow::Result<()> {
    let since = Instant::now();
    while others().await? > 0 {
        if since.elapsed() > LEAVES_WITHIN {
            let name = server.name();
            let why =
                format!("another drill is at work on this {name}: wait for its end, or end it");
            return Err(Refused(why).into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
