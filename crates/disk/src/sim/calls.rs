//! The calls of a process on the simulated disk: what each call does, and how it fails.
//!
//! Each call counts, enters the trace, and may meet an injected fault or the death of the process.

use terrapin_base::{Error, ErrorKind, Result, checksum};

use super::fault::FaultError;
use super::image::sectors;
use super::in_flight::Landing;
use super::inode::{Change, Inode, NameChange};
use super::op::Op;
use super::world::World;
use crate::{OpenOptions, RingOptions};

/// The outcome that is chosen for a call before its work begins.
enum Verdict {
    Go,
    Fail(Error),
    Die(Error),
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "no such file").with("file", name)
}

impl World {
    /// Counts a call and decides how it goes.
    fn begin(&mut self, life: u64, op: Op, name: &str, offset: u64, bytes: u64) -> Result<Verdict> {
        self.begin_with(life, op, name, offset, bytes, 0)
    }

    fn begin_with(
        &mut self,
        life: u64,
        op: Op,
        name: &str,
        offset: u64,
        bytes: u64,
        data: u64,
    ) -> Result<Verdict> {
        self.check_life(life)?;
        self.land_one();
        self.calls += 1;
        self.record(op, name, offset, bytes, data);
        if self.die_at_call.is_some_and(|at| at <= self.calls) {
            self.die_at_call = None;
            return Ok(Verdict::Die(Self::dead()));
        }
        let mut verdict = Verdict::Go;
        self.faults.retain_mut(|fault| {
            let matches = fault.op.is_none_or(|o| o == op)
                && fault.file.as_deref().is_none_or(|part| name.contains(part));
            if !matches {
                return true;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                return true;
            }
            if matches!(verdict, Verdict::Go) {
                verdict = Verdict::Fail(fault.error.of(op, name));
                return fault.lasting;
            }
            true
        });
        Ok(verdict)
    }

    /// Begins a call that fails without effect, and that is atomic when the process dies in it.
    ///
    /// Returns an error in `Ok` if the process dies after the change. The caller makes the change
    /// and then passes this error to [`World::end`].
    fn begin_atomic(
        &mut self,
        life: u64,
        op: Op,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<Error>> {
        match self.begin(life, op, name, offset, bytes)? {
            Verdict::Go => Ok(None),
            Verdict::Fail(error) => Err(error),
            Verdict::Die(error) if self.random.coin() => Ok(Some(error)),
            Verdict::Die(error) => {
                self.die();
                Err(error)
            }
        }
    }

    /// Ends a call that [`World::begin_atomic`] began. Kills the process if `error` is present.
    fn end(&mut self, error: Option<Error>) -> Result<()> {
        match error {
            None => Ok(()),
            Some(error) => {
                self.die();
                Err(error)
            }
        }
    }

    // The directory

    pub(super) fn open(&mut self, life: u64, name: &str, options: OpenOptions) -> Result<u64> {
        let dying = self.begin_atomic(life, Op::Open, name, u64::from(options.create_new), 0)?;
        let found = self.names.get(name).copied();
        let number = match (found, options.create_new) {
            (Some(number), false) => number,
            (None, true) => {
                let number = self.next_inode;
                self.next_inode += 1;
                let inode = Inode {
                    birth: self.trace_hash | 1,
                    ..Inode::default()
                };
                self.inodes.insert(number, inode);
                self.change_name(NameChange::Link(name.into(), number));
                number
            }
            (None, false) => return self.end(dying).and(Err(not_found(name))),
            (Some(_), true) => {
                self.end(dying)?;
                return Err(
                    Error::new(ErrorKind::AlreadyExists, "the file exists already")
                        .with("file", name),
                );
            }
        };
        self.end(dying)?;
        if options.write || options.shared {
            self.land_all(number);
        }
        let inode = self.inode(number, name)?;
        let message = if inode.locked {
            "the file is open for writing elsewhere"
        } else {
            "the file is open for shared reading elsewhere"
        };
        if (options.write || options.shared) && inode.locked || options.write && inode.sharers > 0 {
            return Err(Error::new(ErrorKind::Locked, message).with("file", name));
        }
        inode.locked |= options.write;
        inode.sharers += u64::from(options.shared);
        inode.handles += 1;
        Ok(number)
    }

    pub(super) fn close(&mut self, life: u64, number: u64, options: OpenOptions) {
        if life != self.life {
            return;
        }
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.handles -= 1;
            if options.write {
                inode.locked = false;
            }
            inode.sharers -= u64::from(options.shared);
            if inode.handles == 0 {
                self.collect();
            }
        }
    }

    pub(super) fn list(&mut self, life: u64) -> Result<Vec<String>> {
        let dying = self.begin_atomic(life, Op::List, "", 0, 0)?;
        self.end(dying)?;
        Ok(self.names.keys().cloned().collect())
    }

    pub(super) fn remove(&mut self, life: u64, name: &str) -> Result<()> {
        let dying = self.begin_atomic(life, Op::Remove, name, 0, 0)?;
        if !self.names.contains_key(name) {
            return self.end(dying).and(Err(not_found(name)));
        }
        self.change_name(NameChange::Unlink(name.into()));
        self.end(dying)
    }

    pub(super) fn rename(&mut self, life: u64, from: &str, to: &str) -> Result<()> {
        let to_hash = u64::from(checksum::crc32c(to.as_bytes()));
        let dying = self.begin_atomic(life, Op::Rename, from, to_hash, 0)?;
        let Some(&number) = self.names.get(from) else {
            return self.end(dying).and(Err(not_found(from)));
        };
        if from != to {
            self.change_name(NameChange::Rename(from.into(), to.into(), number));
        }
        self.end(dying)
    }

    pub(super) fn sync_directory(&mut self, life: u64) -> Result<()> {
        let dying = self.begin_atomic(life, Op::SyncDirectory, "", 0, 0)?;
        self.durable_names = self.names.clone();
        self.pending_names.clear();
        self.end(dying)?;
        self.collect();
        Ok(())
    }

    pub(super) fn free_bytes(&mut self, life: u64) -> Result<u64> {
        let dying = self.begin_atomic(life, Op::FreeBytes, "", 0, 0)?;
        self.end(dying)?;
        Ok(self.capacity.saturating_sub(self.used_bytes()))
    }

    // Files

    pub(super) fn read(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let dying = self.begin_atomic(life, Op::Read, name, offset, out.len() as u64)?;
        self.end(dying)?;
        self.stats_total.reads += 1;
        self.stats_total.read_bytes += out.len() as u64;
        let inode = self.inode(number, name)?;
        inode.stats.reads += 1;
        inode.stats.read_bytes += out.len() as u64;
        let end = offset.checked_add(out.len() as u64);
        if !out.is_empty() && end.is_none_or(|end| end > inode.current.bytes()) {
            return Err(crate::past_end(name, offset, out.len()));
        }
        inode.current.read(offset, out);
        let outcome = self.read_from_medium(number, name, offset, out);
        self.mix(u64::from(checksum::crc32c(out)));
        outcome
    }

    pub(super) fn write(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let data = u64::from(checksum::crc32c(bytes));
        let length = bytes.len() as u64;
        let verdict = self.begin_with(life, Op::Write, name, offset, length, data)?;
        self.stats_total.writes += 1;
        self.stats_total.written_bytes += length;
        let stats = &mut self.inode(number, name)?.stats;
        stats.writes += 1;
        stats.written_bytes += length;
        let (fits, outcome) = match verdict {
            Verdict::Go => match self.room_for(number, name, offset, length)? {
                fits if fits == length => {
                    return self.store_on_medium(number, name, offset, bytes);
                }
                fits => (fits, Err(FaultError::NoSpace.of(Op::Write, name))),
            },
            Verdict::Fail(error) => (self.part_of(number, name, offset, bytes)?, Err(error)),
            Verdict::Die(error) => {
                let part = self.part_of(number, name, offset, bytes)?;
                let (stored, rest) = bytes.split_at(part as usize);
                self.store(number, name, offset, stored)?;
                if self.landing == Landing::Later {
                    let fits = self.room_for(number, name, offset + part, rest.len() as u64)?;
                    self.in_flight
                        .take_off(number, offset + part, &rest[..fits as usize]);
                }
                self.die();
                return Err(error);
            }
        };
        self.store(number, name, offset, &bytes[..fits as usize])?;
        outcome
    }

    /// Bytes of a broken-off write that reach the file: some whole sectors, as far as space allows.
    fn part_of(&mut self, number: u64, name: &str, offset: u64, bytes: &[u8]) -> Result<u64> {
        let count = sectors(offset, bytes).count() as u64;
        let kept = self.random.below(count + 1) as usize;
        let part: usize = sectors(offset, bytes)
            .take(kept)
            .map(|(_, sector)| sector.len())
            .sum();
        self.room_for(number, name, offset, part as u64)
    }

    pub(super) fn sync(&mut self, life: u64, number: u64, name: &str) -> Result<()> {
        let verdict = self.begin(life, Op::Sync, name, 0, 0)?;
        self.stats_total.syncs += 1;
        let mut random = self.random.fork();
        let inode = self.inode(number, name)?;
        inode.stats.syncs += 1;
        match verdict {
            Verdict::Go => {
                inode.settle();
                self.revert_on_medium(number, name)
            }
            Verdict::Fail(error) => {
                inode.forget(&mut random);
                Err(error)
            }
            Verdict::Die(error) => {
                if random.coin() {
                    inode.settle();
                }
                self.die();
                Err(error)
            }
        }
    }

    pub(super) fn set_bytes(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        bytes: u64,
    ) -> Result<()> {
        let dying = self.begin_atomic(life, Op::SetBytes, name, bytes, 0)?;
        self.change(number, name, Change::SetBytes(bytes))?;
        self.end(dying)
    }

    pub(super) fn allocate(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let done = self.allocate_if_it_fits(life, number, name, offset, bytes);
        let refused = u64::from(done.is_err());
        self.stats_total.allocations += 1;
        self.stats_total.refusals += refused;
        if let Ok(inode) = self.inode(number, name) {
            inode.stats.allocations += 1;
            inode.stats.refusals += refused;
        }
        done
    }

    fn allocate_if_it_fits(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let dying = self.begin_atomic(life, Op::Allocate, name, offset, bytes)?;
        if bytes > 0 {
            if self.room_for(number, name, offset, bytes)? < bytes {
                self.end(dying)?;
                return Err(FaultError::NoSpace.of(Op::Allocate, name));
            }
            self.change(number, name, Change::Allocate { offset, bytes })?;
        }
        self.end(dying)
    }

    pub(super) fn punch(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let dying = self.begin_atomic(life, Op::PunchHole, name, offset, bytes)?;
        if bytes > 0 {
            self.change(number, name, Change::Punch { offset, bytes })?;
        }
        self.end(dying)
    }

    /// Counts the opening of a ring as a call. Each step of the opening is a call too.
    pub(super) fn begin_ring(&mut self, life: u64, name: &str, ring: RingOptions) -> Result<()> {
        let dying =
            self.begin_atomic(life, Op::OpenRing, name, ring.bytes, u64::from(ring.create))?;
        self.end(dying)
    }

    pub(super) fn ring_read(&mut self, number: u64, offset: u64, out: &mut [u8]) {
        match self.inodes.get(&number) {
            Some(inode) => inode.current.read(offset, out),
            None => out.fill(0),
        }
    }

    pub(super) fn ring_write(&mut self, number: u64, name: &str, offset: u64, bytes: &[u8]) {
        self.ring_writes += 1;
        let data = u64::from(checksum::crc32c(bytes));
        self.record(Op::RingWrite, name, offset, bytes.len() as u64, data);
        let dies = self
            .die_at_ring_write
            .is_some_and(|at| at <= self.ring_writes);
        let stored = if dies {
            self.random.below(bytes.len() as u64 + 1) as usize
        } else {
            bytes.len()
        };
        let at = self.next_sequence();
        let mut random = self.random.fork();
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.ring_store(at, offset, &bytes[..stored], &mut random);
        }
        if dies {
            self.die_at_ring_write = None;
            self.die();
        }
    }
}
