//! A memory control group for one engine's process, in either version of the kernel's interface.

use std::fs;
use std::path::{Path, PathBuf};

use terrapin_base::{Error, Result};

/// Where systems mount the groups.
const ROOT: &str = "/sys/fs/cgroup";

/// What groups are called, before the number of the process that made them.
const NAME: &str = "terrapin-compare-";

/// A group that exists until this is dropped.
pub struct Group {
    path: PathBuf,
    unified: bool,
}

impl Group {
    /// A new group, directly below the root, whose processes may have so much memory, the page cache included. The error is for
    /// the result: without the right to make groups runs go on without.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        let unified = Path::new(ROOT).join("cgroup.controllers").exists();
        let root = if unified {
            // Where it is on already, or refused, the limit below tells.
            let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), "+memory");
            PathBuf::from(ROOT)
        } else {
            Path::new(ROOT).join("memory")
        };
        remove_left_over(&root);
        let path = root.join(format!("{NAME}{}", std::process::id()));
        let failed = |e| Error::io("cannot make a memory control group", e);
        fs::create_dir(&path).map_err(failed)?;
        let group = Group { path, unified };
        let limits: &[&str] = if unified {
            &["memory.max"]
        } else {
            &["memory.limit_in_bytes"]
        };
        for limit in limits {
            fs::write(group.path.join(limit), limit_bytes.to_string()).map_err(failed)?;
        }
        // Nothing leaves memory but through files. Kernels without swap accounting have no such file.
        let swap = if unified {
            ("memory.swap.max", 0)
        } else {
            ("memory.memsw.limit_in_bytes", limit_bytes)
        };
        let _ = fs::write(group.path.join(swap.0), swap.1.to_string());
        Ok(group)
    }

    /// Where a process enters.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel killed a process of the group because it wanted more.
    pub fn killed(&self) -> bool {
        let file = if self.unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        fs::read_to_string(self.path.join(file)).is_ok_and(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix("oom_kill "))
                .any(|count| count.trim() != "0")
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group whose process is gone can be removed; where the kernel is still at it, an empty one is left.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes the groups of commands that were stopped.
fn remove_left_over(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            // One that is still in use stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Puts the calling process into a group.
pub fn enter(path: &Path) -> Result<()> {
    fs::write(path.join("cgroup.procs"), std::process::id().to_string())
        .map_err(|e| Error::io("cannot enter the memory control group", e))
}
