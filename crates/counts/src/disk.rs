//! The real disk, made the same on every machine: no direct I/O, much free space, and blocks of 512
//! bytes, which decide the layout of pages. A read costs the call; valgrind does not see the
//! kernel's instructions.

use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Env, Result};
use terrapin_disk::{Disk, DiskThrough, File, FileThrough, OpenOptions, RealDisk};

const ALIGNMENT: u32 = 512;
const FREE_BYTES: u64 = 64 << 30;

/// A directory as a disk that counts do not depend on.
pub struct SteadyDisk(RealDisk);

impl SteadyDisk {
    /// Opens or creates the directory.
    pub fn open(env: &Env, path: &Path) -> Result<Arc<dyn Disk>> {
        Ok(Arc::new(SteadyDisk(RealDisk::open(
            env.clone(),
            path,
            true,
        )?)))
    }
}

impl DiskThrough for SteadyDisk {
    fn behind(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        let options = OpenOptions {
            direct: false,
            ..options
        };
        Ok(Arc::new(SteadyFile(self.0.open(name, options)?)))
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(FREE_BYTES)
    }
}

struct SteadyFile(Arc<dyn File>);

impl FileThrough for SteadyFile {
    const FLIES: bool = false;

    fn behind(&self) -> &dyn File {
        &*self.0
    }

    fn alignment(&self) -> u32 {
        ALIGNMENT
    }
}
