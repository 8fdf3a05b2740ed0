//! [`Gate`]: a disk that can release all its files at once. `close` must unlock the database while
//! handles, snapshots and iterators still hold pages and logs. Therefore the engine opens every
//! file through the gate. Shutting the gate drops the real files and their locks. Later calls fail
//! with [`ErrorKind::Closed`].

use std::sync::{Arc, Weak};

use terrapin_base::sync::{Mutex, RwLock};
use terrapin_base::{Error, ErrorKind, Result};
use terrapin_disk::{
    Disk, File, FileIdentity, Flight, LogRing, OpenOptions, RingOptions, Show, Shown,
};

/// The disk that one open database sees.
pub(crate) struct Gate {
    /// Calls hold the read lock until they return, so shutting waits for them. Right after the
    /// shut, another process may open the database and own its files.
    disk: RwLock<Option<Arc<dyn Disk>>>,
    files: Mutex<Vec<Weak<GatedFile>>>,
    description: String,
}

struct GatedFile {
    /// I/O holds the read lock until it ends, so shutting waits for I/O under way.
    file: RwLock<Option<Arc<dyn File>>>,
    alignment: u32,
    description: String,
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

impl Gate {
    /// Creates an open gate.
    pub fn new(disk: Arc<dyn Disk>) -> Arc<Self> {
        let description = disk.describe();
        Arc::new(Gate {
            disk: RwLock::new(Some(disk)),
            files: Mutex::default(),
            description,
        })
    }

    /// Releases the disk and every file once the I/O under way has ended. Idempotent.
    pub fn shut(&self) {
        drop(self.disk.write().take());
        let files = std::mem::take(&mut *self.files.lock());
        for file in files.iter().filter_map(Weak::upgrade) {
            let inner = file.file.write().take();
            drop(inner);
        }
    }

    fn with<R>(&self, run: impl FnOnce(&dyn Disk) -> Result<R>) -> Result<R> {
        match &*self.disk.read() {
            Some(disk) => run(&**disk),
            None => Err(closed()),
        }
    }
}

impl Disk for Gate {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        self.with(|disk| {
            let file = disk.open(name, options)?;
            let gated = Arc::new(GatedFile {
                alignment: file.alignment(),
                description: file.describe(),
                file: RwLock::new(Some(file)),
            });
            let mut files = self.files.lock();
            files.retain(|f| f.strong_count() > 0);
            files.push(Arc::downgrade(&gated));
            Ok(gated as Arc<dyn File>)
        })
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

    fn free_bytes(&self) -> Result<u64> {
        self.with(|disk| disk.free_bytes())
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

impl GatedFile {
    fn with<R>(&self, run: impl FnOnce(&dyn File) -> Result<R>) -> Result<R> {
        match &*self.file.read() {
            Some(file) => run(&**file),
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
        self.with(|f| f.show(flight, which, shown))
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

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.with(|f| f.punch_hole(offset, bytes))
    }

    fn alignment(&self) -> u32 {
        self.alignment
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
