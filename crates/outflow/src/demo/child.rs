//! The connector and the consumer: this program again, as processes of their own, that can be killed
//! and started again.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use tokio::process::{Child as Process, Command};

use super::folder::Folder;

/// Lines of a log that show why a process stands still.
const TROUBLE: [&str; 4] = ["WARN", "ERROR", "error:", "panicked"];
/// How many of them are shown, the last ones.
const SHOWN: usize = 6;

/// What every run of this program needs.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) config: PathBuf,
}

impl Program {
    /// `outflow <args> --config <config>`, with nothing from this process's environment that would
    /// change its configuration.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).arg("--config").arg(&self.config);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("OUTFLOW_") || text.starts_with("PG") || text == "RUST_LOG" {
                command.env_remove(&name);
            }
        }
        // ctrl-C is for the demo, which ends the others itself
        command.process_group(0).stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// A process that is started again and again.
#[derive(Debug)]
pub(super) struct Child {
    name: &'static str,
    program: Program,
    log: PathBuf,
    folder: Arc<Mutex<Folder>>,
    process: Option<Process>,
}

impl Child {
    /// `outflow <name>`, not started yet; logs to `<name>.log` in the folder.
    pub(super) fn new(name: &'static str, program: Program, folder: Arc<Mutex<Folder>>) -> Self {
        let path = folder.lock().unwrap_or_else(PoisonError::into_inner).path().to_owned();
        Self { name, program, log: path.join(format!("{name}.log")), folder, process: None }
    }

    /// `relay` or `consume`.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Where it logs to.
    pub(super) fn log(&self) -> &PathBuf {
        &self.log
    }

    /// Its process id; 0 while it does not run.
    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().and_then(Process::id).unwrap_or_default()
    }

    /// Starts it.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let open = || OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File =
            open().with_context(|| format!("{} cannot be written", self.log.display()))?;
        let process = self
            .program
            .command(&[self.name])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", self.program.path.display()))?;
        if let Some(pid) = process.id() {
            self.folder.lock().unwrap_or_else(PoisonError::into_inner).entrust(pid)?;
        }
        self.process = Some(process);
        Ok(())
    }

    /// SIGKILL; returns the id of the process that is gone.
    pub(super) async fn kill(&mut self) -> anyhow::Result<u32> {
        self.check()?;
        let mut process =
            self.process.take().with_context(|| format!("{} does not run", self.name))?;
        let pid = process.id().unwrap_or_default();
        process
            .kill()
            .await
            .with_context(|| format!("{} (pid {pid}) cannot be killed", self.name))?;
        Ok(pid)
    }

    /// Fails when the process has ended by itself, with the end of its log.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(process) = &mut self.process else { return Ok(()) };
        if let Ok(Some(status)) = process.try_wait() {
            let trouble = self.trouble().join("\n  ");
            anyhow::bail!("outflow {} ended by itself ({status}):\n  {trouble}", self.name);
        }
        Ok(())
    }

    /// The last lines of its log that tell of trouble; without any, the last lines.
    pub(super) fn trouble(&self) -> Vec<String> {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let of = |lines: Vec<&str>| {
            let first = lines.len().saturating_sub(SHOWN);
            lines.into_iter().skip(first).map(str::to_owned).collect::<Vec<_>>()
        };
        let told = log.lines().filter(|line| TROUBLE.iter().any(|mark| line.contains(mark)));
        match of(told.collect()) {
            told if told.is_empty() => of(log.lines().collect()),
            told => told,
        }
    }
}
