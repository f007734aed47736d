//! The tables of one connection, as the server last described them.

use std::{collections::HashMap, sync::Arc};

use crate::message::{Relation, ReplicaIdentity};

/// A table, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its oid.
    pub oid: u32,
    /// Its schema, `pg_catalog` spelled out.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its replica identity.
    pub replica_identity: ReplicaIdentity,
    /// The published columns, in the order of the row values.
    pub columns: Vec<TableColumn>,
}

/// A column, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumn {
    /// Part of the replica identity.
    pub key: bool,
    /// Its name.
    pub name: String,
    /// Oid of its type.
    pub type_oid: u32,
    /// Type modifier (`atttypmod`), -1 without one.
    pub type_modifier: i32,
}

impl Table {
    /// Position of a column among the row values.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }
}

impl From<&Relation<'_>> for Table {
    fn from(r: &Relation<'_>) -> Self {
        Self {
            oid: r.id,
            namespace: if r.namespace.is_empty() { "pg_catalog" } else { r.namespace }.to_owned(),
            name: r.name.to_owned(),
            replica_identity: r.replica_identity,
            columns: r
                .columns()
                .map(|c| TableColumn {
                    key: c.key,
                    name: c.name.to_owned(),
                    type_oid: c.type_oid,
                    type_modifier: c.type_modifier,
                })
                .collect(),
        }
    }
}

/// Cache of the relation messages of **one connection**: a new connection starts with an empty one, since
/// the server sends each shape again.
///
/// A table that changes its shape is described again before its next row, also in the middle of a
/// transaction; the newer description replaces the older one.
#[derive(Debug, Default)]
pub struct Relations {
    by_oid: HashMap<u32, Arc<Table>>,
}

impl Relations {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a relation message in and returns the table; an older description of the same oid is replaced.
    pub fn update(&mut self, relation: &Relation<'_>) -> Arc<Table> {
        let table = Arc::new(Table::from(relation));
        self.by_oid.insert(table.oid, Arc::clone(&table));
        table
    }

    /// The table with this oid.
    #[inline]
    pub fn get(&self, oid: u32) -> Option<&Arc<Table>> {
        self.by_oid.get(&oid)
    }

    /// The table with this schema and name. If a table was dropped or renamed and another one took its name,
    /// both may be here: the one that was described last under the name is not known, so the caller gets
    /// every match.
    pub fn named<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Table>> {
        self.by_oid.values().filter(move |t| t.namespace == namespace && t.name == name)
    }

    /// Number of tables.
    pub fn len(&self) -> usize {
        self.by_oid.len()
    }

    /// True before the first relation message.
    pub fn is_empty(&self) -> bool {
        self.by_oid.is_empty()
    }
}
