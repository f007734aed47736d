//! What a database must allow before anything is changed in it, and what it must be set to before a
//! connector can start.

use anyhow::Context;
use serde::Serialize;
use tokio_postgres::Client;

use crate::database::quote;

/// Something that only a person can do, with the statement that does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Need {
    /// What is not as it must be.
    pub(super) what: String,
    /// The statement.
    pub(super) sql: String,
    /// What to do after it.
    pub(super) then: Option<&'static str>,
}

/// What the server says about itself and about us.
#[derive(Debug)]
pub(super) struct Facts {
    user: String,
    database: String,
    wal_level: String,
    slots: i32,
    senders: i32,
    in_recovery: bool,
    may_create_in_database: bool,
    /// `None`: there is no schema `outflow`.
    may_create_in_schema: Option<bool>,
    may_replicate: bool,
}

impl Facts {
    /// Asks the server.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let row = client
            .query_one(
                "SELECT current_user::text, current_database()::text, current_setting('wal_level'),
                        current_setting('max_replication_slots')::int,
                        current_setting('max_wal_senders')::int,
                        pg_is_in_recovery(),
                        has_database_privilege(current_database(), 'CREATE'),
                        (SELECT has_schema_privilege(oid, 'CREATE, USAGE')
                            AND has_schema_privilege(oid, 'CREATE')
                         FROM pg_namespace WHERE nspname = 'outflow'),
                        (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)",
                &[],
            )
            .await
            .context("the server's settings and our privileges cannot be read")?;
        Ok(Self {
            user: row.try_get(0)?,
            database: row.try_get(1)?,
            wal_level: row.try_get(2)?,
            slots: row.try_get(3)?,
            senders: row.try_get(4)?,
            in_recovery: row.try_get(5)?,
            may_create_in_database: row.try_get(6)?,
            may_create_in_schema: row.try_get(7)?,
            may_replicate: row.try_get(8)?,
        })
    }

    /// What is missing for applying files; `publication`: one of them creates a publication.
    pub(super) fn missing_privileges(&self, publication: bool) -> Vec<Need> {
        let mut needs = Vec::new();
        let (user, database) = (quote(&self.user), quote(&self.database));
        if self.in_recovery {
            needs.push(Need {
                what: "this server is a standby and cannot be written".to_owned(),
                sql: "SELECT pg_promote();".to_owned(),
                then: Some("or connect to the primary"),
            });
        }
        let schema_is_missing = self.may_create_in_schema.is_none();
        if (schema_is_missing || publication) && !self.may_create_in_database {
            let what = if schema_is_missing { "the schema outflow" } else { "the publication" };
            needs.push(Need {
                what: format!("role {} may not create {what}", self.user),
                sql: format!("GRANT CREATE ON DATABASE {database} TO {user};"),
                then: None,
            });
        }
        if self.may_create_in_schema == Some(false) {
            needs.push(Need {
                what: format!("role {} may not create objects in the schema outflow", self.user),
                sql: format!("GRANT USAGE, CREATE ON SCHEMA outflow TO {user};"),
                then: None,
            });
        }
        needs
    }

    /// What a connector will refuse to start without.
    pub(super) fn missing_settings(&self) -> Vec<Need> {
        const RESTART: Option<&str> =
            Some("then restart PostgreSQL: a reload is not enough for this setting");
        let mut needs = Vec::new();
        if self.wal_level != "logical" {
            needs.push(Need {
                what: format!("wal_level is {}, logical decoding needs logical", self.wal_level),
                sql: "ALTER SYSTEM SET wal_level = logical;".to_owned(),
                then: RESTART,
            });
        }
        for (name, value) in
            [("max_replication_slots", self.slots), ("max_wal_senders", self.senders)]
        {
            if value == 0 {
                needs.push(Need {
                    what: format!("{name} is 0"),
                    sql: format!("ALTER SYSTEM SET {name} = 10;"),
                    then: RESTART,
                });
            }
        }
        needs
    }

    /// Worth saying, but not in the way: init is often run by another role than the connector's.
    pub(super) fn remarks(&self) -> Vec<String> {
        if self.may_replicate {
            return Vec::new();
        }
        let user = quote(&self.user);
        vec![format!(
            "role {} may not replicate; if the connector is to use it: ALTER ROLE {user} REPLICATION; \
             GRANT outflow_connector TO {user};",
            self.user
        )]
    }
}

/// Group roles of `names` that are not there: whoever ran init may not create roles.
pub(super) async fn missing_roles(client: &Client, names: &[&str]) -> anyhow::Result<Vec<String>> {
    let rows = client
        .query(
            "SELECT name FROM unnest($1::text[]) AS name
             WHERE name NOT IN (SELECT rolname::text FROM pg_roles)",
            &[&names],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let name: String = row.try_get(0)?;
            Ok(format!(
                "role {name} is missing and this role may not create it: let a role with CREATEROLE run the \
                 file *_roles.sql, or grant what is in it to roles of your own"
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            user: "app".into(),
            database: "Shop".into(),
            wal_level: "logical".into(),
            slots: 10,
            senders: 10,
            in_recovery: false,
            may_create_in_database: true,
            may_create_in_schema: None,
            may_replicate: true,
        }
    }

    #[test]
    fn a_server_in_order_needs_nothing() {
        assert_eq!(facts().missing_privileges(true), []);
        assert_eq!(facts().missing_settings(), []);
        assert!(facts().remarks().is_empty());
    }

    #[test]
    fn each_need_names_its_statement() {
        let statements =
            |needs: Vec<Need>| needs.into_iter().map(|need| need.sql).collect::<Vec<_>>();
        let poor = Facts { may_create_in_database: false, ..facts() };
        let grant = "GRANT CREATE ON DATABASE \"Shop\" TO \"app\";";
        assert_eq!(statements(poor.missing_privileges(false)), [grant]);
        let poor = Facts { may_create_in_schema: Some(false), ..poor };
        let schema = "GRANT USAGE, CREATE ON SCHEMA outflow TO \"app\";";
        assert_eq!(statements(poor.missing_privileges(true)), [grant, schema]);
        assert_eq!(statements(poor.missing_privileges(false)), [schema]);
        let replica = Facts { wal_level: "replica".into(), slots: 0, senders: 0, ..facts() };
        assert_eq!(
            statements(replica.missing_settings()),
            [
                "ALTER SYSTEM SET wal_level = logical;",
                "ALTER SYSTEM SET max_replication_slots = 10;",
                "ALTER SYSTEM SET max_wal_senders = 10;"
            ]
        );
        let standby = Facts { in_recovery: true, ..facts() };
        assert_eq!(standby.missing_privileges(false).len(), 1);
    }
}
