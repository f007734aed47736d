//! Values as the layers of the configuration give them, before anything is known of their meaning.

use std::fmt;
use std::path::PathBuf;

/// A value as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Text; also everything that comes from the environment or a flag.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// `true` or `false`.
    Boolean(bool),
    /// A list.
    List(Vec<Value>),
    /// A kind of value that no setting has, with its TOML name.
    Other(&'static str),
}

impl fmt::Display for Value {
    /// As TOML writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => toml::Value::String(text.clone()).fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Boolean(value) => value.fmt(f),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        f.write_str(", ")?;
                    }
                    value.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Other(kind) => write!(f, "({kind})"),
        }
    }
}

impl Value {
    /// As JSON writes it.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Integer(number) => (*number).into(),
            Self::Boolean(value) => (*value).into(),
            Self::List(values) => values.iter().map(Self::to_json).collect(),
            Self::Other(kind) => (*kind).into(),
        }
    }
}

/// Where a value came from; a later variant overrides an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A line of the file.
    File {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sourced {
    /// The value.
    pub(crate) value: Value,
    /// Where it came from.
    pub(crate) origin: Origin,
}
