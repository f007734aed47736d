//! The account that servers run as.
//!
//! PostgreSQL refuses to run as root, and a Redis without a password must not: as root, both run as
//! `postgres`, or else as `nobody`. An ordinary user runs them as itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// The account of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// User and group to change to; none when the owner is not root.
    change_to: Option<(u32, u32)>,
}

impl Account {
    /// The account for servers that this process starts.
    pub(crate) fn of_servers() -> Result<Self> {
        static FOUND: OnceLock<Option<Account>> = OnceLock::new();
        FOUND.get_or_init(Self::find).ok_or(Error::NoAccount)
    }

    fn find() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return Some(Self { change_to: None });
        }
        ["postgres", "nobody"].into_iter().find_map(|name| {
            let ids = (id("-u", name)?, id("-g", name)?);
            (ids.0 != 0).then_some(Self { change_to: Some(ids) })
        })
    }

    /// A command that runs as this account.
    pub(crate) fn command(self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        if let Some((uid, gid)) = self.change_to {
            command.uid(uid).gid(gid);
        }
        // a folder that the account may not enter would make initdb and postgres complain
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Gives a file or folder to the account, with these permissions.
    pub(crate) fn give(self, path: &Path, mode: u32) -> Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(Error::io("set permissions of", path))?;
        self.chown(path)
    }

    /// Gives a file or folder to the account.
    pub(crate) fn chown(self, path: &Path) -> Result<()> {
        let Some((uid, gid)) = self.change_to else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(Error::io("give away", path))
    }
}

/// Copies a file that only the account may read.
pub(crate) fn take(source: &Path, target: &Path, account: Account) -> Result<()> {
    fs::copy(source, target).map_err(Error::io("copy", source))?;
    account.give(target, 0o600)
}

/// Asks `id`, which knows every source of accounts that the machine uses.
fn id(what: &str, name: &str) -> Option<u32> {
    let output = Command::new("id").args([what, name]).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
