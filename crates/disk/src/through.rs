//! Wrappers around a disk or a file, for tests. A wrapper implements what it changes, such as a
//! count of reads, and passes all other calls [`through`](DiskThrough).

use std::sync::Arc;

use terrapin_base::Result;

use crate::{
    Disk, File, FileIdentity, Flight, LogRing, OpenOptions, ReaderTable, RingOptions, Show, Shown,
};

/// A [`Disk`] that passes calls to another disk. It implements at least the opening of files.
pub trait DiskThrough: Send + Sync {
    /// The wrapped disk.
    fn behind(&self) -> &dyn Disk;
    /// Opens or creates a file, like [`Disk::open`].
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>>;
    /// Bytes that can still be allocated, like [`Disk::free_bytes`].
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

    fn open_readers(&self, name: &str, create: bool) -> Result<ReaderTable> {
        self.behind().open_readers(name, create)
    }

    fn free_bytes(&self) -> Result<u64> {
        DiskThrough::free_bytes(self)
    }

    fn describe(&self) -> String {
        self.behind().describe()
    }
}

/// A disk that wraps each file as it is opened, and passes all other calls through.
pub struct FilesThrough<W> {
    disk: Arc<dyn Disk>,
    wrap: W,
}

impl<W: Fn(Arc<dyn File>) -> Arc<dyn File> + Send + Sync> FilesThrough<W> {
    /// A disk that opens files of `disk` and applies `wrap` to each.
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

/// A [`File`] that passes calls to another file.
pub trait FileThrough: Send + Sync {
    /// Whether the wrapped file does the reads of a flight, in parallel. If not, this wrapper's own
    /// [`FileThrough::read_at`] does them one by one.
    const FLIES: bool;
    /// The wrapped file.
    fn behind(&self) -> &dyn File;
    /// Fills the buffer, like [`File::read_at`].
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.behind().read_at(buffer, offset)
    }
    /// Fills the buffer, like [`File::read_cached_at`]. The default is [`FileThrough::read_at`].
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        FileThrough::read_at(self, buffer, offset)
    }
    /// Makes data and size durable, like [`File::sync`].
    fn sync(&self) -> Result<()> {
        self.behind().sync()
    }
    /// Alignment of direct I/O in bytes, like [`File::alignment`].
    fn alignment(&self) -> u32 {
        self.behind().alignment()
    }
}

/// Does one read of a flight that the wrapped file does not do.
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

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.behind().punch_hole(offset, bytes)
    }

    fn alignment(&self) -> u32 {
        FileThrough::alignment(self)
    }

    fn describe(&self) -> String {
        self.behind().describe()
    }
}
