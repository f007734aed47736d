//! Quoting for the statements that cannot take parameters.

use crate::config::TableName;

/// An identifier, always quoted.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string constant. Backslashes need the E form, whatever `standard_conforming_strings` says.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        return format!("E'{}'", quoted.replace('\\', "\\\\"));
    }
    format!("'{quoted}'")
}

/// A table with its schema, quoted.
pub(crate) fn qualified(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(identifier("Out\"box"), "\"Out\"\"box\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'"), "E'a\\\\'''");
        let table = TableName { schema: "s".into(), name: "t".into() };
        assert_eq!(qualified(&table), "\"s\".\"t\"");
    }
}
