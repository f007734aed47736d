//! What is wrong with a configuration: all of it at once, each with key, value and what is allowed.

use std::fmt;
use std::path::Path;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What it is about: a key with its value and origin, or a file.
    pub(crate) subject: String,
    /// What is wrong and what is allowed.
    pub(crate) message: String,
}

impl Problem {
    /// Something about a file as a whole.
    pub(super) fn file(path: &Path, message: String) -> Self {
        Self { subject: path.display().to_string(), message }
    }

    /// Something about a key.
    pub(crate) fn new(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { subject: subject.into(), message: message.into() }
    }
}

/// Everything that is wrong with a configuration; never empty.
#[derive(Debug)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not valid:")?;
        for Problem { subject, message } in &self.0 {
            write!(f, "\n  {subject}: {message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
