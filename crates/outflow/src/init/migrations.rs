//! The SQL files of the repository, compiled in.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

/// What a file is for; also which of its numbers it counts among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The database with the outbox.
    Producer,
    /// What the polling relay needs in the outbox.
    Polling,
    /// The database with the inbox.
    Consumer,
    /// The demo's ledger.
    DemoProducer,
    /// The demo's projection.
    DemoConsumer,
}

impl fmt::Display for Side {
    /// As `outflow.migration` records it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Producer => "producer",
            Self::Polling => "polling",
            Self::Consumer => "consumer",
            Self::DemoProducer => "demo-producer",
            Self::DemoConsumer => "demo-consumer",
        })
    }
}

/// One numbered file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    /// What it is for.
    pub(crate) side: Side,
    /// Its number.
    pub(crate) version: i32,
    /// Its name without number and ending.
    pub(crate) name: &'static str,
    /// Its text.
    pub(crate) sql: &'static str,
}

/// All files, by side and number.
const ALL: &[Migration] = include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

impl Migration {
    /// The files of one side, in the order in which they are applied.
    pub(crate) fn of(side: Side) -> impl Iterator<Item = &'static Self> {
        ALL.iter().filter(move |migration| migration.side == side)
    }

    /// The file that makes the schema and the record of what was applied: every side begins with it.
    pub(crate) fn schema() -> Option<&'static Self> {
        Self::of(Side::Producer).find(|migration| migration.name == "schema")
    }

    /// SHA-256 of the file, as `sha256sum` prints it.
    pub(crate) fn checksum(&self) -> String {
        let mut hex = String::new();
        for byte in Sha256::digest(self.sql.as_bytes()) {
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    /// `0002 outbox`.
    pub(crate) fn title(&self) -> String {
        format!("{:04} {}", self.version, self.name)
    }

    /// The file in a transaction of its own that also records it: what `--print-sql` prints.
    pub(crate) fn script(&self) -> String {
        format!(
            "-- {side} {title}\nBEGIN;\n\n{sql}\nINSERT INTO outflow.migration (side, version, name, checksum)\n\
             VALUES ('{side}', {version}, '{name}', '{checksum}') ON CONFLICT DO NOTHING;\n\nCOMMIT;\n\n",
            side = self.side,
            title = self.title(),
            sql = self.sql,
            version = self.version,
            name = self.name,
            checksum = self.checksum(),
        )
    }
}

/// The files of `sides` as one script, to be read and run by hand.
pub(crate) fn script(sides: &[Side], skip: impl Fn(&Migration) -> bool) -> String {
    let mut text = String::from(
        "-- What `outflow init` does, as one script: each file in a transaction of its own, recorded in\n\
         -- outflow.migration. Safe to run again. Run it with: psql -v ON_ERROR_STOP=1 -f FILE\n\n",
    );
    if !sides.contains(&Side::Producer)
        && let Some(schema) = Migration::schema()
    {
        let _ = write!(text, "-- schema\nBEGIN;\n\n{}\nCOMMIT;\n\n", schema.sql);
    }
    for side in sides {
        for migration in Migration::of(*side).filter(|migration| !skip(migration)) {
            text.push_str(&migration.script());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_numbered_from_one_and_need_no_psql() {
        assert!(Migration::schema().is_some_and(|schema| schema.version == 1));
        for migration in ALL {
            assert!(!migration.sql.is_empty());
            let meta = migration.sql.lines().find(|line| line.trim_start().starts_with('\\'));
            assert_eq!(meta, None, "{} {}", migration.side, migration.title());
        }
    }

    #[test]
    fn a_checksum_is_that_of_sha256sum() {
        let empty = Migration { side: Side::Producer, version: 1, name: "x", sql: "" };
        assert!(empty.checksum().starts_with("e3b0c44298fc1c149afbf4c8996fb924"));
        assert_eq!(empty.checksum().len(), 64);
    }
}
