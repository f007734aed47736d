//! Parameters in the form in which they are sent, so that the work of encoding can be done while the
//! connection is busy with something else.

use std::ops::Range;

use bytes::{Buf, BufMut, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::delivery::Delivery;

/// Why a value has no binary form.
pub(crate) type EncodeError = Box<dyn std::error::Error + Send + Sync>;

/// A parameter that is encoded already. It is never NULL.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    bytes: BytesMut,
    of: Type,
}

impl Encoded {
    /// Encodes `value` as the server's type `of`, at the end of `memory`. The parameters of a batch are half a
    /// megabyte: as they grow one by one they would be copied twice over, into fresh pages each time.
    pub(crate) fn new(
        value: &impl ToSql,
        of: &Type,
        memory: &mut BytesMut,
    ) -> Result<Self, EncodeError> {
        match value.to_sql(of, memory)? {
            IsNull::No => Ok(Self { bytes: memory.split(), of: of.clone() }),
            IsNull::Yes => Err("an encoded parameter cannot be NULL".into()),
        }
    }
}

/// Memory for the columns of `deliveries`.
pub(crate) fn memory_for<'a>(deliveries: impl Iterator<Item = &'a Delivery>) -> BytesMut {
    /// Of a delivery, beside the texts of its event: names, ids, times, and the length of each.
    const REST: usize = 256;
    let of = |delivery: &Delivery| {
        let event = &delivery.entry.event;
        let extra = event.extra.iter().map(|(name, value)| name.len() + value.len());
        let payload = event.payload.as_ref().map_or(0, Vec::len);
        event.event_id.len()
            + event.aggregate_id.len()
            + payload
            + event.headers.as_ref().map_or(0, String::len)
            + extra.sum::<usize>()
            + REST
    };
    BytesMut::with_capacity(deliveries.map(of).sum())
}

/// An array of one dimension that is encoded already, of which parts can be taken.
#[derive(Debug)]
pub(crate) struct EncodedArray {
    whole: Encoded,
    /// Where each element begins, and behind the last one the end.
    starts: Vec<usize>,
}

/// Dimensions, flags, type of the elements; length and lower bound of the dimension: four bytes each
/// (PostgreSQL source, array_recv in `src/backend/utils/adt/arrayfuncs.c`).
const HEADER: usize = 20;
const LENGTH_AT: Range<usize> = 12..16;

impl EncodedArray {
    /// Encodes `column` as the server's array type `of`.
    pub(crate) fn new<T: ToSql>(
        column: &[T],
        of: &Type,
        memory: &mut BytesMut,
    ) -> Result<Self, EncodeError> {
        let whole = Encoded::new(&column, of, memory)?;
        let mut starts = Vec::with_capacity(column.len() + 1);
        let mut at = HEADER;
        for _ in column {
            starts.push(at);
            let mut length = whole.bytes.get(at..at + 4).ok_or("an array ends early")?;
            // -1: NULL, of which nothing follows
            at += 4 + usize::try_from(length.get_i32()).unwrap_or(0);
        }
        starts.push(at);
        if !column.is_empty() && at != whole.bytes.len() {
            return Err("an array is longer than its elements".into());
        }
        Ok(Self { whole, starts })
    }

    /// The elements at these places, in order. Of an empty array nothing is taken.
    pub(crate) fn select(&self, runs: &[Range<usize>]) -> Result<Self, EncodeError> {
        if self.starts.len() <= 1 {
            return Ok(Self { whole: self.whole.clone(), starts: self.starts.clone() });
        }
        let missing = || EncodeError::from("an element that is not there");
        let place = |at: usize| self.starts.get(at).copied().ok_or_else(missing);
        let mut length = HEADER;
        for run in runs {
            length += place(run.end)?.saturating_sub(place(run.start)?);
        }
        let mut bytes = BytesMut::with_capacity(length);
        bytes.extend_from_slice(self.whole.bytes.get(..HEADER).ok_or_else(missing)?);
        let mut starts = Vec::new();
        for run in runs {
            let places = self.starts.get(run.start..=run.end).ok_or_else(missing)?;
            let (Some(from), Some(to)) = (places.first(), places.last()) else { continue };
            let shifted = bytes.len();
            starts.extend(places.iter().take(run.len()).map(|place| place - from + shifted));
            bytes.extend_from_slice(self.whole.bytes.get(*from..*to).ok_or_else(missing)?);
        }
        let length = i32::try_from(starts.len())?;
        starts.push(bytes.len());
        bytes.get_mut(LENGTH_AT).ok_or_else(missing)?.put_i32(length);
        Ok(Self { whole: Encoded { bytes, of: self.whole.of.clone() }, starts })
    }

    /// As a parameter.
    pub(crate) fn parameter(&self) -> &(dyn ToSql + Sync) {
        &self.whole
    }
}

impl ToSql for Encoded {
    fn to_sql(&self, to: &Type, out: &mut BytesMut) -> Result<IsNull, EncodeError> {
        if *to != self.of {
            return Err(format!("encoded as {}, wanted as {to}", self.of).into());
        }
        out.extend_from_slice(&self.bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        // what it is encoded as is only known to the value
        true
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_value_is_what_the_value_itself_would_be() {
        let value = vec![Some("a"), None, Some("")];
        let (mut plain, mut out) = (BytesMut::new(), BytesMut::new());
        value.to_sql(&Type::TEXT_ARRAY, &mut plain).unwrap();
        let encoded = Encoded::new(&value, &Type::TEXT_ARRAY, &mut BytesMut::new()).unwrap();
        assert!(matches!(encoded.to_sql(&Type::TEXT_ARRAY, &mut out), Ok(IsNull::No)));
        assert_eq!(plain, out);
        assert!(encoded.to_sql(&Type::BYTEA_ARRAY, &mut out).is_err());
        assert!(Encoded::new(&None::<i64>, &Type::INT8, &mut BytesMut::new()).is_err());
    }

    #[test]
    fn a_part_of_an_array_is_what_the_part_itself_would_be() {
        let column = [Some("a"), None, Some(""), Some("long enough"), None, Some("e")];
        let new = |column: &[Option<&str>]| {
            EncodedArray::new(column, &Type::TEXT_ARRAY, &mut BytesMut::new()).unwrap()
        };
        let array = new(&column);
        let (all, one, some) = ([(0, 6)], [(1, 2)], [(0, 1), (2, 4), (5, 6)]);
        for places in [all.as_slice(), &one, &some, &[]] {
            let runs: Vec<Range<usize>> = places.iter().map(|(from, to)| *from..*to).collect();
            let part: Vec<_> = runs.iter().flat_map(|run| column[run.clone()].to_vec()).collect();
            let taken = array.select(&runs).unwrap();
            let alone = new(&part);
            assert_eq!(taken.starts, alone.starts);
            assert_eq!(taken.whole.bytes[8..], alone.whole.bytes[8..]);
            let again = taken.select(std::slice::from_ref(&(0..part.len()))).unwrap();
            assert_eq!(again.whole.bytes, taken.whole.bytes);
        }
        assert!(array.select(std::slice::from_ref(&(5..7))).is_err());
        let empty =
            EncodedArray::new(&[] as &[bool], &Type::BOOL_ARRAY, &mut BytesMut::new()).unwrap();
        let part = empty.select(std::slice::from_ref(&(3..9))).unwrap();
        assert_eq!(part.whole.bytes, empty.whole.bytes);
    }
}
