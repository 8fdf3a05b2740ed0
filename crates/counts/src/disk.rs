//! The real disk, made the same everywhere: no direct I/O, much free space, and blocks of 512 bytes whatever the device has,
//! since the layout of pages follows from that. A read costs the call and no instruction of the kernel's, which valgrind does not see.

use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Env, Result};
use terrapin_disk::{Disk, File, LogRing, OpenOptions, RealDisk, RingOptions};

const ALIGNMENT: u32 = 512;
const FREE_BYTES: u64 = 64 << 30;

/// A directory as a disk on which counts do not depend.
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

impl Disk for SteadyDisk {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        let options = OpenOptions {
            direct: false,
            ..options
        };
        Ok(Arc::new(SteadyFile(self.0.open(name, options)?)))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.0.list()
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to)
    }

    fn sync_directory(&self) -> Result<()> {
        self.0.sync_directory()
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        self.0.open_ring(name, ring)
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(FREE_BYTES)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

struct SteadyFile(Arc<dyn File>);

impl File for SteadyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.0.write_at(buffer, offset)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn bytes(&self) -> Result<u64> {
        self.0.bytes()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.0.allocated_bytes()
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.0.set_bytes(bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.0.allocate(offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.0.punch_hole(offset, bytes)
    }

    fn alignment(&self) -> u32 {
        ALIGNMENT
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
