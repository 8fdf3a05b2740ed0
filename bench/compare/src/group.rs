//! A memory control group for one engine's process, in either version of the kernel's interface.

use std::fs;
use std::path::{Path, PathBuf};

use terrapin_base::{Error, Result};

/// Where systems mount the groups.
const ROOT: &str = "/sys/fs/cgroup";

/// The prefix of group names, before the number of the process that made the group.
const NAME: &str = "terrapin-compare-";

/// A group that is removed on drop.
pub struct Group {
    path: PathBuf,
    unified: bool,
}

impl Group {
    /// Creates a group directly below the root, whose processes may have this many bytes, page
    /// cache included. The error goes into the result: without the privilege, runs go on without a
    /// group.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        Self::below(Path::new(ROOT), limit_bytes)
    }

    fn below(mounted: &Path, limit_bytes: u64) -> Result<Self> {
        let unified = mounted.join("cgroup.controllers").exists();
        let root = if unified {
            // It may be on already. If it was refused, the limit below fails.
            let _ = fs::write(mounted.join("cgroup.subtree_control"), "+memory");
            mounted.to_path_buf()
        } else {
            mounted.join("memory")
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
        // Memory leaves by files only, not by swap. Kernels without swap accounting lack this file.
        let swap = if unified {
            ("memory.swap.max", 0)
        } else {
            ("memory.memsw.limit_in_bytes", limit_bytes)
        };
        let _ = fs::write(group.path.join(swap.0), swap.1.to_string());
        Ok(group)
    }

    /// The file through which a process enters.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel killed a process of the group for its memory.
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
        // The group can be removed once its process is gone. If the kernel is still busy with it,
        // an empty group stays.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes the groups of commands that were stopped.
fn remove_left_over(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            // A group in use stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Moves the calling process into a group.
pub fn enter(path: &Path) -> Result<()> {
    fs::write(path.join("cgroup.procs"), std::process::id().to_string())
        .map_err(|e| Error::io("cannot enter the memory control group", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that imitates the kernel's: its files hold what was written to them.
    struct FakeHierarchy(PathBuf);

    impl FakeHierarchy {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{NAME}{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            FakeHierarchy(path)
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap()
        }
    }

    impl Drop for FakeHierarchy {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_unified_hierarchy_is_limited_by_its_own_files() {
        let place = FakeHierarchy::new("unified");
        fs::write(place.0.join("cgroup.controllers"), "memory").unwrap();
        let group = Group::below(&place.0, 1 << 20).unwrap();
        let name = group
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert_eq!(place.read("cgroup.subtree_control"), "+memory");
        assert_eq!(place.read(&format!("{name}/memory.max")), "1048576");
        assert_eq!(place.read(&format!("{name}/memory.swap.max")), "0");
        assert!(!group.killed());
        let events = group.path().join("memory.events");
        fs::write(&events, "low 0\nmax 7\noom 1\noom_kill 0\n").unwrap();
        assert!(!group.killed(), "it was reclaimed from, not killed");
        fs::write(&events, "low 0\nmax 7\noom 1\noom_kill 1\n").unwrap();
        assert!(group.killed());
    }

    #[test]
    fn an_older_hierarchy_is_limited_below_its_memory_controller() {
        let place = FakeHierarchy::new("older");
        fs::create_dir(place.0.join("memory")).unwrap();
        let group = Group::below(&place.0, 1 << 20).unwrap();
        assert_eq!(
            group.path().parent(),
            Some(place.0.join("memory").as_path())
        );
        for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
            assert_eq!(
                fs::read_to_string(group.path().join(file)).unwrap(),
                "1048576"
            );
        }
        fs::write(
            group.path().join("memory.oom_control"),
            "under_oom 0\noom_kill 2\n",
        )
        .unwrap();
        assert!(group.killed());
    }

    #[test]
    fn a_missing_privilege_or_kernel_feature_is_reported() {
        let place = FakeHierarchy::new("none");
        let error = Group::below(&place.0, 1 << 20).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("control group"), "{error}");
    }
}
