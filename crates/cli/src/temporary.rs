//! Directories for temporary databases. Each is locked until its removal, and the system releases
//! the lock however the process ends. So an unlocked one was left by a killed run (by Ctrl-C, for
//! example). The next run of the same user at the same place on the same machine removes it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use terrapin_base::{Error, Result};

use crate::output;

/// The prefix of these directories' names, and of no others.
const PREFIX: &str = "terrapin-temporary-";

/// A directory for a temporary database, removed on drop.
pub struct Temporary {
    path: PathBuf,
    /// The directory itself, locked.
    _held: File,
}

impl Temporary {
    /// A new directory among the system's temporary ones.
    pub fn new(what: &str) -> Result<Self> {
        Self::within(None, what)
    }

    /// A new directory in an existing one; without one, among the system's temporary ones.
    pub fn within(parent: Option<&Path>, what: &str) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let machine = machine();
        let suffix = machine.as_deref().unwrap_or_default();
        for attempt in 0..100 {
            let process = std::process::id();
            let path = parent.join(format!("{PREFIX}{what}-{process}-{attempt}{suffix}"));
            let made = create(&path).map_err(|error| {
                Error::io("cannot create a temporary directory", error)
                    .with("directory", path.display())
            })?;
            let Some(held) = made else { continue };
            if let (Some(machine), Ok(own)) = (&machine, held.metadata()) {
                remove_left(&parent, machine, own.uid());
            }
            return Ok(Temporary { path, _held: held });
        }
        Err(Error::internal("no name is left for a temporary directory"))
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // If this fails, the next run at this place tries again.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The suffix of names: the machine's, since on a network file system other machines may not see
/// its locks. None if it is unknown.
fn machine() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(format!("@{}", name.trim_end().replace(['/', '@'], "-")))
}

/// Creates and locks a directory. None if the name exists, or if another run removed the new
/// directory before it was locked.
fn create(path: &Path) -> io::Result<Option<File>> {
    match std::fs::create_dir(path) {
        Ok(()) => lock(path).inspect_err(|_| {
            let _ = std::fs::remove_dir(path);
        }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// An existing directory, locked. None if another process has the lock, or the directory has gone.
fn lock(path: &Path) -> io::Result<Option<File>> {
    match File::open(path).and_then(|directory| lock_opened(directory, path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        locked => locked,
    }
}

fn lock_opened(directory: File, path: &Path) -> io::Result<Option<File>> {
    match directory.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The previous holder of the lock may have removed it, and another process may have created one
    // with the same name.
    let (locked, there) = (directory.metadata()?, path.symlink_metadata()?);
    let is_same = (locked.dev(), locked.ino()) == (there.dev(), there.ino());
    Ok(is_same.then_some(directory))
}

/// Removes what killed runs of this user and machine left.
fn remove_left(parent: &Path, machine: &str, user: u32) {
    // If this fails, the next run tries again.
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.filter_map(io::Result::ok) {
        let (name, path) = (entry.file_name(), entry.path());
        let is_one = |name: &str| name.starts_with(PREFIX) && name.ends_with(machine);
        if !name.to_str().is_some_and(is_one) {
            continue;
        }
        let found = path.symlink_metadata();
        if !found.is_ok_and(|found| found.is_dir() && found.uid() == user) {
            continue;
        }
        if let Ok(Some(_held)) = lock(&path)
            && std::fs::remove_dir_all(&path).is_ok()
        {
            output::notice(format_args!(
                "removed the files of a killed run: {}",
                path.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_of_the_directory_that_is_there() {
        let place = Temporary::new("test").unwrap();
        let path = place.path().join("directory");
        assert!(lock(&path).unwrap().is_none());
        let held = create(&path).unwrap().unwrap();
        assert!(lock(&path).unwrap().is_none());
        assert!(create(&path).unwrap().is_none());
        drop(held);
        assert!(create(&path).unwrap().is_none());
        assert!(lock(&path).unwrap().is_some());
        // It goes between open and lock, and another one takes its place.
        let opened = || File::open(&path).unwrap();
        let (first, second) = (opened(), opened());
        std::fs::remove_dir(&path).unwrap();
        lock_opened(first, &path).unwrap_err();
        let other = create(&path).unwrap().unwrap();
        assert!(lock_opened(second, &path).unwrap().is_none());
        drop(other);
        assert!(lock(&path).unwrap().is_some());
    }
}
