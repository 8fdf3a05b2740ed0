//! The disk with its watchers: they see each call before it begins and after it ended.

use terrapin_base::sync::{Arc, Mutex};
use terrapin_base::{Error, Result};

use super::op::Op;
use super::watch::{Call, Moment, Probe, Watcher};
use super::world::World;
use crate::{OpenOptions, READERS_BYTES, RingOptions};

/// The state of the disk, and its watchers.
pub(super) struct Watched {
    pub(super) world: World,
    watchers: Vec<(u64, Watcher)>,
    last_watcher: u64,
}

/// Keeps a watcher registered. Dropping it removes the watcher; a watcher must not drop it.
#[must_use = "the watcher goes when this is dropped"]
pub struct Watching {
    watched: Arc<Mutex<Watched>>,
    id: u64,
}

impl Watching {
    pub(super) fn begin(watched: &Arc<Mutex<Watched>>, watcher: Watcher) -> Self {
        let mut locked = watched.lock();
        locked.last_watcher += 1;
        let id = locked.last_watcher;
        locked.watchers.push((id, watcher));
        Watching {
            watched: watched.clone(),
            id,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.watched.lock();
        watched.watchers.retain(|(id, _)| *id != self.id);
    }
}

impl Watched {
    /// A disk without watchers.
    pub(super) fn new(world: World) -> Self {
        Watched {
            world,
            watchers: Vec::new(),
            last_watcher: 0,
        }
    }

    fn tell(&mut self, call: Call<'_>) {
        let probe = Probe::new(&self.world, call);
        for (_, watcher) in &mut self.watchers {
            watcher(&probe, &call);
        }
    }

    /// Makes a call, with its watchers called before and after it. A call of a dead process has no
    /// watchers.
    fn watched<T>(
        &mut self,
        life: u64,
        call: Call<'_>,
        make: impl FnOnce(&mut World) -> Result<T>,
    ) -> Result<T> {
        if self.watchers.is_empty() || life != self.world.life {
            return make(&mut self.world);
        }
        let number = match call.op {
            Op::RingWrite => self.world.ring_writes + 1,
            _ => self.world.calls + 1,
        };
        let call = Call { number, ..call };
        self.tell(call);
        let outcome = make(&mut self.world);
        self.tell(Call {
            moment: Moment::After {
                failed: outcome.is_err() || life != self.world.life,
            },
            ..call
        });
        outcome
    }

    pub(super) fn open(&mut self, life: u64, name: &str, options: OpenOptions) -> Result<u64> {
        let call = Call {
            options,
            ..Call::new(Op::Open, name)
        };
        self.watched(life, call, |world| world.open(life, name, options))
    }

    pub(super) fn list(&mut self, life: u64) -> Result<Vec<String>> {
        self.watched(life, Call::new(Op::List, ""), |world| world.list(life))
    }

    pub(super) fn remove(&mut self, life: u64, name: &str) -> Result<()> {
        let call = Call::new(Op::Remove, name);
        self.watched(life, call, |world| world.remove(life, name))
    }

    pub(super) fn rename(&mut self, life: u64, from: &str, to: &str) -> Result<()> {
        let call = Call {
            to,
            ..Call::new(Op::Rename, from)
        };
        self.watched(life, call, |world| world.rename(life, from, to))
    }

    pub(super) fn sync_directory(&mut self, life: u64) -> Result<()> {
        let call = Call::new(Op::SyncDirectory, "");
        self.watched(life, call, |world| world.sync_directory(life))
    }

    pub(super) fn free_bytes(&mut self, life: u64) -> Result<u64> {
        let call = Call::new(Op::FreeBytes, "");
        self.watched(life, call, |world| world.free_bytes(life))
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
            world.read(life, number, name, offset, out)
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
            world.write(life, number, name, offset, bytes)
        })
    }

    pub(super) fn sync(&mut self, life: u64, number: u64, name: &str) -> Result<()> {
        let call = Call::new(Op::Sync, name).of(number);
        self.watched(life, call, |world| world.sync(life, number, name))
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
            world.set_bytes(life, number, name, bytes)
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
            world.allocate(life, number, name, offset, bytes)
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
            world.punch(life, number, name, offset, bytes)
        })
    }

    /// Opens a ring: one call for the opening, then the steps of the real disk as calls. Each call
    /// may fail, and the process may die in it.
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
            self.world.close(life, number, options);
        }
        outcome.map(|bytes| (number, bytes))
    }

    fn prepare_ring(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        ring: RingOptions,
    ) -> Result<u64> {
        self.world.inode(number, name)?.is_ring = true;
        if ring.create {
            self.allocate(life, number, name, 0, ring.bytes)?;
            let zeros = vec![0; usize::try_from(ring.bytes.min(1 << 20)).unwrap_or(1 << 20)];
            for offset in (0..ring.bytes).step_by(zeros.len()) {
                self.write(life, number, name, offset, &zeros)?;
            }
            self.sync(life, number, name)?;
            self.sync_directory(life)?;
            return Ok(ring.bytes);
        }
        let bytes = self.world.image(number, name)?.bytes();
        RingOptions::check_found(bytes, name)?;
        self.allocate(life, number, name, 0, bytes)?;
        Ok(bytes)
    }

    /// Opens a table of readers in the steps of the real disk. Returns its inode, and a number for
    /// the handle.
    pub(super) fn open_readers(
        &mut self,
        life: u64,
        name: &str,
        create: bool,
    ) -> Result<(u64, u64)> {
        if create {
            let options = OpenOptions {
                create_new: !self.world.names.contains_key(name),
                write: true,
                ..OpenOptions::default()
            };
            let number = self.open(life, name, options)?;
            let allocated = self.allocate(life, number, name, 0, READERS_BYTES);
            // The real disk takes no lock on this file.
            self.world.close(life, number, options);
            allocated?;
        }
        let number = self.open(life, name, OpenOptions::default())?;
        let inode = self.world.inode(number, name)?;
        inode.is_ring = true;
        let bytes = inode.current.bytes();
        if bytes != READERS_BYTES {
            self.world.close(life, number, OpenOptions::default());
            return Err(Error::corrupt("the table of readers has another size")
                .with("file", name)
                .with("bytes", bytes)
                .with("expected", READERS_BYTES));
        }
        self.world.next_table += 1;
        Ok((number, self.world.next_table))
    }

    pub(super) fn ring_write(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) {
        if life != self.world.life {
            return;
        }
        let call = Call::new(Op::RingWrite, name)
            .of(number)
            .writing(offset, bytes);
        let stored = self.watched(life, call, |world| {
            world.ring_write(number, name, offset, bytes);
            Ok(())
        });
        debug_assert!(stored.is_ok());
    }
}
