//! A database's directory belongs to the engine: no command writes its output there or reads its
//! input there. Files and directories are compared by device and inode, so links, mounts and `..`
//! make no difference.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FileType, fstat};
use terrapin_base::{Error, Result};

/// Device and inode.
type Identity = (u64, u64);

/// Refuses a path with resolved links that is in a database's directory or names one of its files.
/// `what` is "output" or "input".
pub fn refuse_path(database: &Path, what: &'static str, path: &Path) -> Result<()> {
    // If there is no directory, the open reports it.
    let Some(directory) = identity(database) else {
        return Ok(());
    };
    let is_inside = path.ancestors().any(|a| identity(a) == Some(directory));
    let is_one = || identity(path).is_some_and(|file| files(database).contains(&file));
    match is_inside || is_one() {
        true => Err(refusal(database, what, path.display())),
        false => Ok(()),
    }
}

/// Refuses an open file `name` (stdin, stdout, …) that is a file of a database.
pub fn refuse_open(database: &Path, what: &'static str, open: impl AsFd, name: &str) -> Result<()> {
    let Ok(stat) = fstat(open) else {
        return Ok(());
    };
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    match is_file && files(database).contains(&(stat.st_dev, stat.st_ino)) {
        true => Err(refusal(database, what, name)),
        false => Ok(()),
    }
}

/// Refuses to work on a database one of whose files is this process's stdout or stderr.
pub fn refuse_std(database: &Path) -> Result<()> {
    refuse_open(database, "output", io::stdout(), "stdout")?;
    refuse_open(database, "output", io::stderr(), "stderr")
}

fn identity(path: &Path) -> Option<Identity> {
    let metadata = path.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The files in the directory now; none if it cannot be listed, since then none can be opened
/// either.
fn files(database: &Path) -> HashSet<Identity> {
    let entries = std::fs::read_dir(database).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter_map(|path| identity(&path)).collect()
}

fn refusal(database: &Path, what: &'static str, path: impl std::fmt::Display) -> Error {
    let message = "a file in a database's directory is neither output nor input of a command: \
        name a path outside of it";
    Error::invalid(message)
        .with(what, path)
        .with("database", database.display())
}
