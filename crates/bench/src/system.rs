//! The operating system's figures for this process: device bytes, CPU time, memory, disk space.

use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use terrapin_base::{Error, Result};

/// A reading. Figures that the system does not provide are 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Bytes this process caused to be written to storage (`/proc/self/io`): direct writes and
    /// dirtied pages, the log's ring included. Pages of files removed before they were written do
    /// not count.
    pub device_bytes_written: u64,
    /// Bytes this process caused to be read from storage.
    pub device_bytes_read: u64,
    /// CPU seconds of all threads, user and system.
    pub cpu_seconds: f64,
}

impl Usage {
    /// Reads the current figures.
    #[must_use]
    pub fn now() -> Self {
        let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        Usage {
            device_bytes_written: field(&io, "write_bytes:")
                .saturating_sub(field(&io, "cancelled_write_bytes:")),
            device_bytes_read: field(&io, "read_bytes:"),
            cpu_seconds: cpu_seconds(),
        }
    }
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn cpu_seconds() -> f64 {
    // Fields 14 and 15, counted behind the command's name, in ticks of 10 ms on every Linux that
    // Rust supports.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return 0.0;
    };
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}

/// CPU seconds of the calling thread up to this call. The files in `/proc` are only as recent as
/// the thread's last tick.
pub(crate) fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Resets the peak of resident memory, where the system allows it.
pub fn reset_rss_peak() {
    // If the system refuses, the peak covers the process's whole life, so the figure is too large,
    // never too small.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Peak of resident memory in bytes since the last reset.
#[must_use]
pub fn rss_peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmHWM:") * 1024
}

/// Bytes on disk of all files in a directory and its subdirectories.
pub fn allocated_bytes(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let failed = |e| {
        Error::io("cannot measure the database's directory", e)
            .with("directory", directory.display())
    };
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A file may disappear after the listing: the log reuses its segments.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        bytes += if metadata.is_dir() {
            allocated_bytes(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}
