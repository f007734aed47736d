//! The publication: whether it carries the inserts of the outbox, whole.

use tokio_postgres::Client;

use super::table::mapped;
use super::{Due, Report, Table};
use crate::config::SourceConfig;
use crate::error::Error;
use crate::snapshot::{identifier, qualified};

/// What the catalog says about the publication and its hold on the outbox.
#[derive(Debug, Clone)]
pub(crate) struct Publication {
    all_tables: bool,
    insert: bool,
    /// Carries UPDATE or DELETE.
    changes: bool,
    truncate: bool,
    via_root: bool,
    /// Carries stored generated columns (PostgreSQL 18).
    pub(super) generated_columns: bool,
    /// Carries the table, by itself, its partition tree or its schema.
    pub(crate) covers: bool,
    row_filter: bool,
    /// Attribute numbers of the column list; `None` for all columns.
    column_list: Option<Vec<i16>>,
}

// to_jsonb: columns that came with later versions read as NULL on earlier ones
const PUBLICATION: &str = "\
SELECT p.oid, p.puballtables, p.pubinsert, p.pubupdate OR p.pubdelete, p.pubtruncate, p.pubviaroot,
    COALESCE(pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', false)
FROM pg_catalog.pg_publication p WHERE p.pubname = $1";

const MEMBERS: &str = "\
WITH tree AS (
    SELECT $2::oid AS relation
    UNION SELECT relid FROM pg_catalog.pg_partition_ancestors($2::oid)
)
SELECT pg_catalog.to_jsonb(r) ->> 'prqual' IS NOT NULL,
    CASE WHEN pg_catalog.jsonb_typeof(pg_catalog.to_jsonb(r) -> 'prattrs') = 'array'
        THEN ARRAY(SELECT number::int2
            FROM pg_catalog.jsonb_array_elements_text(pg_catalog.to_jsonb(r) -> 'prattrs') number)
    END
FROM pg_catalog.pg_publication_rel r
WHERE r.prpubid = $1 AND r.prrelid IN (SELECT relation FROM tree)
ORDER BY r.prrelid = $2 DESC";

const SCHEMAS: &str = "\
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_publication_namespace n
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.pnnspid
    WHERE n.pnpubid = $1 AND (c.oid = $2
        OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors($2::oid)))
)";

impl Publication {
    /// Looks the publication up, and what it says about `table`.
    pub(crate) async fn find(
        sql: &Client,
        source: &SourceConfig,
        table: Option<&Table>,
        version: i32,
    ) -> Result<Option<Self>, Error> {
        let failed = || Error::sql("looking at the publication");
        let row = sql.query_opt(PUBLICATION, &[&source.publication]).await.map_err(failed())?;
        let Some(row) = row else { return Ok(None) };
        let oid: u32 = row.get(0);
        let mut publication = Self {
            all_tables: row.get(1),
            insert: row.get(2),
            changes: row.get(3),
            truncate: row.get(4),
            via_root: row.get(5),
            generated_columns: row.get(6),
            covers: row.get(1),
            row_filter: false,
            column_list: None,
        };
        let Some(table) = table else { return Ok(Some(publication)) };
        let members = sql.query(MEMBERS, &[&oid, &table.oid]).await.map_err(failed())?;
        // the table's own membership comes first, its ancestors' after it
        if let Some(member) = members.first() {
            publication.covers = true;
            publication.row_filter = member.get(0);
            publication.column_list = member.get(1);
        }
        if !publication.covers && version >= 150_000 {
            let row = sql.query_one(SCHEMAS, &[&oid, &table.oid]).await.map_err(failed())?;
            publication.covers = row.get(0);
        }
        Ok(Some(publication))
    }

    /// Everything that the running connector depends on as well.
    pub(crate) fn check(&self, report: &mut Report, source: &SourceConfig, table: Option<&Table>) {
        let name = &source.publication;
        let alter = |what: &str| format!("run ALTER PUBLICATION {} {what}", identifier(name));
        let Some(table) = table else { return };
        let outbox = qualified(&source.table);
        if !self.covers {
            report.refuse(
                "publication_table",
                format!(
                    "publication {name} does not carry {} (a table that was renamed or replaced \
                     must be added again)",
                    source.table
                ),
                format!(
                    "{}, then publish what was inserted meanwhile: stop the connector and run \
                     `outflow offsets reset --from-rows`, or emit those rows again \
                     (docs/runbook.md, \"Publish rows again\")",
                    alter(&format!("ADD TABLE {outbox}"))
                ),
            );
            return;
        }
        if !self.insert {
            report.refuse(
                "publication_insert",
                format!("publication {name} does not carry inserts: there are no events in it"),
                alter("SET (publish = 'insert')"),
            );
        }
        if self.row_filter {
            report.refuse(
                "publication_row_filter",
                format!("publication {name} filters the rows of {}", source.table),
                alter(&format!("SET TABLE {outbox}")),
            );
        }
        self.check_columns(report, source, table, &alter(&format!("SET TABLE {outbox}")));
        self.check_partitions(report, source, table, &alter);
        self.check_operations(report, source, table, &alter);
    }

    fn check_columns(
        &self,
        report: &mut Report,
        source: &SourceConfig,
        table: &Table,
        remedy: &str,
    ) {
        let Some(list) = &self.column_list else { return };
        let listed = |name: &&str| {
            let column = table.columns.iter().find(|column| column.name == *name);
            column.is_none_or(|column| list.contains(&column.number))
        };
        let required: Vec<&str> = source.columns.required().filter(|name| !listed(name)).collect();
        let optional: Vec<&str> = mapped(&source.columns)
            .filter(|name| !listed(name) && !required.contains(name))
            .collect();
        if !required.is_empty() {
            report.refuse(
                "publication_columns",
                format!(
                    "the column list of publication {} leaves out {}",
                    source.publication,
                    required.join(", ")
                ),
                remedy,
            );
        }
        if !optional.is_empty() {
            report.warn(
                "publication_columns",
                format!(
                    "the column list of publication {} leaves out {}: events go without",
                    source.publication,
                    optional.join(", ")
                ),
                remedy,
            );
        }
    }

    fn check_partitions(
        &self,
        report: &mut Report,
        source: &SourceConfig,
        table: &Table,
        alter: &dyn Fn(&str) -> String,
    ) {
        if table.partitioned() && !self.via_root {
            report.refuse(
                "publication_root",
                format!(
                    "{} is partitioned, and publication {} announces rows under the names of the \
                     partitions",
                    source.table, source.publication
                ),
                alter("SET (publish_via_partition_root = true)"),
            );
        }
        if let Some(root) = table.root.as_ref().filter(|_| self.via_root) {
            report.refuse(
                "publication_root",
                format!(
                    "{} is a partition, and publication {} announces its rows under the name of \
                     {root}",
                    source.table, source.publication
                ),
                format!("set source.table = \"{root}\""),
            );
        }
    }

    fn check_operations(
        &self,
        report: &mut Report,
        source: &SourceConfig,
        table: &Table,
        alter: &dyn Fn(&str) -> String,
    ) {
        let name = &source.publication;
        if self.all_tables {
            report.warn(
                "publication_all_tables",
                format!(
                    "publication {name} is FOR ALL TABLES: the server sends every change of the \
                     database, and UPDATE and DELETE fail on tables without a primary key"
                ),
                format!(
                    "use one for the outbox alone (CREATE PUBLICATION .. FOR TABLE {} WITH \
                     (publish = 'insert')), made before a new slot",
                    qualified(&source.table)
                ),
            );
        } else if self.changes || self.truncate {
            let harm = if table.identified || !self.changes {
                "they are ignored"
            } else {
                "they are ignored, and the application's own UPDATE and DELETE fail, for the \
                 table has no replica identity"
            };
            report.warn(
                "publication_operations",
                format!("publication {name} carries more than inserts: {harm}"),
                alter("SET (publish = 'insert')"),
            );
        }
    }
}

pub(super) fn missing(report: &mut Report, source: &SourceConfig, due: Due) {
    let create = format!(
        "run CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert')",
        identifier(&source.publication),
        qualified(&source.table)
    );
    let remedy = if due.slot {
        format!("{create}, or `outflow init`; the slot is created after it")
    } else {
        format!(
            "{create}. The slot is older than that: if the log in between has changes of \
             published tables, the connector will say how to get past them"
        )
    };
    report.refuse(
        "publication_missing",
        format!("publication {} does not exist in this database", source.publication),
        remedy,
    );
}

/// More about an error than the server says, where there is more to say.
///
/// Today: a publication that the log does not know, see [`explain_missing_publication`].
#[must_use]
pub fn explain(error: &Error, source: &SourceConfig) -> Option<String> {
    matches!(error, Error::Replication(outflow_pgoutput::Error::PublicationMissing(_)))
        .then(|| explain_missing_publication(&source.publication, &source.slot))
}

/// The text of [`explain`].
#[must_use]
pub fn explain_missing_publication(publication: &str, slot: &str) -> String {
    format!(
        "the log that slot `{slot}` is to read was written while publication {publication} did \
         not exist: it was created after the slot, or dropped and created again. PostgreSQL looks \
         publications up as they were at the time of each change, so trying again does not help. \
         Stop the connector and run `outflow offsets reset --from-rows`: it begins a new slot and \
         publishes every row of the outbox. Or give up what was written meanwhile: move the slot \
         past it (SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())) and run \
         `outflow offsets reset --from-slot`"
    )
}
