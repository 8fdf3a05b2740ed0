//! [`Gate`]: a disk that can release all its files at once. `close` must unlock the database while
//! handles, snapshots and iterators still hold pages and logs. Therefore the engine opens every
//! file through the gate. Shutting the gate drops the real files and their locks. Later calls fail
//! with [`ErrorKind::Closed`].
//!
//! Beside a writer, the gate also tests the reader's slot after each read of the data file, before
//! a caller judges the bytes. A revoked slot fails every read with [`ErrorKind::Overtaken`].

use std::sync::{Arc, Weak};

use terrapin_base::sync::{Mutex, RwLock};
use terrapin_base::{Error, ErrorKind, Result};
use terrapin_disk::{
    Disk, File, FileIdentity, Flight, LogRing, OpenOptions, ReaderSlot, ReaderTable, RingOptions,
    Show, Shown,
};
use terrapin_pages::DATA_FILE;

/// What is behind a gate, and the slot of a reader beside a writer.
struct Opened<T: ?Sized> {
    inner: Arc<T>,
    slot: Option<Arc<ReaderSlot>>,
}

/// The disk that one open database sees.
pub(crate) struct Gate {
    /// Calls hold the read lock until they return, so shutting waits for them. Right after the
    /// shut, another process may open the database and own its files.
    opened: RwLock<Option<Opened<dyn Disk>>>,
    files: Mutex<Vec<Weak<GatedFile>>>,
    description: String,
}

struct GatedFile {
    /// I/O holds the read lock until it ends, so shutting waits for I/O under way.
    opened: RwLock<Option<Opened<dyn File>>>,
    alignment: u32,
    description: String,
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

impl Gate {
    /// Creates an open gate.
    pub fn new(disk: Arc<dyn Disk>) -> Arc<Self> {
        Self::of(disk, None)
    }

    /// Creates the gate of a reader beside a writer. Takes no lock on the data file, which the
    /// slot protects instead. Shutting releases the slot.
    pub fn beside(disk: Arc<dyn Disk>, slot: Arc<ReaderSlot>) -> Arc<Self> {
        Self::of(disk, Some(slot))
    }

    fn of(disk: Arc<dyn Disk>, slot: Option<Arc<ReaderSlot>>) -> Arc<Self> {
        let description = disk.describe();
        let opened = Opened { inner: disk, slot };
        Arc::new(Gate {
            opened: RwLock::new(Some(opened)),
            files: Mutex::default(),
            description,
        })
    }

    /// Releases the disk and every file once the I/O under way has ended. Idempotent.
    pub fn shut(&self) {
        drop(self.opened.write().take());
        let files = std::mem::take(&mut *self.files.lock());
        for file in files.iter().filter_map(Weak::upgrade) {
            let opened = file.opened.write().take();
            drop(opened);
        }
    }

    fn with<R>(&self, run: impl FnOnce(&dyn Disk) -> Result<R>) -> Result<R> {
        match &*self.opened.read() {
            Some(opened) => run(&*opened.inner),
            None => Err(closed()),
        }
    }
}

impl Disk for Gate {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        let opened = self.opened.read();
        let Some(Opened { inner: disk, slot }) = &*opened else {
            return Err(closed());
        };
        let file = disk.open(name, options)?;
        let gated = Arc::new(GatedFile {
            alignment: file.alignment(),
            description: file.describe(),
            opened: RwLock::new(Some(Opened {
                inner: file,
                slot: slot.clone().filter(|_| name == DATA_FILE),
            })),
        });
        let mut files = self.files.lock();
        files.retain(|f| f.strong_count() > 0);
        files.push(Arc::downgrade(&gated));
        Ok(gated as Arc<dyn File>)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.with(|disk| disk.list())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.with(|disk| disk.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.with(|disk| disk.rename(from, to))
    }

    fn sync_directory(&self) -> Result<()> {
        self.with(|disk| disk.sync_directory())
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        self.with(|disk| disk.open_ring(name, ring))
    }

    fn open_readers(&self, name: &str, create: bool) -> Result<ReaderTable> {
        self.with(|disk| disk.open_readers(name, create))
    }

    fn free_bytes(&self) -> Result<u64> {
        self.with(|disk| disk.free_bytes())
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

impl GatedFile {
    fn with<R>(&self, run: impl FnOnce(&dyn File) -> Result<R>) -> Result<R> {
        match &*self.opened.read() {
            Some(Opened { inner, slot: None }) => run(&**inner),
            Some(Opened {
                inner,
                slot: Some(slot),
            }) => {
                // An error, too, counts only if the writer kept what was read.
                let done = run(&**inner);
                slot.check().and(done)
            }
            None => Err(closed()),
        }
    }
}

impl File for GatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.with(|f| f.read_at(buffer, offset))
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.with(|f| f.read_cached_at(buffer, offset))
    }

    fn read_meanwhile(
        &self,
        buffer: &mut [u8],
        offset: u64,
        cached: bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        self.with(|f| f.read_meanwhile(buffer, offset, cached, meanwhile))
    }

    fn start(&self, flight: &mut Flight) -> Result<()> {
        self.with(|f| f.start(flight))
    }

    fn show(&self, flight: &mut Flight, which: Show, shown: Shown<'_>) -> Result<()> {
        let opened = self.opened.read();
        match &*opened {
            Some(Opened { inner, slot: None }) => inner.show(flight, which, shown),
            Some(Opened {
                inner,
                slot: Some(slot),
            }) => {
                let checked = &mut |number: u64, bytes: Result<&[u8]>| {
                    shown(number, slot.check().and(bytes));
                };
                inner.show(flight, which, checked)
            }
            None => Err(closed()),
        }
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.with(|f| f.write_at(buffer, offset))
    }

    fn sync(&self) -> Result<()> {
        self.with(|f| f.sync())
    }

    fn bytes(&self) -> Result<u64> {
        self.with(|f| f.bytes())
    }

    fn identity(&self) -> Result<FileIdentity> {
        self.with(|f| f.identity())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.with(|f| f.allocated_bytes())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.with(|f| f.set_bytes(bytes))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.with(|f| f.allocate(offset, bytes))
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.with(|f| f.punch_hole(offset, bytes))
    }

    fn alignment(&self) -> u32 {
        self.alignment
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
