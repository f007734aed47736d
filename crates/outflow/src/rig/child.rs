//! Connector, polling relay and consumer: this program again, as processes of their own, that can be
//! killed, paused and started again.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::process::{Child as Process, Command};
use tokio::time::Instant;

use super::folder::Folder;

/// Lines of a log that show why a process stands still.
const TROUBLE: [&str; 4] = ["WARN", "ERROR", "error:", "panicked"];
/// How many of them are shown, the last ones.
const SHOWN: usize = 6;
/// How often a log is read while something is waited for.
const POLL: Duration = Duration::from_millis(10);
/// `outflow status` waits for each server by itself, and some of it for one after the other.
const STATUS_WITHIN: Duration = Duration::from_secs(15);
/// A process answers from its memory.
const METRICS_WITHIN: Duration = Duration::from_secs(2);
/// Stands in a log before the address of health, status and metrics.
const SERVES: &str = "metrics on http://";

/// What every run of this program needs.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) config: PathBuf,
    /// Settings that differ from the configuration: `sink.batch_entries=100`.
    pub(crate) set: Vec<String>,
}

impl Program {
    /// `outflow <args> --config <config>`, with nothing from this process's environment that would
    /// change its configuration.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).arg("--config").arg(&self.config);
        for setting in &self.set {
            command.arg("--set").arg(setting);
        }
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("OUTFLOW_") || text.starts_with("PG") || text == "RUST_LOG" {
                command.env_remove(&name);
            }
        }
        // ctrl-C is for the owner, which ends the others itself
        command.process_group(0).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs it to its end: whether it ended well, and what it wrote.
    ///
    /// # Errors
    /// When it cannot be run, or takes longer than `within`.
    pub(crate) async fn output(
        &self,
        args: &[&str],
        within: Duration,
    ) -> anyhow::Result<(ExitStatus, String)> {
        let mut command = self.command(args);
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
        let what = args.first().copied().unwrap_or_default();
        let output = tokio::time::timeout(within, output)
            .await
            .with_context(|| format!("outflow {what} has not ended within {within:?}"))?
            .with_context(|| format!("{} cannot be run", self.path.display()))?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status, String::from_utf8_lossy(&text).into_owned()))
    }
}

/// A process that is started again and again.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    args: Vec<String>,
    program: Program,
    log: PathBuf,
    folder: Arc<Mutex<Folder>>,
    process: Option<Process>,
    /// Where in its log the present process began.
    began: u64,
}

/// What a drill reads of `outflow status --json`.
#[derive(Deserialize)]
struct Found {
    problems: Vec<String>,
    notes: Vec<String>,
}

impl Child {
    /// `outflow <args>`, not started yet; logs to `<name>.log` in the folder.
    pub(crate) fn new(
        name: &str,
        args: &[&str],
        program: Program,
        folder: Arc<Mutex<Folder>>,
    ) -> Self {
        let path = folder.lock().unwrap_or_else(PoisonError::into_inner).path().to_owned();
        let log = path.join(format!("{name}.log"));
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { name: name.to_owned(), args, program, log, folder, process: None, began: 0 }
    }

    /// What it is called: `relay`, `consume`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where it logs to.
    pub(crate) fn log(&self) -> &PathBuf {
        &self.log
    }

    /// Its process id; 0 while it does not run.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().and_then(Process::id).unwrap_or_default()
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.start_with(&[])
    }

    /// Starts it with further arguments.
    pub(crate) fn start_with(&mut self, further: &[&str]) -> anyhow::Result<()> {
        let began = self.log_end();
        let open = || OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File =
            open().with_context(|| format!("{} cannot be written", self.log.display()))?;
        let args: Vec<&str> =
            self.args.iter().map(String::as_str).chain(further.to_vec()).collect();
        let process = self
            .program
            .command(&args)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", self.program.path.display()))?;
        if let Some(pid) = process.id() {
            self.folder.lock().unwrap_or_else(PoisonError::into_inner).entrust(pid)?;
        }
        (self.process, self.began) = (Some(process), began);
        Ok(())
    }

    /// SIGKILL; returns the id of the process that is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<u32> {
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

    /// SIGTERM, and waits until it has stopped in order.
    ///
    /// # Errors
    /// When it takes longer than `within`, or does not end well.
    pub(crate) async fn stop(&mut self, within: Duration) -> anyhow::Result<()> {
        self.check()?;
        self.signal(Signal::TERM)?;
        let status = self.ended(within).await?;
        // one that has only just started does not listen yet, and has nothing to put in order
        let too_early = status.signal() == Some(Signal::TERM.as_raw());
        if !status.success() && !too_early {
            bail!("outflow {} stopped badly ({status}):\n  {}", self.name, self.told());
        }
        Ok(())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} does not run", self.name))?;
        kill_process(pid, signal).with_context(|| format!("{} cannot be signalled", self.name))
    }

    /// Waits until it is paused (SIGSTOP).
    ///
    /// # Errors
    /// When it is not within `within`, or ends.
    pub(crate) async fn is_paused(&mut self, within: Duration) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            self.check()?;
            let pid = self.pid().to_string();
            let state = Command::new("ps").args(["-o", "state=", "-p", &pid]).output().await;
            let state = state.context("ps cannot be run")?.stdout;
            if state.starts_with(b"T") {
                return Ok(());
            }
            if since.elapsed() > within {
                bail!("outflow {} has not paused within {within:?}:\n  {}", self.name, self.told());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until it has ended by itself, and says how.
    ///
    /// # Errors
    /// When it takes longer than `within`.
    pub(crate) async fn ended(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        let process =
            self.process.as_mut().with_context(|| format!("{} does not run", self.name))?;
        match tokio::time::timeout(within, process.wait()).await {
            Ok(status) => {
                self.process = None;
                status.with_context(|| format!("{} cannot be waited for", self.name))
            }
            Err(_) => {
                bail!("outflow {} has not ended within {within:?}:\n  {}", self.name, self.told())
            }
        }
    }

    /// Fails when the process has ended by itself, with the end of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let Some(process) = &mut self.process else { return Ok(()) };
        if let Ok(Some(status)) = process.try_wait() {
            bail!("outflow {} ended by itself ({status}):\n  {}", self.name, self.told());
        }
        Ok(())
    }

    /// How long its log is by now: where [`logged_since`](Self::logged_since) goes on.
    pub(crate) fn log_end(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |log| log.len())
    }

    /// What it has logged behind `from`.
    pub(crate) fn logged_since(&self, from: u64) -> String {
        let mut bytes = Vec::new();
        // a log that is not there yet says nothing
        let _ = File::open(&self.log).and_then(|mut log| {
            log.seek(SeekFrom::Start(from))?;
            log.read_to_end(&mut bytes)
        });
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it logs a line behind `from` that `wanted` accepts, and returns the line.
    ///
    /// # Errors
    /// When it does not within `within`, or ends before.
    pub(crate) async fn says(
        &mut self,
        from: u64,
        within: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> anyhow::Result<String> {
        let since = Instant::now();
        loop {
            // looked at first: what it logged before it ended counts
            let alive = self.check();
            let log = self.logged_since(from);
            if let Some(line) = log.lines().find(|line| wanted(line)) {
                return Ok(line.to_owned());
            }
            alive?;
            if since.elapsed() > within {
                bail!(
                    "outflow {} has not said so within {within:?}:\n  {}",
                    self.name,
                    self.told()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// What `outflow status` finds: problems and notes. With this process's own account, if it gives one.
    ///
    /// # Errors
    /// When the command cannot be run or gives no report.
    pub(crate) async fn status(&self) -> anyhow::Result<Vec<String>> {
        let mut args = vec!["status", "--json"];
        let listens = self.listens();
        if let Some(address) = &listens {
            args.extend(["--process", address]);
        }
        let (_, said) = self.program.output(&args, STATUS_WITHIN).await?;
        let found: Found = serde_json::from_str(&said)
            .with_context(|| format!("outflow status --json says `{}`", said.trim()))?;
        Ok([found.problems, found.notes].concat())
    }

    /// What it serves as metrics (`GET /metrics`).
    ///
    /// # Errors
    /// When it serves none, or does not answer.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        let address = self.listens();
        let address =
            address.with_context(|| format!("outflow {} serves no metrics", self.name))?;
        let answer = crate::http::ask(&address, "/metrics");
        tokio::time::timeout(METRICS_WITHIN, answer).await.with_context(|| {
            format!("outflow {} has not answered within {METRICS_WITHIN:?}", self.name)
        })?
    }

    /// Where the present process serves status and metrics; `None`: nowhere, or it has ended.
    fn listens(&self) -> Option<String> {
        self.process.as_ref()?;
        let log = self.logged_since(self.began);
        let address = log.lines().find_map(|line| Some(line.split_once(SERVES)?.1))?;
        address.split_whitespace().next().map(str::to_owned)
    }

    /// The last lines of its log that tell of trouble; without any, the last lines.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let log = self.logged_since(0);
        let of = |lines: Vec<&str>| {
            let first = lines.len().saturating_sub(SHOWN);
            lines.into_iter().skip(first).map(str::to_owned).collect::<Vec<_>>()
        };
        let told = log.lines().filter(|line| is_trouble(line));
        match of(told.collect()) {
            told if told.is_empty() => of(log.lines().collect()),
            told => told,
        }
    }

    fn told(&self) -> String {
        self.trouble().join("\n  ")
    }
}

/// Whether a line of a log tells of trouble.
pub(crate) fn is_trouble(line: &str) -> bool {
    TROUBLE.iter().any(|mark| line.contains(mark))
}

/// What status and the logs say about why nothing moves.
pub(crate) async fn why(program: &Program, children: &[&Child]) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        let lines = lines.join("\n    ");
        // writing to a String cannot fail
        let _ = write!(text, "\n  {title}:\n    {lines}");
    };
    let status = match program.output(&["status"], STATUS_WITHIN).await {
        Ok((_, said)) => said,
        Err(error) => error.to_string(),
    };
    section("outflow status", status.lines().map(str::to_owned).collect());
    for child in children {
        section(&child.log().display().to_string(), child.trouble());
    }
    text
}
