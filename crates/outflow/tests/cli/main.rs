//! The program as people and scripts use it: a process with arguments, variables and a folder.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "a failed assumption fails the test"
)]

mod command_line;
mod compare;
mod conflicts;
mod dead_letters;
mod init;
mod migration;
mod roles;
mod running;
mod settings;
mod tls;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The program in `folder`, with none of this process's own settings.
fn outflow(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outflow"));
    command.current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("OUTFLOW_") || name.starts_with("PG") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// How a run ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run<I: AsRef<OsStr>>(folder: &Path, args: impl IntoIterator<Item = I>) -> Ran {
    ran(&outflow(folder).args(args).output().unwrap())
}

fn ran(output: &Output) -> Ran {
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout.clone()).unwrap(),
        stderr: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

impl Ran {
    /// Standard output of a run that was fine.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Standard error of a run that ended with `code`.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stderr
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
