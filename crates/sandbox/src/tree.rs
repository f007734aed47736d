//! Killing a server together with its children.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{Daemon, POLL};
use crate::error::{Error, Result};

/// SIGKILL takes effect when the process next runs; a busy machine needs a moment.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// One line of the process table.
struct Process {
    pid: i32,
    parent: i32,
    /// Ended, and not yet reaped by its parent.
    zombie: bool,
}

impl Daemon {
    /// Kills the server and its children, and waits until they are gone.
    ///
    /// The server is stopped first: it can then start no further child, nor reap one, so that no
    /// pid in the list can pass to a stranger before it is signalled.
    pub(crate) async fn kill_tree(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let parent = self.pid().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let children: Vec<i32> =
            processes().into_iter().filter(|p| p.parent == parent).map(|p| p.pid).collect();
        for pid in children.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // an error means that it has just ended
            let _ = kill_process(pid, Signal::KILL);
        }
        self.signal(Signal::KILL)?;
        self.ended(GONE_WITHIN).await?;
        let since = Instant::now();
        while processes().iter().any(|p| !p.zombie && children.contains(&p.pid)) {
            let waited = since.elapsed();
            if waited > GONE_WITHIN {
                let pid = u32::try_from(parent).unwrap_or_default();
                return Err(Error::StillRunning { server: self.name(), pid, waited });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

fn processes() -> Vec<Process> {
    if Path::new("/proc/self").exists() { from_proc() } else { from_ps() }
}

fn from_proc() -> Vec<Process> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // "pid (name) state parent ...": the name may hold anything
            let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
            let zombie = matches!(fields.next()?, "Z" | "X");
            Some(Process { pid, parent: fields.next()?.parse().ok()?, zombie })
        })
        .collect()
}

fn from_ps() -> Vec<Process> {
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,stat="])
        .stderr(Stdio::null())
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    output
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (pid, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            Some(Process { pid, parent, zombie: fields.next()?.starts_with('Z') })
        })
        .collect()
}
