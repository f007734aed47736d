//! The folder that sandboxes of one user share: port reservations and data folder templates.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::{Error, Result};

/// `<temporary folder>/outflow-sandbox-<uid>/<name>`, created if need be.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let root = std::env::temp_dir().join(format!("outflow-sandbox-{uid}"));
    make(&root)?;
    // the name is predictable, so on a shared machine somebody else could have made it first
    let found = fs::symlink_metadata(&root).map_err(Error::io("read", &root))?;
    if !found.is_dir() || found.uid() != uid {
        return Err(Error::ForeignCache { path: root.display().to_string() });
    }
    let folder = root.join(name);
    make(&folder)?;
    Ok(folder)
}

fn make(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("create", path)(error))
        }
        _ => Ok(()),
    }
}

/// An exclusive lock on a file, held until dropped or until this process ends in any way.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock. Blocks the thread.
    pub(crate) fn wait(path: &Path) -> Result<Self> {
        let file = open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| Error::io("lock", path)(error.into()))?;
        Ok(Self { _file: file })
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_now(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(Error::io("lock", path)(error.into())),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(Error::io("open", path))
}
