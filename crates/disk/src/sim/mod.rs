//! A simulated disk: a directory in memory that knows what a power cut would keep, and fails when
//! it is told to.
//!
//! What it promises is what POSIX does, and nothing that file systems happen to do beyond that:
//!
//! - Written data, sizes, allocation and holes are durable after [`crate::File::sync`] of that
//!   file; creations, renames and removals after [`Disk::sync_directory`]. Until then a power cut
//!   may keep any part of them, in sectors of 512 bytes ([`CrashMode`]).
//! - What the process wrote survives its own death ([`SimDisk::crash_process`]), stores into a log
//!   ring included.
//! - Stores into a ring are never synced. Now and then, by the seed, a page of it reaches the
//!   medium by itself, as the kernel's writeback would have it; so a power cut can also leave an
//!   old state of a page.
//! - A sync that fails has lost data for good: the file still reads as written, but what the sync
//!   should have covered is not made durable by a later sync that succeeds, as the kernel forgets
//!   pages whose writeback failed.
//! - A write that fails may have written some of its sectors. One in whose midst the process dies
//!   may go on after its death, as long as the lock of its file is not had again ([`Landing`]).
//! - The medium itself may be faulty: [`SimDisk::corrupt`], [`SimDisk::inject_media`].
//!
//! Every call can be watched, and the disk forked there ([`SimDisk::watch`]).
//!
//! Everything random comes from the seed. The same calls on the same seed give the same disk and
//! the same [`SimDisk::trace_hash`].

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

use crate::{Disk, LogRing, OpenOptions, RingOptions};
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

/// The simulated disk. It is the medium, not the process: it survives crashes, and clones are the
/// same disk.
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

    /// The disk as the process that now begins sees it; dead after the next crash.
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

    /// A deep copy, as if the process had died there and its disk been cloned at this moment: no
    /// handle of this disk is valid there, nothing is locked, and what was not synced is still
    /// unsynced. Faults and watchers are not copied; faults of the medium, counters and the random
    /// state are. Costs the number of pages, not their bytes.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk::of(self.0.lock().world.clone().forked())
    }

    fn of(world: World) -> Self {
        SimDisk(Arc::new(Mutex::new(Watched::new(world))))
    }

    /// The process dies: what it wrote stays, its handles fail from now on, its locks are gone.
    pub fn crash_process(&self) {
        self.0.lock().world.die();
    }

    /// The power fails: the process dies, and of what no sync covered the mode decides. What is
    /// left is durable afterwards.
    pub fn crash_power(&self, mode: CrashMode) {
        let world = &mut self.0.lock().world;
        world.die();
        world.lose_power(mode);
    }

    /// Injects a fault. Several may be there; the first that matches decides.
    pub fn inject(&self, fault: Fault) {
        self.0.lock().world.faults.push(fault);
    }

    /// Takes all injected faults back.
    pub fn clear_faults(&self) {
        self.0.lock().world.faults.clear();
    }

    /// The process dies in the `n`-th call from now on (1 is the next): a write may have stored
    /// some of its sectors, a change of the directory may have happened or not. That call and all
    /// later ones fail; the disk stays for the test to crash further and to open again.
    pub fn die_at_call(&self, n: u64) {
        let world = &mut self.0.lock().world;
        world.die_at_call = Some(world.calls.saturating_add(n.max(1)));
    }

    /// The process dies in the `n`-th store into a log ring from now on (1 is the next), which may
    /// have stored only its first bytes.
    pub fn die_at_ring_write(&self, n: u64) {
        let world = &mut self.0.lock().world;
        world.die_at_ring_write = Some(world.ring_writes.saturating_add(n.max(1)));
    }

    /// Says what becomes of a write in whose midst the process dies from now on; at first
    /// [`Landing::AtDeath`].
    pub fn set_landing(&self, landing: Landing) {
        self.0.lock().world.landing = landing;
    }

    /// Injects a fault of the medium. Several may be there; the first that strikes a read or a
    /// write decides.
    pub fn inject_media(&self, fault: MediaFault) {
        self.0.lock().world.media.inject(fault);
    }

    /// Takes all faults of the medium back that have not struck; what they did stays.
    pub fn clear_media(&self) {
        self.0.lock().world.media.clear();
    }

    /// The faults of the medium that have struck so far, and made a difference.
    #[must_use]
    pub fn media_hits(&self) -> Vec<MediaHit> {
        self.0.lock().world.media.hits.clone()
    }

    /// Has a watcher asked before and after every call and every store into a ring, as long as the
    /// returned value lives.
    pub fn watch(&self, watcher: Watcher) -> Watching {
        Watching::begin(&self.0, watcher)
    }

    /// Whether no process has died since the last [`SimDisk::handle`]: tells a death that the test
    /// placed from other errors.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.0.lock().world.died
    }

    /// Calls so far, failed ones included; stores into rings do not count.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.0.lock().world.calls
    }

    /// Stores into log rings so far (one that wraps counts twice).
    #[must_use]
    pub fn ring_writes(&self) -> u64 {
        self.0.lock().world.ring_writes
    }

    /// What was done to the file that now has this name; zeros if there is none.
    #[must_use]
    pub fn stats(&self, name: &str) -> IoStats {
        self.0.lock().world.stats(name)
    }

    /// What was done to all files, removed ones included.
    #[must_use]
    pub fn stats_total(&self) -> IoStats {
        self.0.lock().world.stats_total
    }

    /// Limits the space there is; less than is used makes every allocation fail.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.lock().world.capacity = bytes;
    }

    /// Bytes that files occupy, unlinked ones that are still open included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().world.used_bytes()
    }

    /// Sets what direct writes must be aligned to, a power of two from 512; at first 512.
    pub fn set_alignment(&self, bytes: u32) {
        assert!(bytes.is_power_of_two() && bytes >= 512);
        self.0.lock().world.alignment = bytes;
    }

    /// Rots: flips the bits of `mask` in one byte of a file, now and after a crash. `false` when
    /// there is no such byte.
    pub fn corrupt(&self, name: &str, offset: u64, mask: u8) -> bool {
        self.0.lock().world.corrupt(name, offset, mask)
    }

    /// A file's content as a reader would see it, without counting as a call.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().world.content(name)
    }

    /// Puts a file there, durable at once, without counting as a call; for hostile and golden
    /// files.
    pub fn plant(&self, name: &str, content: &[u8]) {
        self.0.lock().world.plant(name, content);
    }

    /// A hash of all calls so far with their places, sizes and data: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.lock().world.trace_hash
    }

    /// Starts or stops recording calls one by one, to find where two runs part.
    pub fn record_trace(&self, on: bool) {
        self.0.lock().world.trace = on.then(Vec::new);
    }

    /// The calls recorded since the last time.
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
    /// As [`SimDisk::fork`].
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk::of(self.forked())
    }

    /// A fork in which the process died in the middle of this call, as [`SimDisk::die_at_call`] has
    /// it; what it left undone and what done, the seed decides. Only before the call.
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

/// One process's view of the disk.
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

    fn free_bytes(&self) -> Result<u64> {
        self.disk.lock().free_bytes(self.life)
    }

    fn describe(&self) -> String {
        "simulated disk".into()
    }
}
