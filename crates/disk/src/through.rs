//! Disks and files that stand before another and change little of what it does: a test that counts
//! reads, or lies about syncs, says only what is different, and everything else goes
//! [`through`](DiskThrough).

use std::sync::Arc;

use terrapin_base::Result;

use crate::{Disk, File, FileIdentity, Flight, LogRing, OpenOptions, RingOptions, Show, Shown};

/// A [`Disk`] that passes to another what it does not do itself; at least how files are opened.
pub trait DiskThrough: Send + Sync {
    /// The disk behind it.
    fn behind(&self) -> &dyn Disk;
    /// See [`Disk::open`].
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>>;
    /// See [`Disk::free_bytes`].
    fn free_bytes(&self) -> Result<u64> {
        self.behind().free_bytes()
    }
}

impl<D: DiskThrough> Disk for D {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        DiskThrough::open(self, name, options)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.behind().list()
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.behind().remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.behind().rename(from, to)
    }

    fn sync_directory(&self) -> Result<()> {
        self.behind().sync_directory()
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        self.behind().open_ring(name, ring)
    }

    fn free_bytes(&self) -> Result<u64> {
        DiskThrough::free_bytes(self)
    }

    fn describe(&self) -> String {
        self.behind().describe()
    }
}

/// A disk each of whose files is put behind another as it is opened; all else goes past it.
pub struct FilesThrough<W> {
    disk: Arc<dyn Disk>,
    wrap: W,
}

impl<W: Fn(Arc<dyn File>) -> Arc<dyn File> + Send + Sync> FilesThrough<W> {
    /// `wrap` makes of a file the one that stands before it.
    pub fn new(disk: Arc<dyn Disk>, wrap: W) -> Self {
        FilesThrough { disk, wrap }
    }
}

impl<W: Fn(Arc<dyn File>) -> Arc<dyn File> + Send + Sync> DiskThrough for FilesThrough<W> {
    fn behind(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        Ok((self.wrap)(self.disk.open(name, options)?))
    }
}

/// A [`File`] that passes to another what it does not do itself.
pub trait FileThrough: Send + Sync {
    /// Whether the reads of a flight go past it, together; else they are done by its own
    /// [`FileThrough::read_at`], one after the other.
    const FLIES: bool;
    /// The file behind it.
    fn behind(&self) -> &dyn File;
    /// See [`File::read_at`].
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.behind().read_at(buffer, offset)
    }
    /// See [`File::read_cached_at`]. As its other reads, if it does nothing else.
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        FileThrough::read_at(self, buffer, offset)
    }
    /// See [`File::sync`].
    fn sync(&self) -> Result<()> {
        self.behind().sync()
    }
    /// See [`File::alignment`].
    fn alignment(&self) -> u32 {
        self.behind().alignment()
    }
}

/// Reads for a flight that does not go past it.
fn read_of<F: FileThrough>(file: &F, cached: bool, buffer: &mut [u8], offset: u64) -> Result<()> {
    match cached {
        true => FileThrough::read_cached_at(file, buffer, offset),
        false => FileThrough::read_at(file, buffer, offset),
    }
}

impl<F: FileThrough> File for F {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        FileThrough::read_at(self, buffer, offset)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        FileThrough::read_cached_at(self, buffer, offset)
    }

    fn start(&self, flight: &mut Flight) -> Result<()> {
        if F::FLIES {
            return self.behind().start(flight);
        }
        let cached = flight.is_cached();
        flight.read_waiting(&mut |buffer, offset| read_of(self, cached, buffer, offset));
        Ok(())
    }

    fn show(&self, flight: &mut Flight, which: Show, shown: Shown<'_>) -> Result<()> {
        if F::FLIES {
            return self.behind().show(flight, which, shown);
        }
        File::start(self, flight)?;
        let cached = flight.is_cached();
        let read = &mut |buffer: &mut [u8], offset| read_of(self, cached, buffer, offset);
        flight.show(which, read, shown);
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.behind().write_at(buffer, offset)
    }

    fn sync(&self) -> Result<()> {
        FileThrough::sync(self)
    }

    fn bytes(&self) -> Result<u64> {
        self.behind().bytes()
    }

    fn identity(&self) -> Result<FileIdentity> {
        self.behind().identity()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.behind().allocated_bytes()
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.behind().set_bytes(bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.behind().allocate(offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.behind().punch_hole(offset, bytes)
    }

    fn alignment(&self) -> u32 {
        FileThrough::alignment(self)
    }

    fn describe(&self) -> String {
        self.behind().describe()
    }
}
