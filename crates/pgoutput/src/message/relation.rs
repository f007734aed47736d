//! The relation message: the shape of a table.

use super::{DecodeError, Fields};
use crate::reader::Reader;

/// What the server sends of the old version of updated and deleted rows
/// (PostgreSQL documentation, `ALTER TABLE .. REPLICA IDENTITY`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// `d`: the primary key, if there is one.
    Default,
    /// `n`: nothing.
    Nothing,
    /// `f`: the whole row.
    Full,
    /// `i`: the columns of an index.
    Index,
}

/// The shape of a table as of the rows that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation<'a> {
    /// Oid of the table: the key of the row messages.
    pub id: u32,
    /// Its schema; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its replica identity.
    pub replica_identity: ReplicaIdentity,
    columns: Columns<'a>,
}

/// One column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// Part of the replica identity.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// Oid of its type.
    pub type_oid: u32,
    /// Type modifier (`atttypmod`), -1 without one.
    pub type_modifier: i32,
}

impl<'a> Relation<'a> {
    /// The published columns, in the order of the row values. Dropped and generated columns, and columns
    /// outside the publication's column list, are not among them.
    pub fn columns(&self) -> Columns<'a> {
        self.columns.clone()
    }
}

/// Iterator over the columns of a [`Relation`]; checked when it was decoded.
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    left: u16,
    reader: Reader<'a>,
}

impl PartialEq for Columns<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.left == other.left && self.reader.rest() == other.reader.rest()
    }
}

impl Eq for Columns<'_> {}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    fn next(&mut self) -> Option<Column<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut fields = Fields { kind: b'R', reader: self.reader };
        let column = fields.column().ok()?;
        self.reader = fields.reader;
        Some(column)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Columns<'_> {}

impl<'a> Fields<'a> {
    fn column(&mut self) -> Result<Column<'a>, DecodeError> {
        let key = match self.u8("column flags")? {
            0 => false,
            1 => true,
            other => return Err(self.unknown("column flags", other)),
        };
        Ok(Column {
            key,
            name: self.text("column name")?,
            type_oid: self.u32("column type")?,
            type_modifier: self.i32("column type modifier")?,
        })
    }

    pub(super) fn relation(&mut self) -> Result<Relation<'a>, DecodeError> {
        let id = self.u32("oid")?;
        let namespace = self.text("namespace")?;
        let name = self.text("name")?;
        let replica_identity = match self.u8("replica identity")? {
            b'd' => ReplicaIdentity::Default,
            b'n' => ReplicaIdentity::Nothing,
            b'f' => ReplicaIdentity::Full,
            b'i' => ReplicaIdentity::Index,
            other => return Err(self.unknown("replica identity", other)),
        };
        let left = self.u16("number of columns")?;
        let columns = Columns { left, reader: self.reader };
        for _ in 0..left {
            self.column()?;
        }
        Ok(Relation { id, namespace, name, replica_identity, columns })
    }
}
