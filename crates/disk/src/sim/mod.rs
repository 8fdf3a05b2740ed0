//! A simulated disk: a directory in memory that knows what a power cut keeps, and that fails where
//! a test asks for it.
//!
//! The disk promises what POSIX promises, and no more:
//!
//! - A sync of a file ([`crate::File::sync`]) makes its data, size, allocation and holes durable.
//! - [`Disk::sync_directory`] makes creations, renames and removals durable.
//! - A power cut may keep any part of what no sync covered, in sectors of 512 bytes
//!   ([`CrashMode`]).
//! - What a process wrote survives its death ([`SimDisk::crash_process`]). Stores into a log ring
//!   survive too.
//! - No sync covers stores into a ring. In one store of 32 a page of the ring reaches the medium,
//!   as kernel writeback does it. So a power cut can also leave an old state of a page.
//! - A failed sync loses data. The file still reads as written, but no later sync makes the lost
//!   data durable. A kernel forgets pages in the same way when their writeback fails.
//! - A failed write may have stored some of its sectors.
//! - A write during which the process dies may continue after the death, until the next process can
//!   lock the file ([`Landing`]).
//! - The medium itself may be faulty ([`SimDisk::corrupt`], [`SimDisk::inject_media`]).
//!
//! A watcher sees every call and can fork the disk there ([`SimDisk::watch`]).
//!
//! The seed decides everything random. Equal calls on equal seeds give equal disks and an equal
//! [`SimDisk::trace_hash`].
//!
//! The files form layers: `image`, `inode`, `op`, `fault`, `media`, `in_flight` and `random` hold
//! data. `world` holds the disk's state, and `crash` and `medium` change it. `calls` makes the
//! calls, `watch` describes them, and `watched` tells watchers about them.

mod calls;
mod crash;
mod fault;
mod file;
mod image;
mod in_flight;
mod inode;
mod media;
mod medium;
mod op;
mod random;
mod watch;
mod watched;
mod world;

use std::fmt;

use terrapin_base::Result;
use terrapin_base::sync::{Arc, Mutex};

use crate::{Disk, LogRing, OpenOptions, ReaderTable, RingOptions};
use watched::Watched;
use world::World;

pub use crash::CrashMode;
pub use fault::{Fault, FaultError};
pub use image::{PAGE_BYTES, SECTOR_BYTES};
pub use in_flight::Landing;
pub use media::{Media, MediaFault, MediaHit};
pub use op::{IoEvent, IoStats, Op};
#[cfg(test)]
pub(crate) use random::Random;
pub use watch::{Call, Moment, Probe, Watcher};
pub use watched::Watching;

/// The simulated disk. It stands for the medium, not for a process: it survives crashes, and its
/// clones are the same disk.
///
/// ```
/// use terrapin_disk::{Disk, File, OpenOptions, SimDisk, sim::CrashMode};
/// let medium = SimDisk::new(42);
/// let disk = medium.handle();
/// let options = OpenOptions { create_new: true, write: true, ..OpenOptions::default() };
/// let file = disk.open("a", options)?;
/// disk.sync_directory()?;
/// file.write_at(b"gone with the power", 0)?;
/// medium.crash_power(CrashMode::LoseUnsynced);
/// assert!(file.sync().is_err()); // the process is dead
/// let file = medium.handle().open("a", OpenOptions::default())?;
/// assert_eq!(file.bytes()?, 0);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<Watched>>);

impl SimDisk {
    /// An empty disk of 64 GiB with 512-byte blocks.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimDisk::of(World::new(seed))
    }

    /// A handle of a new process on the disk. The next crash invalidates it.
    #[must_use]
    pub fn handle(&self) -> Arc<dyn Disk> {
        let mut watched = self.0.lock();
        watched.world.died = false;
        let life = watched.world.life;
        drop(watched);
        Arc::new(Handle {
            disk: self.0.clone(),
            life,
        })
    }

    /// A deep copy of the disk, as if the process had died at this moment.
    ///
    /// No handle of this disk is valid on the copy, and no file is locked there. Unsynced changes
    /// stay unsynced. The copy has the media faults, the counters and the random state, but no
    /// faults of calls and no watchers. Costs the number of pages, not their bytes.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk::of(self.0.lock().world.clone().forked())
    }

    fn of(world: World) -> Self {
        SimDisk(Arc::new(Mutex::new(Watched::new(world))))
    }

    /// Kills the process. What it wrote stays, its handles fail from now on, and its locks are
    /// free.
    pub fn crash_process(&self) {
        self.0.lock().world.die();
    }

    /// Cuts the power. The process dies, and `mode` decides what survives of unsynced changes. What
    /// survives is durable afterwards.
    pub fn crash_power(&self, mode: CrashMode) {
        let world = &mut self.0.lock().world;
        world.die();
        world.lose_power(mode);
    }

    /// Injects a fault. If several faults match a call, the first injected one decides.
    pub fn inject(&self, fault: Fault) {
        self.0.lock().world.faults.push(fault);
    }

    /// Removes all injected faults of calls.
    pub fn clear_faults(&self) {
        self.0.lock().world.faults.clear();
    }

    /// Kills the process in the `n`-th call from now on (1 is the next).
    ///
    /// A write may have stored some of its sectors, and a change of the directory may have
    /// happened. That call and all later ones fail. The test can crash the disk further and open it
    /// again.
    pub fn die_at_call(&self, n: u64) {
        let world = &mut self.0.lock().world;
        world.die_at_call = Some(world.calls.saturating_add(n.max(1)));
    }

    /// Kills the process in the `n`-th store into a log ring from now on (1 is the next). The store
    /// may have written only its first bytes.
    pub fn die_at_ring_write(&self, n: u64) {
        let world = &mut self.0.lock().world;
        world.die_at_ring_write = Some(world.ring_writes.saturating_add(n.max(1)));
    }

    /// Sets what happens from now on to a write during which the process dies. The initial value is
    /// [`Landing::AtDeath`].
    pub fn set_landing(&self, landing: Landing) {
        self.0.lock().world.landing = landing;
    }

    /// Injects a media fault. If several faults match a read or write, the first injected one
    /// decides.
    pub fn inject_media(&self, fault: MediaFault) {
        self.0.lock().world.media.inject(fault);
    }

    /// Removes all media faults that have not struck yet. The effects of the others stay.
    pub fn clear_media(&self) {
        self.0.lock().world.media.clear();
    }

    /// The media faults that struck so far and changed an outcome.
    #[must_use]
    pub fn media_hits(&self) -> Vec<MediaHit> {
        self.0.lock().world.media.hits.clone()
    }

    /// Calls `watcher` before and after every call and every ring store, until the returned value
    /// is dropped.
    pub fn watch(&self, watcher: Watcher) -> Watching {
        Watching::begin(&self.0, watcher)
    }

    /// Whether no process died since the last [`SimDisk::handle`]. A test uses it to tell a planned
    /// death from other errors.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.0.lock().world.died
    }

    /// Number of calls so far, failed ones included. Ring stores do not count.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.0.lock().world.calls
    }

    /// Number of stores into log rings so far. A store that wraps around counts twice.
    #[must_use]
    pub fn ring_writes(&self) -> u64 {
        self.0.lock().world.ring_writes
    }

    /// Counters of the file that has this name now; zeros if there is no such file.
    #[must_use]
    pub fn stats(&self, name: &str) -> IoStats {
        self.0.lock().world.stats(name)
    }

    /// Counters of all files, removed ones included.
    #[must_use]
    pub fn stats_total(&self) -> IoStats {
        self.0.lock().world.stats_total
    }

    /// Sets the capacity in bytes. If less than [`SimDisk::used_bytes`], every allocation fails.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.lock().world.capacity = bytes;
    }

    /// Bytes that files occupy, including unlinked files that are still open.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().world.used_bytes()
    }

    /// Sets the alignment of direct writes in bytes: a power of two from 512. The initial value is
    /// 512.
    pub fn set_alignment(&self, bytes: u32) {
        assert!(bytes.is_power_of_two() && bytes >= 512);
        self.0.lock().world.alignment = bytes;
    }

    /// Simulates rot: flips the bits of `mask` in one byte of a file, also for the state after a
    /// crash. Returns `false` if there is no such byte.
    pub fn corrupt(&self, name: &str, offset: u64, mask: u8) -> bool {
        self.0.lock().world.corrupt(name, offset, mask)
    }

    /// A file's content as a reader sees it. Does not count as a call.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().world.content(name)
    }

    /// Creates a file that is durable at once. Does not count as a call. For hostile and golden
    /// files.
    pub fn plant(&self, name: &str, content: &[u8]) {
        self.0.lock().world.plant(name, content);
    }

    /// A hash of all calls so far with their offsets, sizes and data. Equal runs have equal hashes.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.lock().world.trace_hash
    }

    /// Starts or stops the recording of single calls, which shows where two runs differ.
    pub fn record_trace(&self, on: bool) {
        self.0.lock().world.trace = on.then(Vec::new);
    }

    /// Returns the calls recorded since the last call of this function.
    #[must_use]
    pub fn take_trace(&self) -> Vec<IoEvent> {
        self.0
            .lock()
            .world
            .trace
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

impl Probe<'_> {
    /// A copy of the disk as [`SimDisk::fork`] makes it.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk::of(self.forked())
    }

    /// A fork in which the process died during this call, as with [`SimDisk::die_at_call`]. `seed`
    /// decides which part of the call happened. Only before the call.
    #[must_use]
    pub fn fork_within(&self, seed: u64, landing: Landing) -> SimDisk {
        SimDisk::of(self.forked_within(seed, landing))
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = &self.0.lock().world;
        write!(f, "SimDisk(life {}, {} calls)", world.life, world.calls)
    }
}

/// A process's handle on the disk.
struct Handle {
    disk: Arc<Mutex<Watched>>,
    life: u64,
}

impl Disk for Handle {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn crate::File>> {
        crate::check_options(name, options)?;
        let inode = self.disk.lock().open(self.life, name, options)?;
        Ok(Arc::new(file::SimFile {
            disk: self.disk.clone(),
            life: self.life,
            inode,
            name: name.into(),
            options,
        }))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.disk.lock().list(self.life)
    }

    fn remove(&self, name: &str) -> Result<()> {
        crate::check_name(name)?;
        self.disk.lock().remove(self.life, name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        crate::check_name(from)?;
        crate::check_name(to)?;
        self.disk.lock().rename(self.life, from, to)
    }

    fn sync_directory(&self) -> Result<()> {
        self.disk.lock().sync_directory(self.life)
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        crate::check_name(name)?;
        if ring.create {
            RingOptions::check_asked(ring.bytes, name)?;
        }
        let (inode, bytes) = self.disk.lock().open_ring(self.life, name, ring)?;
        let store = file::SimRing {
            disk: self.disk.clone(),
            life: self.life,
            inode,
            name: name.into(),
        };
        Ok(LogRing::stored(Box::new(store), bytes))
    }

    fn open_readers(&self, name: &str, create: bool) -> Result<ReaderTable> {
        crate::check_name(name)?;
        let (inode, handle) = self.disk.lock().open_readers(self.life, name, create)?;
        let words = file::SimWords {
            disk: self.disk.clone(),
            life: self.life,
            inode,
            name: name.into(),
            handle,
        };
        Ok(ReaderTable::new(Box::new(words), name.into()))
    }

    fn free_bytes(&self) -> Result<u64> {
        self.disk.lock().free_bytes(self.life)
    }

    fn describe(&self) -> String {
        "simulated disk".into()
    }
}
