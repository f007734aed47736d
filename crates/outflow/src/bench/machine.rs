//! What the figures were taken on.

use std::fs;
use std::thread::available_parallelism;

use serde::Serialize;

/// The machine; what cannot be found out is empty or 0.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// Model name of the processor.
    pub(super) cpu: String,
    /// Processors that this process may use.
    pub(super) cores: usize,
    /// Memory in GiB, rounded.
    pub(super) memory_gib: u64,
    /// Name and release of the kernel.
    pub(super) kernel: String,
    /// Load average of the minute before the run: what else was going on.
    pub(super) load_before: f64,
    /// Whether outflow was built with optimisation.
    pub(super) release_build: bool,
    /// Free disk where the servers' data goes, in GiB.
    #[serde(skip)]
    disk_free_gib: Option<u64>,
}

impl Machine {
    pub(super) fn read() -> Self {
        let line = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let after = |path, key| {
            let text = fs::read_to_string(path).unwrap_or_default();
            value_of(&text, key).unwrap_or_default()
        };
        let cpu = after("/proc/cpuinfo", "model name");
        let memory_kib: u64 =
            after("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
        let load = line("/proc/loadavg");
        Self {
            // other architectures print no name
            cpu: if cpu.is_empty() { std::env::consts::ARCH.to_owned() } else { cpu },
            cores: available_parallelism().map_or(0, usize::from),
            memory_gib: memory_kib.saturating_add(1 << 19) >> 20,
            kernel: format!(
                "{} {}",
                line("/proc/sys/kernel/ostype"),
                line("/proc/sys/kernel/osrelease")
            ),
            load_before: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            release_build: !cfg!(debug_assertions),
            disk_free_gib: rustix::fs::statvfs(std::env::temp_dir())
                .ok()
                .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >> 30),
        }
    }

    /// Why there may be no figures, or figures that mean nothing. The run writes up to `disk_gib` GiB.
    pub(super) fn warnings(&self, disk_gib: u64) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.release_build {
            warnings
                .push("warning: not a release build: build with cargo build --release".to_owned());
        }
        if self.load_before > 0.5 {
            warnings.push(format!(
                "warning: the machine is busy (load average {}): even ratios will be off",
                self.load_before
            ));
        }
        if let Some(free) = self.disk_free_gib.filter(|free| *free < disk_gib) {
            warnings.push(format!(
                "warning: {free} GiB of disk are free in {}, and up to {disk_gib} are needed: free some, or set \
                 TMPDIR to a folder that has them",
                std::env::temp_dir().display()
            ));
        }
        warnings
    }
}

/// The value of the first line `key : value`.
fn value_of(text: &str, key: &str) -> Option<String> {
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_disk_is_said_before_the_run() {
        let mut machine = Machine { load_before: 0.0, release_build: true, ..Machine::read() };
        machine.disk_free_gib = Some(7);
        assert!(machine.warnings(7).is_empty());
        let warnings = machine.warnings(8);
        assert!(
            warnings.concat().starts_with("warning: 7 GiB of disk are free in "),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_value_stands_behind_its_key() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC: 7\nmodel name\t: other\n";
        assert_eq!(value_of(text, "model name").as_deref(), Some("AMD EPYC: 7"));
        assert_eq!(value_of(text, "model"), None);
    }
}
