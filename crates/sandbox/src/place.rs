//! Where servers keep their folders.
//!
//! A data folder is a thousand small files, which some file systems take a second to create and to
//! remove: servers that need not be durable live in memory where there is plenty of it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Overrides the choice for every server that is not durable.
const VARIABLE: &str = "OUTFLOW_SANDBOX_DIR";
const MEMORY: &str = "/dev/shm";
/// A few tests at a time that pin WAL must not fill the memory of the machine or container.
const NEEDED: u64 = 4 << 30;

/// The folder in which a server makes its own.
pub(crate) fn parent(in_memory: bool) -> PathBuf {
    match env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) if in_memory => folder.into(),
        None if in_memory && plenty_of_memory() => MEMORY.into(),
        Some(_) | None => env::temp_dir(),
    }
}

fn plenty_of_memory() -> bool {
    let memory = Path::new(MEMORY);
    let free = rustix::fs::statvfs(memory)
        .map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let writable = rustix::fs::access(memory, rustix::fs::Access::WRITE_OK).is_ok();
    writable && free >= NEEDED && available() >= NEEDED && container_limit() >= NEEDED
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = line
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok())
        .unwrap_or_default();
    kib.saturating_mul(1024)
}

/// The memory limit of this control group, as a container sees it.
fn container_limit() -> u64 {
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .unwrap_or(u64::MAX)
}
