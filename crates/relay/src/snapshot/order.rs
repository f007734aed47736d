//! The order of the snapshot: columns without NULL that no two rows share.

use std::fmt;

use tokio_postgres::Client;

use super::sql::{identifier, qualified};
use crate::config::{Column, SourceConfig};
use crate::error::Error;

/// Columns that put the rows into a total order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// In order of significance.
    pub(crate) columns: Vec<OrderColumn>,
    /// Whether the order resembles the order of insertion.
    pub(crate) by_insertion: bool,
}

/// A column of the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderColumn {
    pub(crate) name: String,
    /// As SQL names it, to cast a value back from text.
    pub(crate) type_name: String,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

/// What the catalog says about a column.
#[derive(Debug, Clone)]
struct Candidate {
    name: String,
    type_name: String,
    not_null: bool,
    /// smallint, integer or bigint.
    integer: bool,
    /// Place in the primary key, from 1.
    key_place: Option<i32>,
    /// Alone in a unique index over all rows.
    unique: bool,
}

const CANDIDATES: &str = "\
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype),
    (SELECT pg_catalog.array_position(i.indkey::int2[], a.attnum) + 1
        - pg_catalog.array_lower(i.indkey::int2[], 1)
        FROM pg_catalog.pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary),
    EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = a.attrelid
        AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum
        AND i.indpred IS NULL)
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum";

/// Chooses the order: what the configuration says, else an integer primary key, else the creation
/// time, else nothing that resembles insertion; always completed by the primary key or the event
/// id, so that no two rows are equal.
///
/// # Errors
/// [`Error::Refused`] when a column is missing, holds NULL, or nothing tells all rows apart.
pub(crate) async fn choose(client: &Client, source: &SourceConfig) -> Result<Order, Error> {
    let rows = client
        .query(CANDIDATES, &[&qualified(&source.table)])
        .await
        .map_err(Error::sql("reading the columns of the outbox"))?;
    let candidates: Vec<Candidate> = rows
        .iter()
        .map(|row| Candidate {
            name: row.get(0),
            type_name: row.get(1),
            not_null: row.get(2),
            integer: row.get(3),
            key_place: row.get(4),
            unique: row.get(5),
        })
        .collect();
    let find = |name: &str| candidates.iter().find(|candidate| candidate.name == name);

    let mut key: Vec<&Candidate> =
        candidates.iter().filter(|candidate| candidate.key_place.is_some()).collect();
    key.sort_by_key(|candidate| candidate.key_place);
    let (mut chosen, by_insertion) = leading(source, &find, &key)?;
    let mut checks = Checks::default();
    checks.nulls.extend(chosen.iter().filter(|column| !column.not_null).map(|c| c.name.clone()));
    if key.is_empty() {
        let event_id = find(&source.columns.event_id)
            .ok_or_else(|| missing(source, "source.columns.event_id", &source.columns.event_id))?;
        if !event_id.not_null {
            checks.nulls.push(event_id.name.clone());
        }
        if !event_id.unique {
            checks.duplicates = Some(event_id.name.clone());
        }
        key.push(event_id);
    }
    for column in key {
        if !chosen.iter().any(|present| present.name == column.name) {
            chosen.push(column);
        }
    }
    checks.run(client, source).await?;
    let columns = chosen
        .into_iter()
        .map(|c| OrderColumn { name: c.name.clone(), type_name: c.type_name.clone() })
        .collect();
    Ok(Order { columns, by_insertion })
}

/// The columns that come first, and whether they resemble the order of insertion.
fn leading<'a>(
    source: &SourceConfig,
    find: &impl Fn(&str) -> Option<&'a Candidate>,
    key: &[&'a Candidate],
) -> Result<(Vec<&'a Candidate>, bool), Error> {
    if !source.order_by.is_empty() {
        let columns = source
            .order_by
            .iter()
            .map(|name| find(name).ok_or_else(|| missing(source, "source.order_by", name)));
        return Ok((columns.collect::<Result<_, _>>()?, true));
    }
    if let [column] = key
        && column.integer
    {
        return Ok((vec![column], true));
    }
    let created_at = match &source.columns.created_at {
        Column::IfPresent(name) | Column::Required(name) => find(name),
        Column::None => None,
    };
    match created_at {
        Some(column) if column.not_null => Ok((vec![column], true)),
        _ => Ok((Vec::new(), false)),
    }
}

fn missing(source: &SourceConfig, setting: &str, column: &str) -> Error {
    Error::Refused(format!(
        "{setting} names column `{column}`, which {} does not have",
        source.table
    ))
}

/// What the catalog does not guarantee and the rows must be asked for.
#[derive(Debug, Default)]
struct Checks {
    nulls: Vec<String>,
    duplicates: Option<String>,
}

impl Checks {
    async fn run(&self, client: &Client, source: &SourceConfig) -> Result<(), Error> {
        let table = qualified(&source.table);
        for name in &self.nulls {
            let column = identifier(name);
            let sql = format!("SELECT EXISTS (SELECT FROM {table} WHERE {column} IS NULL)");
            if ask(client, &sql).await? {
                return Err(Error::Refused(format!(
                    "column `{name}` of {} orders the snapshot but holds NULL: rows with NULL \
                     would be left out. Name columns without NULL in source.order_by, give the \
                     table a primary key, or set source.snapshot = \"never\"",
                    source.table
                )));
            }
        }
        let Some(name) = &self.duplicates else { return Ok(()) };
        let column = identifier(name);
        let sql = format!(
            "SELECT EXISTS (SELECT {column} FROM {table} GROUP BY {column} HAVING count(*) > 1)"
        );
        if ask(client, &sql).await? {
            return Err(Error::Refused(format!(
                "{} has no primary key and column `{name}` holds the same value more than once: \
                 the rows of the snapshot cannot be told apart. Add a primary key, or set \
                 source.snapshot = \"never\"",
                source.table
            )));
        }
        Ok(())
    }
}

async fn ask(client: &Client, sql: &str) -> Result<bool, Error> {
    let row = client
        .query_one(sql, &[])
        .await
        .map_err(Error::sql("checking the order of the snapshot"))?;
    Ok(row.get(0))
}
