//! What processes have cost, from `/proc`.

use std::fs;

/// CPU time of these processes so far, in nanoseconds, over all their threads.
///
/// The scheduler's own figure: the ticks of `/proc/PID/stat` are too coarse for short turns. Threads
/// that ended are not in it; what is measured here keeps its threads.
pub(crate) fn cpu_ns(pids: &[u32]) -> u64 {
    let of_thread = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let threads = pids
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok())
        .flat_map(|threads| threads.flatten().map(|thread| thread.path()));
    threads.filter_map(of_thread).sum()
}

/// Resident memory of these processes in bytes. Shared pages count in each.
pub(crate) fn resident_bytes(pids: &[u32]) -> u64 {
    let of_process = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of_process).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_costs_something() {
        let me = std::process::id();
        assert!(cpu_ns(&[me]) > 0);
        assert!(resident_bytes(&[me]) > 100_000);
    }
}
