//! The machine: its hardware, its page cache, its block device.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::Advice;
use serde::{Deserialize, Serialize};
use terrapin_base::{Error, Result};

/// The machine's figures for the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The file system of the scratch directory.
    pub file_system: String,
}

impl Machine {
    /// This machine, with a directory on the measured file system.
    pub fn here(directory: &Path) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let processor = field(&cpu, "model name").unwrap_or("unknown");
        let memory = read("/proc/meminfo");
        let kib = field(&memory, "MemTotal").and_then(|f| f.split_whitespace().next());
        Machine {
            processor: processor.to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.and_then(|k| k.parse::<u64>().ok()).unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(&read("/proc/self/mountinfo"), directory)
                .unwrap_or_else(|| "unknown".into()),
        }
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}

/// The type of a directory's file system: that of the mount with the longest matching path.
fn file_system(mounts: &str, directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let kinds = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let place = mount.split(' ').nth(4)?;
        let kind = source.split(' ').next()?;
        directory
            .starts_with(place)
            .then(|| (place.len(), kind.to_owned()))
    });
    kinds
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

/// Writes back dirty pages and drops the page cache. Without the privilege it does this for the
/// directory's files only, and says so.
pub fn drop_page_cache(directory: &Path) -> Result<Option<&'static str>> {
    rustix::fs::sync();
    if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok(None);
    }
    for_each_file(directory, &mut |file| {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).map_err(Into::into)
    })?;
    Ok(Some(
        "page cache dropped by posix_fadvise only: no right to drop_caches",
    ))
}

/// Syncs every file below a directory, for engines that have no call for it.
#[cfg(feature = "bf-tree")]
pub fn sync_files(directory: &Path) -> Result<()> {
    for_each_file(directory, &mut |file| file.sync_data())
}

fn for_each_file(
    directory: &Path,
    act: &mut dyn FnMut(&File) -> std::io::Result<()>,
) -> Result<()> {
    let failed = |e| {
        Error::io("cannot go through the engine's files", e).with("directory", directory.display())
    };
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            for_each_file(&path, act)?;
        } else if let Ok(file) = File::open(&path) {
            // A file that disappears meanwhile is the engine's business.
            act(&file).map_err(failed)?;
        }
    }
    Ok(())
}

/// Bytes written and read by the block device below a directory since boot.
#[derive(Clone, Copy)]
pub struct Disk {
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
}

impl Disk {
    /// Reads the counters; none for file systems without a block device of their own.
    pub fn now(directory: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = fs::metadata(directory).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
        let fields: Vec<u64> = stat.split_whitespace().flat_map(str::parse).collect();
        Some(Disk {
            read: fields.get(2)? * 512,
            written: fields.get(6)? * 512,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      22 21 0:5 / /proc rw - proc proc rw\n";
        let kind = file_system(mounts, Path::new("/"));
        assert_eq!(kind.as_deref(), Some("ext4"));
        let kind = file_system(mounts, Path::new("/proc/self"));
        assert_eq!(kind.as_deref(), Some("proc"));
    }
}
