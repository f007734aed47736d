//! The outbox table and its columns.

use tokio_postgres::Client;

use super::Report;
use super::publication::Publication;
use crate::config::{Column, ColumnNames, SourceConfig, TableName};
use crate::error::Error;
use crate::snapshot::{self, identifier, qualified};

/// What the catalog says about the outbox.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) oid: u32,
    kind: char,
    persistence: char,
    /// Whether the connector's role may read its rows.
    readable: bool,
    /// The topmost table of the partition tree that it belongs to.
    pub(crate) root: Option<TableName>,
    /// Whether UPDATE and DELETE work while a publication carries them.
    pub(crate) identified: bool,
    pub(crate) columns: Vec<TableColumn>,
}

/// A column of the outbox.
#[derive(Debug, Clone)]
pub(crate) struct TableColumn {
    pub(crate) name: String,
    pub(crate) number: i16,
    not_null: bool,
    /// ` `, `s` for stored, `v` for virtual.
    generated: char,
}

// names are compared, not resolved: resolving fails where the role may not use the schema
const TABLE: &str = "\
SELECT c.oid, c.relkind, c.relpersistence,
    pg_catalog.has_schema_privilege(n.oid, 'USAGE')
        AND pg_catalog.has_table_privilege(c.oid, 'SELECT'),
    rn.nspname::text, r.relname::text,
    c.relreplident = 'f' OR (c.relreplident IN ('d', 'i') AND EXISTS (
        SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END))
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_class r
    ON c.relispartition AND r.oid = pg_catalog.pg_partition_root(c.oid)
LEFT JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
WHERE n.nspname = $1 AND c.relname = $2";

const COLUMNS: &str = "\
SELECT attname::text, attnum, attnotnull, attgenerated
FROM pg_catalog.pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
ORDER BY attnum";

impl Table {
    /// Looks a table up by its name.
    pub(crate) async fn find(sql: &Client, name: &TableName) -> Result<Option<Self>, Error> {
        let failed = || Error::sql("looking at the outbox");
        let row = sql.query_opt(TABLE, &[&name.schema, &name.name]).await.map_err(failed())?;
        let Some(row) = row else { return Ok(None) };
        let oid: u32 = row.get(0);
        let columns = sql.query(COLUMNS, &[&oid]).await.map_err(failed())?;
        let letter = |index| char::from(row.get::<_, i8>(index).to_ne_bytes()[0]);
        let root = match (row.get(4), row.get(5)) {
            (Some(schema), Some(name)) => Some(TableName { schema, name }),
            _ => None,
        };
        let columns = columns.iter().map(|row| TableColumn {
            name: row.get(0),
            number: row.get(1),
            not_null: row.get(2),
            generated: char::from(row.get::<_, i8>(3).to_ne_bytes()[0]),
        });
        Ok(Some(Self {
            oid,
            kind: letter(1),
            persistence: letter(2),
            readable: row.get(3),
            root,
            identified: row.get(6),
            columns: columns.collect(),
        }))
    }

    /// Whether it is a partitioned table, whose rows lie in its partitions.
    pub(crate) fn partitioned(&self) -> bool {
        self.kind == 'p'
    }

    pub(super) fn check(
        &self,
        report: &mut Report,
        source: &SourceConfig,
        publication: Option<&Publication>,
        version: i32,
    ) {
        let table = &source.table;
        if !matches!(self.kind, 'r' | 'p') {
            report.refuse(
                "table_kind",
                format!("{table} is not a table"),
                "name the table that the application inserts into in source.table",
            );
            return;
        }
        if self.persistence != 'p' {
            report.refuse(
                "table_unlogged",
                format!("{table} is unlogged or temporary: its inserts are not in the log"),
                format!("run ALTER TABLE {} SET LOGGED", qualified(table)),
            );
        }
        self.check_columns(report, source, publication, version);
    }

    fn check_columns(
        &self,
        report: &mut Report,
        source: &SourceConfig,
        publication: Option<&Publication>,
        version: i32,
    ) {
        let table = &source.table;
        let missing: Vec<&str> =
            source.columns.required().filter(|name| self.column(name).is_none()).collect();
        if !missing.is_empty() {
            let present: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
            report.refuse(
                "column_missing",
                format!(
                    "{table} has no column {}; it has {}",
                    missing.join(", "),
                    present.join(", ")
                ),
                "name the right ones under [source.columns], or bring the columns back",
            );
        }
        for name in mapped(&source.columns) {
            let Some(column) = self.column(name) else { continue };
            if column.generated != '\0' && !publishes(column, publication, version) {
                let advice = if version < 180_000 {
                    "use an ordinary column that the application (or a trigger) fills".to_owned()
                } else {
                    format!(
                        "make it STORED and run ALTER PUBLICATION {} SET \
                         (publish_generated_columns = stored)",
                        identifier(&source.publication)
                    )
                };
                report.refuse(
                    "column_generated",
                    format!(
                        "column `{name}` of {table} is generated, and PostgreSQL {} does not \
                         send it",
                        version / 10_000
                    ),
                    advice,
                );
            }
        }
        let names = &source.columns;
        for name in [&names.event_id, &names.aggregate_type, &names.aggregate_id, &names.event_type]
        {
            let Some(column) = self.column(name) else { continue };
            if !column.not_null {
                report.warn(
                    "column_nullable",
                    format!(
                        "column `{name}` of {table} may be NULL: such rows become dead letters, \
                         not events"
                    ),
                    format!(
                        "run ALTER TABLE {} ALTER COLUMN {} SET NOT NULL",
                        qualified(table),
                        identifier(name)
                    ),
                );
            }
        }
    }

    /// What only the initial snapshot needs.
    pub(super) async fn check_snapshot(
        &self,
        report: &mut Report,
        source: &SourceConfig,
        sql: &Client,
    ) -> Result<(), Error> {
        let table = &source.table;
        if !self.readable {
            report.refuse(
                "table_select",
                format!("the initial snapshot reads {table}, and the connector's role may not"),
                format!(
                    "run GRANT USAGE ON SCHEMA {} TO <role>; GRANT SELECT ON {} TO <role>, or set \
                     source.snapshot = \"never\"",
                    identifier(&table.schema),
                    qualified(table)
                ),
            );
            return Ok(());
        }
        if report.has("column_missing") || report.has("table_kind") {
            return Ok(());
        }
        match snapshot::order::choose(sql, source).await {
            Ok(order) if !order.by_insertion => report.warn(
                "snapshot_order",
                format!(
                    "nothing in {table} tells in which order its rows were inserted: the initial \
                     snapshot publishes them ordered by {order}"
                ),
                "name the columns that tell in source.order_by, if there are any",
            ),
            Ok(_) => {}
            Err(Error::Refused(why)) => report.refuse("snapshot_order", why, "see there"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.name == name)
    }
}

pub(super) fn missing(report: &mut Report, source: &SourceConfig) {
    report.refuse(
        "table_missing",
        format!("table {} does not exist in this database", source.table),
        "name the outbox in source.table, check the database of source.url, or run `outflow init`",
    );
}

/// All columns that the mapping uses where they are there.
pub(super) fn mapped(names: &ColumnNames) -> impl Iterator<Item = &str> {
    let optional = [&names.seq, &names.headers, &names.created_at];
    let optional = optional.into_iter().filter_map(|column| match column {
        Column::IfPresent(name) => Some(name.as_str()),
        // those that the user named are among the required ones
        Column::Required(_) | Column::None => None,
    });
    names.required().chain(optional)
}

/// Whether the log carries a generated column.
fn publishes(column: &TableColumn, publication: Option<&Publication>, version: i32) -> bool {
    version >= 180_000
        && column.generated == 's'
        && publication.is_some_and(|publication| publication.generated_columns)
}
