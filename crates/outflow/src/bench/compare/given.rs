//! Servers that were given: `--postgres URL --redis URL`.
//!
//! Everything happens in a database that is created for the run and dropped after it, and under
//! keys that carry its name. The load is real, so servers that hold anything are refused unless the
//! user says that they may be shared.

use anyhow::Context;
use tokio_postgres::Client;

use crate::failure::Refused;
use crate::given;

/// Begins the name of every database, slot, connector and key of a run.
const NAME: &str = "outflow_compare";

/// A database and a name of this run on servers that were given.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    admin_url: String,
    pub(crate) database_url: String,
    pub(crate) redis_url: String,
    /// Of this run: its database has it, and every slot, connector and key begins with it.
    pub(crate) name: String,
    /// Group roles that were there before.
    roles: Vec<String>,
}

impl Given {
    /// Looks at the servers and creates the database.
    ///
    /// # Errors
    /// A refusal when they hold anything and `shared` is not set, or cannot do logical replication.
    pub(super) async fn prepare(postgres: &str, redis: &str, shared: bool) -> anyhow::Result<Self> {
        let name = format!("{NAME}_{:08x}", rand::random::<u32>());
        let given = Self {
            admin_url: postgres.to_owned(),
            database_url: given::with_database(postgres, &name)?,
            redis_url: redis.to_owned(),
            name,
            roles: Vec::new(),
        };
        let sql = given.admin().await?;
        // what other comparisons have left is nobody's
        let mut found = given::holds(&sql, NAME).await?;
        found.extend(given::keys(&mut given::redis(redis).await?, |_| true).await?);
        if !found.is_empty() && !shared {
            return Err(Refused(format!(
                "these servers are not obviously disposable: {}. A comparison loads them to their limits; it \
                 touches nothing but a database and keys of its own. Name others, or add --allow-shared",
                found.join("; ")
            ))
            .into());
        }
        given::is_logical(&sql).await?;
        let roles = given::roles(&sql).await?;
        sql.batch_execute(&format!("CREATE DATABASE {}", given.name))
            .await
            .context("the role needs CREATEDB")?;
        Ok(Self { roles, ..given })
    }

    /// Begins every stream's key.
    pub(crate) fn prefix(&self) -> String {
        format!("{}:", self.name)
    }

    /// A connection to the database of this run.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        given::postgres(&self.database_url, "outflow compare").await
    }

    async fn admin(&self) -> anyhow::Result<Client> {
        given::postgres(&self.admin_url, "outflow compare").await
    }

    /// Removes everything that the run has made.
    ///
    /// # Errors
    /// Says what is left.
    pub(super) async fn clean_up(&self) -> anyhow::Result<()> {
        let remove = async {
            let sql = self.admin().await?;
            given::drop_database(&sql, &self.name).await?;
            given::drop_roles(&sql, &self.roles).await?;
            given::remove_keys(&mut given::redis(&self.redis_url).await?, &self.name).await
        };
        remove.await.with_context(|| {
            format!("database {0}, its slots, roles and the keys *{0}* may be left", self.name)
        })
    }
}
