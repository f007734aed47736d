//! Rows: counted columns, each null, unchanged, text or binary.

use super::{DecodeError, Fields};
use crate::reader::Reader;

/// One column value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TupleValue<'a> {
    /// SQL null.
    Null,
    /// A large (TOASTed) value that an update did not touch: the server does not send it. It is **not** null.
    Unchanged,
    /// The text form, as the type's output function writes it under the pinned session settings.
    Text(&'a [u8]),
    /// The binary form, only with [`StartOptions::binary`](crate::StartOptions::binary).
    Binary(&'a [u8]),
}

/// A row, checked when it was decoded; reading its columns neither allocates nor fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    bytes: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    /// True for a row of a table without columns.
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The values, in the order of [`Relation::columns`](super::Relation::columns).
    #[inline]
    pub fn values(&self) -> TupleValues<'a> {
        TupleValues { left: self.columns, reader: Reader::new(self.bytes) }
    }

    /// The value of one column, counted from 0. Walks from the first: use [`Self::values`] for several.
    pub fn get(&self, column: usize) -> Option<TupleValue<'a>> {
        self.values().nth(column)
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = TupleValue<'a>;
    type IntoIter = TupleValues<'a>;

    fn into_iter(self) -> TupleValues<'a> {
        self.values()
    }
}

/// Iterator over the values of a [`Tuple`].
#[derive(Debug, Clone)]
pub struct TupleValues<'a> {
    left: u16,
    reader: Reader<'a>,
}

impl<'a> Iterator for TupleValues<'a> {
    type Item = TupleValue<'a>;

    #[inline]
    fn next(&mut self) -> Option<TupleValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        let sized = |reader: &mut Reader<'a>| {
            let len = usize::try_from(reader.u32().ok()?).ok()?;
            reader.take(len).ok()
        };
        match self.reader.u8().ok()? {
            b't' => sized(&mut self.reader).map(TupleValue::Text),
            b'n' => Some(TupleValue::Null),
            b'u' => Some(TupleValue::Unchanged),
            _ => sized(&mut self.reader).map(TupleValue::Binary),
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for TupleValues<'_> {}

/// The old version of a row, as far as the server sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// `K`: only the columns of the replica identity; the others are null.
    Key(Tuple<'a>),
    /// `O`: the whole row, with `replica identity full`.
    Full(Tuple<'a>),
}

impl<'a> Fields<'a> {
    /// Walks the columns once, so that every later walk is sure to succeed.
    #[inline]
    pub(super) fn tuple(&mut self) -> Result<Tuple<'a>, DecodeError> {
        let columns = self.u16("number of columns")?;
        let start = self.reader.rest();
        for _ in 0..columns {
            match self.u8("column kind")? {
                b't' | b'b' => {
                    let len = self.u32("column length")?;
                    self.take(len, "column value")?;
                }
                b'n' | b'u' => {}
                other => return Err(self.unknown("column kind", other)),
            }
        }
        let used = start.len().saturating_sub(self.reader.rest().len());
        let (bytes, _) = start.split_at_checked(used).unwrap_or((start, &[]));
        Ok(Tuple { columns, bytes })
    }

    pub(super) fn old_tuple(&mut self, kind: u8) -> Result<OldTuple<'a>, DecodeError> {
        match kind {
            b'K' => self.tuple().map(OldTuple::Key),
            b'O' => self.tuple().map(OldTuple::Full),
            other => Err(self.unknown("tuple kind", other)),
        }
    }
}
