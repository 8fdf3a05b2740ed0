//! What a watcher sees of a simulated disk: each call, and a probe of the disk at that moment.

use std::fmt;
use std::ops::Range;

use super::in_flight::Landing;
use super::op::Op;
use super::random::Random;
use super::world::World;
use crate::OpenOptions;

/// The moment at which a watcher is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The call has not begun.
    Before,
    /// The call is over.
    After {
        /// Whether the call failed or the process died in it. Parts of the call may have happened.
        failed: bool,
    },
}

/// A call on the disk, or a store into a ring, as a watcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The kind of the call.
    pub op: Op,
    /// The call's number: [`super::SimDisk::io_count`] after the call. For a store into a ring,
    /// [`super::SimDisk::ring_writes`] after the store.
    pub number: u64,
    /// Whether the call is about to begin or is over.
    pub moment: Moment,
    /// The file's name; empty for the directory.
    pub file: &'a str,
    /// The new name of a renamed file; empty for other calls.
    pub to: &'a str,
    /// The options of an open.
    pub options: OpenOptions,
    /// Offset in the file in bytes; 0 for [`Op::SetBytes`].
    pub offset: u64,
    /// Length in bytes; for [`Op::SetBytes`] the new size.
    pub bytes: u64,
    /// The bytes of a write.
    pub data: &'a [u8],
    pub(super) inode: u64,
}

impl<'a> Call<'a> {
    pub(super) fn new(op: Op, file: &'a str) -> Self {
        Call {
            op,
            number: 0,
            moment: Moment::Before,
            file,
            to: "",
            options: OpenOptions::default(),
            offset: 0,
            bytes: 0,
            data: &[],
            inode: 0,
        }
    }

    pub(super) fn of(self, inode: u64) -> Self {
        Call { inode, ..self }
    }

    pub(super) fn at(self, offset: u64, bytes: u64) -> Self {
        Call {
            offset,
            bytes,
            ..self
        }
    }

    pub(super) fn writing(self, offset: u64, data: &'a [u8]) -> Self {
        Call {
            data,
            ..self.at(offset, data.len() as u64)
        }
    }

    /// Makes this call in a copy of the disk from before the call. The copy's content shows the
    /// outcome.
    fn replay(&self, world: &mut World) {
        let (life, inode, file) = (world.life, self.inode, self.file);
        let (offset, bytes) = (self.offset, self.bytes);
        let outcome = match self.op {
            Op::Open => world.open(life, file, self.options).map(drop),
            Op::List | Op::OpenRing | Op::FreeBytes | Op::Read => Ok(()),
            Op::Remove => world.remove(life, file),
            Op::Rename => world.rename(life, file, self.to),
            Op::SyncDirectory => world.sync_directory(life),
            Op::Write => world.write(life, inode, file, offset, self.data),
            Op::Sync => world.sync(life, inode, file),
            Op::SetBytes => world.set_bytes(life, inode, file, bytes),
            Op::Allocate => world.allocate(life, inode, file, offset, bytes),
            Op::PunchHole => world.punch(life, inode, file, offset, bytes),
            Op::RingWrite => {
                world.ring_write(inode, file, offset, self.data);
                Ok(())
            }
        };
        // The process is dead in either case, so no caller can see the outcome.
        drop(outcome);
    }

    /// Whether the call may change the disk's content, or which part of it is durable.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.op {
            Op::Open => self.options.create_new,
            Op::List | Op::OpenRing | Op::FreeBytes | Op::Read => false,
            Op::Remove
            | Op::Rename
            | Op::SyncDirectory
            | Op::Write
            | Op::Sync
            | Op::SetBytes
            | Op::Allocate
            | Op::PunchHole
            | Op::RingWrite => true,
        }
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}: {:?}", self.number, self.op)?;
        if !self.file.is_empty() {
            write!(f, " {}", self.file)?;
        }
        if !self.to.is_empty() {
            write!(f, " to {}", self.to)?;
        }
        if self.bytes > 0 || self.offset > 0 {
            write!(f, " at {}, {} bytes", self.offset, self.bytes)?;
        }
        Ok(())
    }
}

/// A function that is called before and after every call.
pub type Watcher = Box<dyn FnMut(&Probe<'_>, &Call<'_>) + Send>;

/// The disk at the moment of a call. The disk is locked meanwhile: a watcher may use this probe and
/// forks, but never the [`super::SimDisk`] itself.
pub struct Probe<'a> {
    world: &'a World,
    call: Call<'a>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(world: &'a World, call: Call<'a>) -> Self {
        Probe { world, call }
    }
}

impl Probe<'_> {
    /// A copy of the disk whose process is dead.
    pub(super) fn forked(&self) -> World {
        self.world.clone().forked()
    }

    /// A copy of the disk in which the process died during this call.
    pub(super) fn forked_within(&self, seed: u64, landing: Landing) -> World {
        let mut world = self.world.clone();
        world.random = Random::new(seed);
        world.landing = landing;
        world.faults.clear();
        world.die_at_call = Some(world.calls + 1);
        world.die_at_ring_write = Some(world.ring_writes + 1);
        if self.call.moment == Moment::Before {
            self.call.replay(&mut world);
        }
        world.forked()
    }

    /// Whether the process is alive, as [`super::SimDisk::is_alive`] says it.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.world.died
    }

    /// A file's content, as [`super::SimDisk::content`] returns it.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.world.content(name)
    }

    /// The size in bytes of the file of that name.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<u64> {
        self.world.bytes_of(name)
    }

    /// The number of the calling process. Every crash raises it.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.world.life
    }

    /// Reads a file as the process would. Returns `false` if the file is too short. Not a call.
    pub fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> bool {
        let inode = self.world.inode_of(&self.world.names, name);
        inode.is_some_and(|inode| inode.current.read_within(offset, out))
    }

    /// Reads what a power cut with [`super::CrashMode::LoseUnsynced`] would leave of a file.
    /// Returns `false` if too little would be left.
    pub fn read_durable(&self, name: &str, offset: u64, out: &mut [u8]) -> bool {
        let inode = self.world.inode_of(&self.world.durable_names, name);
        inode.is_some_and(|inode| inode.durable.read_within(offset, out))
    }

    /// Whether a range of a file, as the process sees it, survives every power cut together with
    /// the file's name.
    #[must_use]
    pub fn is_durable(&self, name: &str, range: Range<u64>) -> bool {
        self.world.names.get(name) == self.world.durable_names.get(name)
            && self
                .world
                .inode_of(&self.world.names, name)
                .is_some_and(|inode| inode.current.agrees(&inode.durable, range))
    }

    /// Number of calls so far, as [`super::SimDisk::io_count`] returns it.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.world.calls
    }

    /// Number of ring stores so far, as [`super::SimDisk::ring_writes`] returns it.
    #[must_use]
    pub fn ring_writes(&self) -> u64 {
        self.world.ring_writes
    }
}
