//! A real file system in a file, on a loop device: made, mounted, shut down as a power cut would,
//! and unmounted on drop.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Find;
use crate::kernel::child::pause;

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

/// A file system and where it is mounted.
pub struct FileSystem {
    kind: Kind,
    image: PathBuf,
    point: PathBuf,
    mounted: bool,
}

impl FileSystem {
    /// Makes a file system of this many bytes and mounts it. It needs root, a loop device and the
    /// tools; without them it is a find.
    pub fn new(kind: Kind, scratch: &Path, bytes: u64) -> Result<Self, Find> {
        if fs::metadata("/proc/self")?.uid() != 0 {
            return Err(Find(
                "only root can mount file systems: run this as root".to_owned(),
            ));
        }
        let image = scratch.join("image");
        let point = scratch.join("mounted");
        File::create(&image)?.set_len(bytes)?;
        fs::create_dir_all(&point)?;
        match kind {
            Kind::Ext4 => run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?,
            Kind::Xfs => run(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&image))?,
        }
        let mut made = FileSystem {
            kind,
            image,
            point,
            mounted: false,
        };
        made.mount("rw")?;
        Ok(made)
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Mounts it, which replays its journal.
    pub fn mount(&mut self, options: &str) -> Result<(), Find> {
        let kind = match self.kind {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        };
        let options = format!("loop,{options}");
        run(Command::new("mount")
            .args(["-t", kind, "-o", &options])
            .args([&self.image, &self.point]))?;
        self.mounted = true;
        Ok(())
    }

    /// Mounts it again with other options, in place.
    pub fn remount(&self, options: &str) -> Result<(), Find> {
        let options = format!("remount,{options}");
        run(Command::new("mount")
            .args(["-o", &options])
            .arg(&self.point))
    }

    /// Shuts it down without flushing its journal: data that was not on the device is lost, and
    /// every later call fails.
    pub fn cut(&self) -> Result<(), Find> {
        run(Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(&self.point))
    }

    /// Unmounts it. A process that was just killed may keep it busy for a moment.
    pub fn unmount(&mut self) -> Result<(), Find> {
        for _ in 0..100 {
            if run(Command::new("umount").arg(&self.point)).is_ok() {
                self.mounted = false;
                return Ok(());
            }
            pause(20_000_000);
        }
        run(Command::new("umount").arg(&self.point))
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            // It goes when its last user does.
            let _ = run(Command::new("umount").arg("-l").arg(&self.point));
        }
    }
}

/// Runs a tool, which must exist and succeed.
pub fn run(command: &mut Command) -> Result<(), Find> {
    let output = command
        .output()
        .map_err(|error| Find(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Find(format!(
        "{command:?}: {}: {}",
        output.status,
        text.trim()
    )))
}
