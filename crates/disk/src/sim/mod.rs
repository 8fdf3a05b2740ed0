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

mod crash;
mod file;
mod image;
mod inode;
mod media;
mod watch;
mod world;

use std::fmt;

use terrapin_base::Result;
use terrapin_base::sync::{Arc, Mutex};

use crate::{Disk, LogRing, OpenOptions, RingOptions};
use world::World;

pub use crash::{CrashMode, Landing};
pub use media::{Media, MediaFault, MediaHit};
pub use watch::{Call, Moment, Probe, Watcher, Watching};

/// What a power cut keeps or loses as one.
pub const SECTOR_BYTES: u64 = 512;
/// In what unit space is allocated, and ring stores reach the medium.
pub const PAGE_BYTES: u64 = 4096;

/// A call on the disk, for faults and traces. Each read of a batch is a call of its own. Asking for
/// a file's size or allocation is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // each is the method of that name
pub enum Op {
    Open,
    List,
    Remove,
    Rename,
    SyncDirectory,
    OpenRing,
    FreeBytes,
    Read,
    Write,
    Sync,
    SetBytes,
    Allocate,
    PunchHole,
    /// A store into a log ring. It cannot fail and is counted apart ([`SimDisk::ring_writes`]).
    RingWrite,
}

/// What an injected fault says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// `EIO`: [`terrapin_base::ErrorKind::Io`].
    Io,
    /// `ENOSPC`: [`terrapin_base::ErrorKind::NoSpace`].
    NoSpace,
    /// `EDQUOT`, a quota that is met: [`terrapin_base::ErrorKind::NoSpace`].
    Quota,
    /// `EMFILE`: [`terrapin_base::ErrorKind::Io`].
    TooManyFiles,
}

/// A fault to inject: which calls it looks at, how many of them it lets pass, and whether it goes
/// on.
///
/// ```
/// use terrapin_disk::sim::{Fault, FaultError, Op};
/// // The third sync of a log segment from now on fails, and every later one too.
/// let fault = Fault::nth(3, FaultError::Io).on(Op::Sync).of("log").lasting();
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) op: Option<Op>,
    pub(crate) file: Option<String>,
    pub(crate) skip: u64,
    pub(crate) error: FaultError,
    pub(crate) lasting: bool,
}

impl Fault {
    /// Fails the `n`-th call from now on (1 is the next), once.
    #[must_use]
    pub fn nth(n: u64, error: FaultError) -> Self {
        Fault {
            op: None,
            file: None,
            skip: n.saturating_sub(1),
            error,
            lasting: false,
        }
    }

    /// Looks only at calls of that kind.
    #[must_use]
    pub fn on(mut self, op: Op) -> Self {
        self.op = Some(op);
        self
    }

    /// Looks only at calls on files whose name contains this.
    #[must_use]
    pub fn of(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Fails every later call that it looks at too, until [`SimDisk::clear_faults`].
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.lasting = true;
        self
    }
}

/// What was done to a file, or to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// Reads; each of a batch counts.
    pub reads: u64,
    /// Bytes that reads asked for.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that writes brought.
    pub written_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Allocations.
    pub allocations: u64,
    /// Allocations that failed, for lack of space or otherwise.
    pub refusals: u64,
}

/// One call, as a trace records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// What was called.
    pub op: Op,
    /// On which file; empty for the directory.
    pub file: String,
    /// Where in it, or its new size.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
}

/// SplitMix64: the source of all that is random here.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A generator of its own, as random as this one.
    pub(crate) fn fork(&mut self) -> Random {
        Random(self.next())
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

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
pub struct SimDisk(Arc<Mutex<World>>);

impl SimDisk {
    /// An empty disk of 64 GiB with 512-byte blocks.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimDisk::of(World::new(seed))
    }

    /// The disk as the process that now begins sees it; dead after the next crash.
    #[must_use]
    pub fn handle(&self) -> Arc<dyn Disk> {
        let mut world = self.0.lock();
        world.died = false;
        let life = world.life;
        drop(world);
        Arc::new(Handle {
            world: self.0.clone(),
            life,
        })
    }

    /// A deep copy, as if the process had died there and its disk been cloned at this moment: no
    /// handle of this disk is valid there, nothing is locked, and what was not synced is still
    /// unsynced. Faults and watchers are not copied; faults of the medium, counters and the random
    /// state are. Costs the number of pages, not their bytes.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk::of(self.0.lock().clone().forked())
    }

    fn of(world: World) -> Self {
        SimDisk(Arc::new(Mutex::new(world)))
    }

    /// The process dies: what it wrote stays, its handles fail from now on, its locks are gone.
    pub fn crash_process(&self) {
        self.0.lock().die();
    }

    /// The power fails: the process dies, and of what no sync covered the mode decides. What is
    /// left is durable afterwards.
    pub fn crash_power(&self, mode: CrashMode) {
        let mut world = self.0.lock();
        world.die();
        world.lose_power(mode);
    }

    /// Injects a fault. Several may be there; the first that matches decides.
    pub fn inject(&self, fault: Fault) {
        self.0.lock().faults.push(fault);
    }

    /// Takes all injected faults back.
    pub fn clear_faults(&self) {
        self.0.lock().faults.clear();
    }

    /// The process dies in the `n`-th call from now on (1 is the next): a write may have stored
    /// some of its sectors, a change of the directory may have happened or not. That call and all
    /// later ones fail; the disk stays for the test to crash further and to open again.
    pub fn die_at_call(&self, n: u64) {
        let mut world = self.0.lock();
        world.die_at_call = Some(world.calls.saturating_add(n.max(1)));
    }

    /// The process dies in the `n`-th store into a log ring from now on (1 is the next), which may
    /// have stored only its first bytes.
    pub fn die_at_ring_write(&self, n: u64) {
        let mut world = self.0.lock();
        world.die_at_ring_write = Some(world.ring_writes.saturating_add(n.max(1)));
    }

    /// Says what becomes of a write in whose midst the process dies from now on; at first
    /// [`Landing::AtDeath`].
    pub fn set_landing(&self, landing: Landing) {
        self.0.lock().landing = landing;
    }

    /// Injects a fault of the medium. Several may be there; the first that strikes a read or a
    /// write decides.
    pub fn inject_media(&self, fault: MediaFault) {
        self.0.lock().media.inject(fault);
    }

    /// Takes all faults of the medium back that have not struck; what they did stays.
    pub fn clear_media(&self) {
        self.0.lock().media.clear();
    }

    /// The faults of the medium that have struck so far, and made a difference.
    #[must_use]
    pub fn media_hits(&self) -> Vec<MediaHit> {
        self.0.lock().media.hits().to_vec()
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
        !self.0.lock().died
    }

    /// Calls so far, failed ones included; stores into rings do not count.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.0.lock().calls
    }

    /// Stores into log rings so far (one that wraps counts twice).
    #[must_use]
    pub fn ring_writes(&self) -> u64 {
        self.0.lock().ring_writes
    }

    /// What was done to the file that now has this name; zeros if there is none.
    #[must_use]
    pub fn stats(&self, name: &str) -> IoStats {
        self.0.lock().stats(name)
    }

    /// What was done to all files, removed ones included.
    #[must_use]
    pub fn stats_total(&self) -> IoStats {
        self.0.lock().stats_total
    }

    /// Limits the space there is; less than is used makes every allocation fail.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.lock().capacity = bytes;
    }

    /// Bytes that files occupy, unlinked ones that are still open included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used_bytes()
    }

    /// Sets what direct writes must be aligned to, a power of two from 512; at first 512.
    pub fn set_alignment(&self, bytes: u32) {
        assert!(bytes.is_power_of_two() && bytes >= 512);
        self.0.lock().alignment = bytes;
    }

    /// Rots: flips the bits of `mask` in one byte of a file, now and after a crash. `false` when
    /// there is no such byte.
    pub fn corrupt(&self, name: &str, offset: u64, mask: u8) -> bool {
        self.0.lock().corrupt(name, offset, mask)
    }

    /// A file's content as a reader would see it, without counting as a call.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().content(name)
    }

    /// Puts a file there, durable at once, without counting as a call; for hostile and golden
    /// files.
    pub fn plant(&self, name: &str, content: &[u8]) {
        self.0.lock().plant(name, content);
    }

    /// A hash of all calls so far with their places, sizes and data: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.lock().trace_hash
    }

    /// Starts or stops recording calls one by one, to find where two runs part.
    pub fn record_trace(&self, on: bool) {
        self.0.lock().trace = on.then(Vec::new);
    }

    /// The calls recorded since the last time.
    #[must_use]
    pub fn take_trace(&self) -> Vec<IoEvent> {
        self.0
            .lock()
            .trace
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.0.lock();
        write!(f, "SimDisk(life {}, {} calls)", world.life, world.calls)
    }
}

/// One process's view of the disk.
struct Handle {
    world: Arc<Mutex<World>>,
    life: u64,
}

impl Disk for Handle {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn crate::File>> {
        crate::check_options(name, options)?;
        let inode = self.world.lock().open(self.life, name, options)?;
        Ok(Arc::new(file::SimFile {
            world: self.world.clone(),
            life: self.life,
            inode,
            name: name.into(),
            options,
        }))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.world.lock().list(self.life)
    }

    fn remove(&self, name: &str) -> Result<()> {
        crate::check_name(name)?;
        self.world.lock().remove(self.life, name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        crate::check_name(from)?;
        crate::check_name(to)?;
        self.world.lock().rename(self.life, from, to)
    }

    fn sync_directory(&self) -> Result<()> {
        self.world.lock().sync_directory(self.life)
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        crate::check_name(name)?;
        if ring.create {
            RingOptions::check_asked(ring.bytes, name)?;
        }
        let (inode, bytes) = self.world.lock().open_ring(self.life, name, ring)?;
        let store = file::SimRing {
            world: self.world.clone(),
            life: self.life,
            inode,
            name: name.into(),
        };
        Ok(LogRing::stored(Box::new(store), bytes))
    }

    fn free_bytes(&self) -> Result<u64> {
        self.world.lock().free_bytes(self.life)
    }

    fn describe(&self) -> String {
        "simulated disk".into()
    }
}
