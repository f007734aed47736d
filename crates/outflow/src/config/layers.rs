//! Collects the layers of the configuration: file, environment, flags; the later wins.
//!
//! Nothing here knows which keys exist. Every value keeps its origin, so that an error and
//! `outflow config` can say where to look.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use super::value::{Origin, Sourced, Value};

/// Environment variables of settings begin with this; `__` separates sections.
pub(super) const PREFIX: &str = "OUTFLOW_";

/// Where the layers are read from; tests give their own.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sources {
    /// File that must exist.
    pub(crate) file: Option<PathBuf>,
    /// File that is read if it exists.
    pub(crate) default_file: Option<PathBuf>,
    /// The environment.
    pub(crate) environment: Vec<(String, String)>,
    /// `(flag, key, value)`.
    pub(crate) flags: Vec<(String, String, String)>,
}

/// All layers, one on top of the other.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) values: BTreeMap<String, Sourced>,
    /// Variables that look like settings but have no section: `OUTFLOW_SOURCE_URL`.
    pub(super) suspects: Vec<String>,
    pub(super) problems: Vec<Problem>,
}

impl Layers {
    pub(super) fn read(sources: &Sources) -> Self {
        let mut layers = Self::default();
        layers.read_file(sources);
        for (name, value) in &sources.environment {
            layers.read_variable(name, value);
        }
        for (flag, key, value) in &sources.flags {
            layers.put(key, Value::Text(value.clone()), Origin::Flag(flag.clone()));
        }
        layers
    }

    fn put(&mut self, key: &str, value: Value, origin: Origin) {
        self.values.insert(key.to_owned(), Sourced { value, origin });
    }

    fn read_file(&mut self, sources: &Sources) {
        let path = match (&sources.file, &sources.default_file) {
            (Some(path), _) => path,
            (None, Some(path)) if path.exists() => path,
            _ => return,
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                self.problems.push(Problem::file(path, format!("cannot be read: {error}")));
                return;
            }
        };
        let (table, errors) = DeTable::parse_recoverable(&text);
        for error in errors {
            let line = error.span().map_or(1, |span| line_of(&text, span.start));
            self.problems.push(Problem::file(path, format!("line {line}: {}", error.message())));
        }
        self.read_table(path, &text, "", table.get_ref());
    }

    fn read_table(&mut self, path: &Path, text: &str, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            if let DeValue::Table(section) = value.get_ref() {
                self.read_table(path, text, &format!("{key}."), section);
            } else {
                let line = line_of(text, name.span().start);
                self.put(&key, to_value(value), Origin::File { path: path.to_owned(), line });
            }
        }
    }

    /// `OUTFLOW_SOURCE__URL` is `source.url`. Variables without `__` are other people's: flags of
    /// this program, or what Kubernetes sets for a service that is named outflow.
    fn read_variable(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix(PREFIX) else { return };
        if rest.contains("__") || rest == "CONNECTOR" {
            let key = rest.to_ascii_lowercase().replace("__", ".");
            self.put(&key, Value::Text(value.to_owned()), Origin::Environment(name.to_owned()));
        } else {
            self.suspects.push(name.to_owned());
        }
    }
}

fn to_value(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("an integer beyond 64 bits"), Value::Integer),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Array(values) => Value::List(values.iter().map(to_value).collect()),
        DeValue::Float(_) => Value::Other("a float"),
        DeValue::Datetime(_) => Value::Other("a datetime"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
