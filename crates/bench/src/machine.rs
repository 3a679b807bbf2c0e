//! A description of this machine, for the report.

use crate::report::Machine;

impl Machine {
    /// Describes this machine, as far as the system reports it.
    pub fn here() -> Self {
        let kernel = first_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| std::env::consts::OS.to_owned());
        let distribution = field("/etc/os-release", "PRETTY_NAME=").map(|name| name.trim_matches('"').to_owned());
        let memory_kib = field("/proc/meminfo", "MemTotal:")
            .and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            cpu: field("/proc/cpuinfo", "model name").map_or_else(
                || std::env::consts::ARCH.to_owned(),
                |text| text.trim_start_matches([' ', '\t', ':']).to_owned(),
            ),
            system: [Some(kernel), distribution].into_iter().flatten().collect::<Vec<_>>().join(", "),
        }
    }
}

fn first_line(file: &str) -> Option<String> {
    Some(std::fs::read_to_string(file).ok()?.lines().next()?.to_owned())
}

/// Returns the rest of the first line that begins with `word`.
fn field(file: &str, word: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned)
}
