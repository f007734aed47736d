//! Parameters in the form in which they are sent, so that the work of encoding can be done while the
//! connection is busy with something else.

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// Why a value has no binary form.
pub(crate) type EncodeError = Box<dyn std::error::Error + Send + Sync>;

/// A parameter that is encoded already. It is never NULL.
#[derive(Debug)]
pub(crate) struct Encoded {
    bytes: BytesMut,
    of: Type,
}

impl Encoded {
    /// Encodes `value` as the server's type `of`.
    pub(crate) fn new(value: &impl ToSql, of: &Type) -> Result<Self, EncodeError> {
        let mut bytes = BytesMut::new();
        match value.to_sql(of, &mut bytes)? {
            IsNull::No => Ok(Self { bytes, of: of.clone() }),
            IsNull::Yes => Err("an encoded parameter cannot be NULL".into()),
        }
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
        let encoded = Encoded::new(&value, &Type::TEXT_ARRAY).unwrap();
        assert!(matches!(encoded.to_sql(&Type::TEXT_ARRAY, &mut out), Ok(IsNull::No)));
        assert_eq!(plain, out);
        assert!(encoded.to_sql(&Type::BYTEA_ARRAY, &mut out).is_err());
        assert!(Encoded::new(&None::<i64>, &Type::INT8).is_err());
    }
}
