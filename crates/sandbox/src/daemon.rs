//! A server process, its temporary folder, and the guardian that outlives the owner.
//!
//! Nothing may be left behind, however the owner ends. [`Drop`] covers the ordinary end; for the
//! others (SIGKILL, `exit`, statics, ctrl-C) a guardian, a few lines of `sh`, waits on a pipe
//! whose other end only the owner holds. When it closes, the guardian ends the server and removes
//! the folder. It sits in a process group of its own, so that the signal which ends the owner's
//! group spares it.
//!
//! The server records its pid in the folder before it becomes the server, and the guardian renames
//! the folder before it reads the pid: whichever comes first, no server escapes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::account::Account;
use crate::error::{Error, Result};
use crate::port::Port;

/// How often a process is looked at while it is waited for.
pub(crate) const POLL: Duration = Duration::from_millis(5);
/// How long [`Drop`] waits for a server before it kills it, and then for the guardian.
const DROP_WAIT: Duration = Duration::from_secs(5);

/// A temporary folder of the servers' account, with its guardian.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    guardian: Child,
    /// The guardian acts when this closes.
    pipe: Option<ChildStdin>,
}

impl Home {
    /// Makes a folder in `parent` and starts its guardian, which will send `last_signal` to the
    /// server first.
    pub(crate) fn create(
        parent: &Path,
        account: Account,
        address: &str,
        last_signal: &str,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("outflow-")
            .tempdir_in(parent)
            .map_err(Error::io("create a folder in", parent))?;
        account.give(folder.path(), 0o700)?;
        let mut guardian = Command::new("sh")
            .args(["-c", include_str!("guardian.sh"), "outflow-guardian"])
            .arg(folder.path())
            .args([address, last_signal])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::io("run", Path::new("sh")))?;
        let pipe = guardian.stdin.take();
        Ok(Self { path: folder.keep(), guardian, pipe })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the guardian to leave server and folder alone.
    fn release(&mut self) {
        if let Some(pipe) = &mut self.pipe {
            // a guardian that is already gone leaves them alone just as well
            let _ = pipe.write_all(b"leave\n");
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        drop(self.pipe.take());
        wait_blocking(&mut self.guardian, DROP_WAIT);
    }
}

/// A server that can be started, signalled, waited for, and started again in the same place.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// `postgres` or `redis-server`, for messages.
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    account: Account,
    port: Port,
    /// The running process; none while it is stopped. Only a process that was not reaped is ever
    /// signalled: its pid cannot have passed to another one.
    child: Mutex<Option<Child>>,
    /// One start or stop at a time.
    turn: tokio::sync::Mutex<()>,
    /// The signal for an end without ceremony.
    last_signal: Signal,
    left_running: bool,
    /// Dropped last: the guardian removes it.
    home: Home,
}

impl Daemon {
    pub(crate) fn new(
        name: &'static str,
        program: PathBuf,
        args: Vec<String>,
        account: Account,
        port: Port,
        home: Home,
        last_signal: Signal,
    ) -> Self {
        let (child, turn) = Default::default();
        let left_running = false;
        Self { name, program, args, account, port, child, turn, last_signal, left_running, home }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Waits for the turn to start or stop this server.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process; does not wait until it is ready.
    pub(crate) fn spawn(&self) -> Result<()> {
        if self.running() {
            return Err(Error::AlreadyRunning(self.name));
        }
        let log = self.log_file()?;
        let errors = log.try_clone().map_err(Error::io("open", &self.log_path()))?;
        // `$$` stays the pid over exec; the move makes the record appear whole or not at all
        let record = r#"echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@""#;
        let child = self
            .account
            .command("/bin/sh")
            .args(["-c", record])
            .arg(self.home().join("server.pid"))
            .arg(&self.program)
            .args(&self.args)
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(Error::io("run", &self.program))?;
        *self.child() = Some(child);
        Ok(())
    }

    /// The process id while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.running().then(|| self.child().as_ref().map(Child::id))?
    }

    /// Whether the process runs; reaps it if it has ended.
    pub(crate) fn running(&self) -> bool {
        let mut child = self.child();
        let Some(running) = child.as_mut() else { return false };
        if matches!(running.try_wait(), Ok(None)) {
            return true;
        }
        *child = None;
        false
    }

    /// Signals the process itself, not its children.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child();
        let running = child.as_ref().ok_or(Error::NotRunning(self.name))?;
        kill_process(Pid::from_child(running), signal).map_err(|error| Error::Io {
            what: format!("signal {} (pid {})", self.name, running.id()),
            source: error.into(),
        })
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(&self, timeout: Duration) -> Result<Duration> {
        let since = Instant::now();
        while self.running() {
            let waited = since.elapsed();
            if waited > timeout {
                let pid = self.pid().unwrap_or_default();
                return Err(Error::StillRunning { server: self.name, pid, waited });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(since.elapsed())
    }

    /// Lets server and folder live on after the owner.
    pub(crate) fn leave_running(&mut self) {
        self.home.release();
        self.left_running = true;
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.home().join("server.log")
    }

    fn log_file(&self) -> Result<File> {
        let path = self.log_path();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        self.account.chown(&path)?;
        Ok(file)
    }

    /// Everything that the server has logged since it was first started.
    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The error for a server that did not become ready.
    pub(crate) fn start_error(&self, reason: impl Into<String>) -> Error {
        const LINES: usize = 20;
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n");
        Error::Start { server: self.name, reason: reason.into(), log: tail }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Some(mut child) = self.child().take() else { return };
        if self.left_running {
            return;
        }
        // the server leads a group of its own: Redis may have forked a child that writes a snapshot;
        // errors mean that it has just ended
        let group = Pid::from_child(&child);
        let _ = kill_process_group(group, self.last_signal);
        let _ = kill_process_group(group, Signal::CONT);
        if !wait_blocking(&mut child, DROP_WAIT) {
            let _ = child.kill();
            wait_blocking(&mut child, DROP_WAIT);
        }
    }
}

/// Reaps the process, blocking the thread; false if it outlives the timeout.
fn wait_blocking(child: &mut Child, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Runs work that blocks the thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|failed| {
        Err(Error::Io { what: "prepare a server".into(), source: failed.into() })
    })
}
