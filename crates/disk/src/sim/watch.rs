//! Watching a simulated disk: what is told of every call before it and after it, and the forks that
//! can be taken from there.

use std::fmt;
use std::ops::Range;

use terrapin_base::Result;
use terrapin_base::sync::{Arc, Mutex};

use super::crash::Landing;
use super::world::World;
use super::{Op, Random, SimDisk};
use crate::{OpenOptions, RingOptions};

/// When a watcher is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing of the call has happened.
    Before,
    /// It is over.
    After {
        /// Its outcome is an error, or the process died in it: then parts of it may have happened.
        failed: bool,
    },
}

/// A call on the disk or a store into a ring, as a watcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is called.
    pub op: Op,
    /// Which call it is: [`SimDisk::io_count`] after it; for a store into a ring,
    /// [`SimDisk::ring_writes`] after it.
    pub number: u64,
    /// Before or after.
    pub moment: Moment,
    /// On which file; empty for the directory.
    pub file: &'a str,
    /// What it is renamed to; empty otherwise.
    pub to: &'a str,
    /// How it is opened.
    pub options: OpenOptions,
    /// Where in the file; for [`Op::SetBytes`] zero.
    pub offset: u64,
    /// How much; for [`Op::SetBytes`] the new size.
    pub bytes: u64,
    /// What is written.
    pub data: &'a [u8],
    inode: u64,
}

impl<'a> Call<'a> {
    fn new(op: Op, file: &'a str) -> Self {
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

    fn of(self, inode: u64) -> Self {
        Call { inode, ..self }
    }

    fn at(self, offset: u64, bytes: u64) -> Self {
        Call {
            offset,
            bytes,
            ..self
        }
    }

    fn writing(self, offset: u64, data: &'a [u8]) -> Self {
        Call {
            data,
            ..self.at(offset, data.len() as u64)
        }
    }

    /// Whether it may change what the disk holds, or what of it is durable.
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

/// What is asked about every call.
pub type Watcher = Box<dyn FnMut(&Probe<'_>, &Call<'_>) + Send>;

/// The disk at the moment of a call. It is locked meanwhile: a watcher must ask here, never the
/// [`SimDisk`] itself; forks are free.
pub struct Probe<'a> {
    world: &'a World,
    call: Call<'a>,
}

impl Probe<'_> {
    /// As [`SimDisk::fork`].
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        SimDisk::of(self.world.clone().forked())
    }

    /// A fork in which the process died in the middle of this call, as [`SimDisk::die_at_call`] has
    /// it; what it left undone and what done, the seed decides. Only before the call.
    #[must_use]
    pub fn fork_within(&self, seed: u64, landing: Landing) -> SimDisk {
        let mut world = self.world.clone();
        world.random = Random::new(seed);
        world.landing = landing;
        world.faults.clear();
        world.die_at_call = Some(world.calls + 1);
        world.die_at_ring_write = Some(world.ring_writes + 1);
        if self.call.moment == Moment::Before {
            world.replay(&self.call);
        }
        SimDisk::of(world.forked())
    }

    /// As [`SimDisk::is_alive`].
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.world.died
    }

    /// As [`SimDisk::content`].
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.world.content(name)
    }

    /// The size of the file of that name.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<u64> {
        self.world.bytes_of(name)
    }

    /// Which process it is that calls: another number after every crash.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.world.life
    }

    /// Reads a file as the process would, without a call; `false` when it is not that long.
    pub fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> bool {
        let inode = self.world.inode_of(&self.world.names, name);
        inode.is_some_and(|inode| inode.current.read_within(offset, out))
    }

    /// Reads what a power cut that loses all it can would leave of a file; `false` when it is not
    /// that long then.
    pub fn read_durable(&self, name: &str, offset: u64, out: &mut [u8]) -> bool {
        let inode = self.world.inode_of(&self.world.durable_names, name);
        inode.is_some_and(|inode| inode.durable.read_within(offset, out))
    }

    /// Whether a range of a file is on the medium for sure, with the file's name, as the process
    /// sees it.
    #[must_use]
    pub fn is_durable(&self, name: &str, range: Range<u64>) -> bool {
        self.world.names.get(name) == self.world.durable_names.get(name)
            && self
                .world
                .inode_of(&self.world.names, name)
                .is_some_and(|inode| inode.current.agrees(&inode.durable, range))
    }

    /// As [`SimDisk::io_count`].
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.world.calls
    }

    /// As [`SimDisk::ring_writes`].
    #[must_use]
    pub fn ring_writes(&self) -> u64 {
        self.world.ring_writes
    }
}

/// Watchers of one disk. A copy of the disk has none.
#[derive(Default)]
pub(super) struct Watchers {
    all: Vec<(u64, Watcher)>,
    last: u64,
}

impl Clone for Watchers {
    fn clone(&self) -> Self {
        Watchers::default()
    }
}

/// Keeps a watcher on its disk; it goes when this is dropped, which must not be in a watcher.
#[must_use = "the watcher goes when this is dropped"]
pub struct Watching {
    world: Arc<Mutex<World>>,
    id: u64,
}

impl Watching {
    pub(super) fn begin(world: &Arc<Mutex<World>>, watcher: Watcher) -> Self {
        let mut locked = world.lock();
        let watchers = &mut locked.watchers;
        watchers.last += 1;
        let id = watchers.last;
        watchers.all.push((id, watcher));
        Watching {
            world: world.clone(),
            id,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.watchers.all.retain(|(id, _)| *id != self.id);
    }
}

/// The calls, each watched.
impl World {
    fn tell(&mut self, call: Call<'_>) {
        let mut watchers = std::mem::take(&mut self.watchers);
        let probe = Probe { world: self, call };
        for (_, watcher) in &mut watchers.all {
            watcher(&probe, &call);
        }
        self.watchers = watchers;
    }

    /// Tells the watchers of a call, makes it, and tells them again. The calls of the dead are
    /// none.
    fn watched<T>(
        &mut self,
        life: u64,
        call: Call<'_>,
        make: impl FnOnce(&mut World) -> Result<T>,
    ) -> Result<T> {
        if self.watchers.all.is_empty() || life != self.life {
            return make(self);
        }
        let number = match call.op {
            Op::RingWrite => self.ring_writes + 1,
            _ => self.calls + 1,
        };
        let call = Call { number, ..call };
        self.tell(call);
        let outcome = make(self);
        self.tell(Call {
            moment: Moment::After {
                failed: outcome.is_err() || life != self.life,
            },
            ..call
        });
        outcome
    }

    /// Makes a call in a copy of the world in which it was about to be made. How it goes shows in
    /// what the copy holds.
    fn replay(&mut self, call: &Call<'_>) {
        let (life, inode, file) = (self.life, call.inode, call.file);
        let (offset, bytes) = (call.offset, call.bytes);
        let outcome = match call.op {
            Op::Open => self.open_now(life, file, call.options).map(drop),
            Op::List | Op::OpenRing | Op::FreeBytes | Op::Read => Ok(()),
            Op::Remove => self.remove_now(life, file),
            Op::Rename => self.rename_now(life, file, call.to),
            Op::SyncDirectory => self.sync_directory_now(life),
            Op::Write => self.write_now(life, inode, file, offset, call.data),
            Op::Sync => self.sync_now(life, inode, file),
            Op::SetBytes => self.set_bytes_now(life, inode, file, bytes),
            Op::Allocate => self.allocate_now(life, inode, file, offset, bytes),
            Op::PunchHole => self.punch_now(life, inode, file, offset, bytes),
            Op::RingWrite => {
                self.ring_write_now(inode, file, offset, call.data);
                Ok(())
            }
        };
        // The process is dead either way, and nobody is there to be told.
        drop(outcome);
    }

    pub(super) fn open(&mut self, life: u64, name: &str, options: OpenOptions) -> Result<u64> {
        let call = Call {
            options,
            ..Call::new(Op::Open, name)
        };
        self.watched(life, call, |world| world.open_now(life, name, options))
    }

    pub(super) fn list(&mut self, life: u64) -> Result<Vec<String>> {
        self.watched(life, Call::new(Op::List, ""), |world| world.list_now(life))
    }

    pub(super) fn remove(&mut self, life: u64, name: &str) -> Result<()> {
        let call = Call::new(Op::Remove, name);
        self.watched(life, call, |world| world.remove_now(life, name))
    }

    pub(super) fn rename(&mut self, life: u64, from: &str, to: &str) -> Result<()> {
        let call = Call {
            to,
            ..Call::new(Op::Rename, from)
        };
        self.watched(life, call, |world| world.rename_now(life, from, to))
    }

    pub(super) fn sync_directory(&mut self, life: u64) -> Result<()> {
        let call = Call::new(Op::SyncDirectory, "");
        self.watched(life, call, |world| world.sync_directory_now(life))
    }

    pub(super) fn free_bytes(&mut self, life: u64) -> Result<u64> {
        let call = Call::new(Op::FreeBytes, "");
        self.watched(life, call, |world| world.free_bytes_now(life))
    }

    pub(super) fn read(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let call = Call::new(Op::Read, name)
            .of(number)
            .at(offset, out.len() as u64);
        self.watched(life, call, |world| {
            world.read_now(life, number, name, offset, out)
        })
    }

    pub(super) fn write(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let call = Call::new(Op::Write, name).of(number).writing(offset, bytes);
        self.watched(life, call, |world| {
            world.write_now(life, number, name, offset, bytes)
        })
    }

    pub(super) fn sync(&mut self, life: u64, number: u64, name: &str) -> Result<()> {
        let call = Call::new(Op::Sync, name).of(number);
        self.watched(life, call, |world| world.sync_now(life, number, name))
    }

    pub(super) fn set_bytes(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        bytes: u64,
    ) -> Result<()> {
        let call = Call::new(Op::SetBytes, name).of(number).at(0, bytes);
        self.watched(life, call, |world| {
            world.set_bytes_now(life, number, name, bytes)
        })
    }

    pub(super) fn allocate(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let call = Call::new(Op::Allocate, name).of(number).at(offset, bytes);
        self.watched(life, call, |world| {
            world.allocate_now(life, number, name, offset, bytes)
        })
    }

    pub(super) fn punch(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let call = Call::new(Op::PunchHole, name).of(number).at(offset, bytes);
        self.watched(life, call, |world| {
            world.punch_now(life, number, name, offset, bytes)
        })
    }

    /// Opens a ring: a call of its own, and then the real disk's steps, each a call that may fail
    /// or be the last one.
    pub(super) fn open_ring(
        &mut self,
        life: u64,
        name: &str,
        ring: RingOptions,
    ) -> Result<(u64, u64)> {
        let call = Call::new(Op::OpenRing, name).at(0, ring.bytes);
        self.watched(life, call, |world| world.begin_ring(life, name, ring))?;
        let options = OpenOptions {
            create_new: ring.create,
            write: true,
            ..OpenOptions::default()
        };
        let number = self.open(life, name, options)?;
        let outcome = self.prepare_ring(life, number, name, ring);
        if outcome.is_err() {
            self.close(life, number, options);
        }
        outcome.map(|bytes| (number, bytes))
    }

    pub(super) fn ring_write(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) {
        if life != self.life {
            return;
        }
        let call = Call::new(Op::RingWrite, name)
            .of(number)
            .writing(offset, bytes);
        let stored = self.watched(life, call, |world| {
            world.ring_write_now(number, name, offset, bytes);
            Ok(())
        });
        debug_assert!(stored.is_ok());
    }
}
