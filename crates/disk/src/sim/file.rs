//! Handles of one process on files, rings and tables of readers of the simulated disk. Dropping a
//! handle releases its lock and its share.

use terrapin_base::Result;
use terrapin_base::sync::{Arc, Mutex};

use super::watched::Watched;
use crate::readers::ReaderWords;
use crate::ring::RingStore;
use crate::{File, FileIdentity, OpenOptions};

/// An open file.
pub(super) struct SimFile {
    pub(super) disk: Arc<Mutex<Watched>>,
    pub(super) life: u64,
    pub(super) inode: u64,
    pub(super) name: String,
    pub(super) options: OpenOptions,
}

impl SimFile {
    fn check_writable(&self) -> Result<()> {
        if self.options.write {
            Ok(())
        } else {
            Err(crate::read_only(&self.name))
        }
    }

    fn check_range(&self, offset: u64, bytes: u64) -> Result<u64> {
        crate::check_range(&|| self.name.clone(), offset, bytes)
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.read(self.life, self.inode, &self.name, offset, buffer)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        self.check_range(offset, buffer.len() as u64)?;
        if self.options.direct {
            let describe = || self.name.clone();
            crate::check_aligned(&describe, self.alignment(), offset, buffer.len())?;
        }
        let mut disk = self.disk.lock();
        disk.write(self.life, self.inode, &self.name, offset, buffer)
    }

    fn sync(&self) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.sync(self.life, self.inode, &self.name)
    }

    fn bytes(&self) -> Result<u64> {
        let mut disk = self.disk.lock();
        disk.world.check_life(self.life)?;
        Ok(disk.world.image(self.inode, &self.name)?.bytes())
    }

    fn identity(&self) -> Result<FileIdentity> {
        let mut disk = self.disk.lock();
        disk.world.check_life(self.life)?;
        Ok(FileIdentity {
            inode: self.inode,
            birth_ns: disk.world.inode(self.inode, &self.name)?.birth,
        })
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let mut disk = self.disk.lock();
        disk.world.check_life(self.life)?;
        Ok(disk.world.image(self.inode, &self.name)?.allocated_bytes())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.check_range(bytes, 0)?;
        let mut disk = self.disk.lock();
        disk.set_bytes(self.life, self.inode, &self.name, bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.check_range(offset, bytes)?;
        let mut disk = self.disk.lock();
        disk.allocate(self.life, self.inode, &self.name, offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.check_writable()?;
        self.check_range(offset, bytes)?;
        let mut disk = self.disk.lock();
        disk.punch(self.life, self.inode, &self.name, offset, bytes)?;
        Ok(true)
    }

    fn alignment(&self) -> u32 {
        self.disk.lock().world.alignment
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        disk.world.close(self.life, self.inode, self.options);
    }
}

/// The memory of an open ring. A store after the death of the process has no effect.
pub(super) struct SimRing {
    pub(super) disk: Arc<Mutex<Watched>>,
    pub(super) life: u64,
    pub(super) inode: u64,
    pub(super) name: String,
}

impl RingStore for SimRing {
    fn read(&self, offset: u64, out: &mut [u8]) {
        self.disk.lock().world.ring_read(self.inode, offset, out);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let mut disk = self.disk.lock();
        disk.ring_write(self.life, self.inode, &self.name, offset, bytes);
    }
}

impl Drop for SimRing {
    fn drop(&mut self) {
        let options = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        self.disk.lock().world.close(self.life, self.inode, options);
    }
}

/// An open table of readers. Its words are stored as the log's ring is: they survive the process,
/// and no sync covers them. All handles of the disk are one process, so a handle stands for a
/// reader's process: the locks belong to the handle.
pub(super) struct SimWords {
    pub(super) disk: Arc<Mutex<Watched>>,
    pub(super) life: u64,
    pub(super) inode: u64,
    pub(super) name: String,
    /// The number of this handle.
    pub(super) handle: u64,
}

impl SimWords {
    fn word(disk: &mut Watched, inode: u64, word: usize) -> u64 {
        let mut bytes = [0; 8];
        disk.world.ring_read(inode, 8 * word as u64, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store_in(&self, disk: &mut Watched, word: usize, value: u64) {
        let bytes = value.to_le_bytes();
        disk.ring_write(self.life, self.inode, &self.name, 8 * word as u64, &bytes);
    }
}

impl ReaderWords for SimWords {
    fn load(&self, word: usize) -> u64 {
        Self::word(&mut self.disk.lock(), self.inode, word)
    }

    fn store(&self, word: usize, value: u64) {
        self.store_in(&mut self.disk.lock(), word, value);
    }

    fn exchange(&self, word: usize, from: u64, to: u64) -> bool {
        let disk = &mut self.disk.lock();
        let is_from = Self::word(disk, self.inode, word) == from;
        if is_from {
            self.store_in(disk, word, to);
        }
        is_from
    }

    fn try_lock(&self, slot: usize) -> Result<bool> {
        let mut disk = self.disk.lock();
        disk.world.check_life(self.life)?;
        let slots = &mut disk.world.inode(self.inode, &self.name)?.slots;
        // A second lock by one handle succeeds, as it does for an open file description.
        Ok(*slots.entry(slot).or_insert(self.handle) == self.handle)
    }

    fn unlock(&self, slot: usize) {
        let world = &mut self.disk.lock().world;
        if self.life == world.life
            && let Some(inode) = world.inodes.get_mut(&self.inode)
            && inode.slots.get(&slot) == Some(&self.handle)
        {
            inode.slots.remove(&slot);
        }
    }
}

impl Drop for SimWords {
    fn drop(&mut self) {
        let world = &mut self.disk.lock().world;
        if self.life == world.life
            && let Some(inode) = world.inodes.get_mut(&self.inode)
        {
            inode.slots.retain(|_, handle| *handle != self.handle);
        }
        world.close(self.life, self.inode, OpenOptions::default());
    }
}
