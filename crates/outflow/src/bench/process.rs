//! Programs under measurement, and what `/proc` tells of them (Linux documentation, "The /proc
//! Filesystem"). `/proc` rather than wait4: the figures are read while a process is still at work,
//! and of servers that are nobody's children here.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// How often a program that is waited for is looked at.
pub(super) const POLL: Duration = Duration::from_millis(5);
/// How long a program may take to stop in order.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// A running program, its output in a file. Killed when dropped.
#[derive(Debug)]
pub(super) struct Program {
    name: &'static str,
    child: Child,
    pid: u32,
    log: PathBuf,
}

impl Program {
    /// Starts `command` without what would change its settings in the environment.
    pub(super) fn start(
        name: &'static str,
        mut command: Command,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let errors = output.try_clone().context("the log file cannot be shared")?;
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "RUST_LOG" || text.starts_with("OUTFLOW_") || text.starts_with("PG") {
                command.env_remove(&name);
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{name} cannot be run"))?;
        let pid = child.id().with_context(|| format!("{name} ended at once"))?;
        Ok(Self { name, child, pid, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("{} cannot be waited for", self.name))
    }

    /// An error if it has ended, for whatever reason.
    pub(super) fn must_run(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("ended ({status})"))),
        }
    }

    /// Waits until it has ended by itself, well.
    pub(super) async fn finish(mut self) -> anyhow::Result<()> {
        let status = self.child.wait().await.with_context(|| format!("{} is lost", self.name))?;
        if status.success() { Ok(()) } else { Err(self.failure(&format!("ended ({status})"))) }
    }

    /// SIGTERM, and waits until it has stopped in order.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.must_run()?;
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no process id", self.name))?;
        kill_process(pid, Signal::TERM)
            .with_context(|| format!("{} ignores SIGTERM", self.name))?;
        match tokio::time::timeout(STOP_WITHIN, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.failure(&format!("stopped badly ({status})"))),
            Ok(Err(error)) => Err(error).with_context(|| format!("{} is lost", self.name)),
            Err(_) => Err(self.failure("did not stop within 30s")),
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.must_run()?;
        self.child.kill().await.with_context(|| format!("{} cannot be killed", self.name))
    }

    /// What went wrong, with the end of what the program printed.
    pub(super) fn failure(&self, what: &str) -> anyhow::Error {
        const LINES: usize = 15;
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n  ");
        anyhow::anyhow!("{} {what}; the end of its output:\n  {tail}", self.name)
    }
}

/// CPU time of a process so far, all threads, user and system. Also readable of one that has ended
/// and was not waited for.
pub(super) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_cpu(&text).with_context(|| format!("{path} has an unknown form"))
}

/// CPU time of a process, of its children, and of the children that have ended and were waited for:
/// of a postmaster that is everything that its server has ever done.
pub(super) fn cpu_of_family(pid: u32) -> anyhow::Result<Duration> {
    let mut sum = Duration::ZERO;
    for entry in fs::read_dir("/proc").context("/proc cannot be read")?.flatten() {
        let file = entry.path().join("stat");
        // what is not a process, or has ended meanwhile, is passed over
        let Ok(stat) = fs::read_to_string(file) else { continue };
        let member = entry.file_name().to_str() == Some(pid.to_string().as_str())
            || field(&stat, PARENT) == Some(pid.into());
        if member {
            sum +=
                ticks(&stat, &[USER, SYSTEM, CHILDREN_USER, CHILDREN_SYSTEM]).unwrap_or_default();
        }
    }
    Ok(sum)
}

/// Whether the process is a backend of PostgreSQL on this machine that works in `database`: its title
/// says so. The process ids of a server elsewhere mean nothing here.
pub(super) fn is_backend(pid: u32, database: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|title| title.starts_with("postgres:") && title.contains(database))
}

/// Time for which the machine's processors have been at work so far, each for itself, whoever it was for.
pub(super) fn cpu_of_machine() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat cannot be read")?;
    parse_busy(&text).context("/proc/stat has an unknown form")
}

/// user, nice, system, idle, iowait, irq, softirq; what follows is of others or counted already.
fn parse_busy(stat: &str) -> Option<Duration> {
    let fields = stat.strip_prefix("cpu ")?.lines().next()?.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.take(7).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, _, _, irq, softirq] = ticks.try_into().ok()?;
    Some(Duration::from_millis((user + nice + system + irq + softirq).saturating_mul(10)))
}

/// Fields of `/proc/PID/stat` by their numbers in the documentation.
const PARENT: usize = 4;
const USER: usize = 14;
const SYSTEM: usize = 15;
const CHILDREN_USER: usize = 16;
const CHILDREN_SYSTEM: usize = 17;

fn field(stat: &str, number: usize) -> Option<u64> {
    // the name in parentheses, field 2, may hold spaces and parentheses
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// A tick is 10 ms for every program on every architecture that has servers for it (USER_HZ).
fn ticks(stat: &str, fields: &[usize]) -> Option<Duration> {
    let sum = fields.iter().try_fold(0_u64, |sum, number| Some(sum + field(stat, *number)?))?;
    Some(Duration::from_millis(sum.saturating_mul(10)))
}

fn parse_cpu(stat: &str) -> Option<Duration> {
    ticks(stat, &[USER, SYSTEM])
}

/// Most memory that a process has ever held (VmHWM), in MiB.
pub(super) fn peak_mib(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_peak_mib(&text).with_context(|| format!("{path} shows no VmHWM"))
}

fn parse_peak_mib(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u32 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(f64::from(kib) / 1024.0)
}

/// Gives up on work that stands still.
#[derive(Debug)]
pub(super) struct Patience {
    seen: u64,
    since: Instant,
}

impl Patience {
    /// Decoding a huge transaction takes the server this long before it sends the first row.
    const LIMIT: Duration = Duration::from_secs(300);

    pub(super) fn new() -> Self {
        Self { seen: 0, since: Instant::now() }
    }

    /// An error when `count` has not changed for minutes.
    pub(super) fn watch(&mut self, count: u64) -> anyhow::Result<()> {
        if count != self.seen {
            self.seen = count;
            self.since = Instant::now();
        } else if self.since.elapsed() > Self::LIMIT {
            bail!("it has stood still at {count} for {} s", Self::LIMIT.as_secs());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 1 0 99";
        assert_eq!(parse_cpu(stat), Some(Duration::from_millis(1750)));
        assert_eq!(parse_cpu("12 (a) S 1"), None);
        assert_eq!(field(stat, PARENT), Some(1));
    }

    #[test]
    fn processors_that_are_idle_or_wait_for_a_disk_are_not_at_work() {
        let stat = "cpu  1 2 4 1000 1000 8 16 32 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_busy(stat), Some(Duration::from_millis(310)));
        assert_eq!(parse_busy("cpu  1 2 3\n"), None);
        assert!(cpu_of_machine().unwrap() > Duration::ZERO);
    }

    #[test]
    fn peak_memory_is_in_mebibytes() {
        let status = "Name:\ta\nVmPeak:\t 9999 kB\nVmHWM:\t    2048 kB\n";
        assert_eq!(parse_peak_mib(status), Some(2.0));
        assert_eq!(parse_peak_mib("Name:\ta\n"), None);
    }

    #[test]
    fn this_process_has_figures() {
        let pid = std::process::id();
        assert!(cpu(pid).unwrap() <= cpu_of_family(pid).unwrap() + Duration::from_millis(100));
        assert!(!is_backend(pid, "postgres"));
        assert!(peak_mib(pid).unwrap() > 1.0);
    }
}
