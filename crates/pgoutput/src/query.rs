//! Rows of the simple query protocol, and quoting for it.

use crate::{Error, Lsn, reader::Reader, wire::short};

/// One row, every value in its text form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row(
    /// The values, `None` for SQL null.
    pub Vec<Option<String>>,
);

impl Row {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Error> {
        const DURING: &str = "a row";
        let mut reader = Reader::new(body);
        let columns = reader.u16().map_err(short(DURING))?;
        let mut values = Vec::with_capacity(usize::from(columns));
        for _ in 0..columns {
            let len = reader.i32().map_err(short(DURING))?;
            // -1 stands for null
            let value = match usize::try_from(len) {
                Ok(len) => {
                    let bytes = reader.take(len).map_err(short(DURING))?;
                    Some(String::from_utf8_lossy(bytes).into_owned())
                }
                Err(_) => None,
            };
            values.push(value);
        }
        if !reader.is_empty() {
            return Err(Error::Protocol("a row with bytes after its last column".into()));
        }
        Ok(Self(values))
    }

    /// A value; `None` for SQL null and for a column that is not there.
    pub fn get(&self, column: usize) -> Option<&str> {
        self.0.get(column)?.as_deref()
    }

    pub(crate) fn text(&self, column: usize, name: &str) -> Result<String, Error> {
        let missing = || Error::Protocol(format!("no value for {name}"));
        self.get(column).map(str::to_owned).ok_or_else(missing)
    }

    pub(crate) fn parsed<T: std::str::FromStr>(
        &self,
        column: usize,
        name: &str,
    ) -> Result<T, Error> {
        let text = self.text(column, name)?;
        text.parse().map_err(|_| Error::Protocol(format!("{name} is {text:?}")))
    }

    pub(crate) fn lsn(&self, column: usize) -> Option<Lsn> {
        self.get(column)?.parse().ok()
    }
}

/// A string literal of SQL. Backslashes need the E form, since they are special there and, by an old setting, could
/// be special elsewhere too.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        return format!("E'{}'", quoted.replace('\\', "\\\\"));
    }
    format!("'{quoted}'")
}

/// A string in a replication command, whose grammar knows no escapes but doubled quotes.
pub(crate) fn command_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// An identifier, always quoted.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_identifiers_are_quoted() {
        assert_eq!(literal("plain"), "'plain'");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"back\slash'"), r"E'back\\slash'''");
        assert_eq!(command_literal(r"it's \ so"), r"'it''s \ so'");
        assert_eq!(identifier("Pub \"x\""), "\"Pub \"\"x\"\"\"");
    }

    #[test]
    fn rows_are_read_checked() {
        let mut body = vec![0, 2];
        body.extend(3_i32.to_be_bytes());
        body.extend(b"abc");
        body.extend((-1_i32).to_be_bytes());
        let row = Row::parse(&body).unwrap();
        assert_eq!((row.get(0), row.get(1), row.get(2)), (Some("abc"), None, None));
        for len in 0..body.len() {
            assert!(Row::parse(&body[..len]).is_err(), "{len}");
        }
        body.push(0);
        assert!(Row::parse(&body).is_err());
    }
}
