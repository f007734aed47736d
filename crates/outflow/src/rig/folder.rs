//! A temporary folder, and the guardian that outlives this process.
//!
//! The servers of the sandbox have guardians of their own; this one is for connector and consumer,
//! which must end with the demo or the drill even if that is killed, and for the folder.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

/// A temporary folder; removed at the end of the process, whatever ends it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    guardian: Child,
    /// The guardian acts when this closes.
    pipe: Option<ChildStdin>,
}

impl Folder {
    /// Makes the folder and starts its guardian.
    pub(crate) fn create() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("outflow-rig-")
            .tempdir()
            .context("no temporary folder can be made")?;
        let mut guardian = Command::new("sh")
            .args(["-c", include_str!("guardian.sh"), "outflow-rig-guardian"])
            .arg(folder.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // ctrl-C goes to the whole group of its owner
            .process_group(0)
            .spawn()
            .context("sh cannot be run")?;
        let pipe = guardian.stdin.take();
        Ok(Self { path: folder.keep(), guardian, pipe })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Entrusts a process to the guardian.
    pub(crate) fn entrust(&mut self, pid: u32) -> anyhow::Result<()> {
        let pipe = self.pipe.as_mut().context("the guardian is gone")?;
        writeln!(pipe, "{pid}").context("the guardian is gone")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // it ends at once: it only signals, and removes a few files
        let _ = self.guardian.wait();
    }
}
