//! The state behind the simulated disk: the directory, the files, the order of all changes, the
//! calls and how they go.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use terrapin_base::{Error, ErrorKind, Result, checksum};

use super::crash::{InFlight, Landing};
use super::image::{Image, pages_of, sectors};
use super::inode::{Change, Inode, NameChange};
use super::media::Faulty;
use super::watch::Watchers;
use super::{Fault, FaultError, IoEvent, IoStats, Op, PAGE_BYTES, Random};
use crate::{OpenOptions, RingOptions};

/// How a call goes.
enum Verdict {
    Go,
    Fail(Error),
    Die(Error),
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) life: u64,
    pub(super) died: bool,
    pub(super) capacity: u64,
    pub(super) alignment: u32,

    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) pending_names: Vec<(u64, NameChange)>,
    /// Changes so far: their order.
    sequence: u64,

    /// Writes of the dead that have not ended.
    pub(super) in_flight: Vec<InFlight>,
    pub(super) landing: Landing,
    pub(super) media: Faulty,
    pub(super) watchers: Watchers,

    pub(super) faults: Vec<Fault>,
    pub(super) die_at_call: Option<u64>,
    pub(super) die_at_ring_write: Option<u64>,
    pub(super) calls: u64,
    pub(super) ring_writes: u64,
    pub(super) stats_total: IoStats,
    pub(super) trace_hash: u64,
    pub(super) trace: Option<Vec<IoEvent>>,
}

fn dead() -> Error {
    Error::new(ErrorKind::Io, "the simulated process is dead")
}

pub(super) fn os_error(number: i32, op: Op, name: &str) -> Error {
    Error::io("simulated fault", io::Error::from_raw_os_error(number))
        .with("call", format!("{op:?}"))
        .with("file", name)
}

pub(super) const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "no such file").with("file", name)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        World {
            random: Random::new(seed),
            life: 0,
            died: false,
            capacity: 64 << 30,
            alignment: 512,
            inodes: BTreeMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            sequence: 0,
            in_flight: Vec::new(),
            landing: Landing::AtDeath,
            media: Faulty::default(),
            watchers: Watchers::default(),
            faults: Vec::new(),
            die_at_call: None,
            die_at_ring_write: None,
            calls: 0,
            ring_writes: 0,
            stats_total: IoStats::default(),
            trace_hash: seed,
            trace: None,
        }
    }

    // Lives and crashes

    pub(super) fn check_life(&mut self, life: u64) -> Result<()> {
        if life == self.life {
            Ok(())
        } else {
            Err(dead())
        }
    }

    /// Ends the process: its handles are closed, its locks released.
    pub(super) fn die(&mut self) {
        self.life += 1;
        self.died = true;
        for inode in self.inodes.values_mut() {
            inode.handles = 0;
            inode.locked = false;
            inode.sharers = 0;
        }
        self.collect();
    }

    /// Drops files that nothing can reach any more, not even after a crash.
    pub(super) fn collect(&mut self) {
        let mut reached: BTreeSet<u64> = self.names.values().copied().collect();
        reached.extend(self.durable_names.values());
        for (_, change) in &self.pending_names {
            if let NameChange::Link(_, inode) | NameChange::Rename(_, _, inode) = change {
                reached.insert(*inode);
            }
        }
        self.inodes
            .retain(|number, inode| inode.handles > 0 || reached.contains(number));
    }

    /// A copy, made to stand alone: its process is dead, and what the test has placed is gone.
    pub(super) fn forked(mut self) -> World {
        self.die();
        self.faults.clear();
        self.die_at_call = None;
        self.die_at_ring_write = None;
        self
    }

    // Calls

    /// Takes a word into the trace's hash.
    pub(super) fn mix(&mut self, word: u64) {
        self.trace_hash = Random::new(self.trace_hash ^ word).next();
    }

    fn record(&mut self, op: Op, name: &str, offset: u64, bytes: u64, data: u64) {
        for word in [op as u64, offset, bytes, data]
            .into_iter()
            .chain([u64::from(checksum::crc32c(name.as_bytes()))])
        {
            self.mix(word);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(IoEvent {
                op,
                file: name.into(),
                offset,
                bytes,
            });
        }
    }

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
        self.land_some();
        self.calls += 1;
        self.record(op, name, offset, bytes, data);
        if self.die_at_call.is_some_and(|at| at <= self.calls) {
            self.die_at_call = None;
            return Ok(Verdict::Die(dead()));
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
                let number = match fault.error {
                    FaultError::Io => EIO,
                    FaultError::NoSpace => ENOSPC,
                    FaultError::Quota => EDQUOT,
                    FaultError::TooManyFiles => EMFILE,
                };
                verdict = Verdict::Fail(os_error(number, op, name));
                return fault.lasting;
            }
            true
        });
        Ok(verdict)
    }

    /// As [`World::begin`], for calls that do nothing when they fail, and all or nothing when the
    /// process dies in them: `true` means that the change is still to be made and the error to be
    /// returned after it.
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

    /// Ends a call that [`World::begin_atomic`] began.
    fn end(&mut self, error: Option<Error>) -> Result<()> {
        match error {
            None => Ok(()),
            Some(error) => {
                self.die();
                Err(error)
            }
        }
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn inode(&mut self, number: u64, name: &str) -> Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| {
            Error::internal("a live handle on a file that is gone").with("file", name)
        })
    }

    pub(super) fn image(&mut self, number: u64, name: &str) -> Result<&Image> {
        Ok(&self.inode(number, name)?.current)
    }

    // The directory

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        let at = self.next_sequence();
        self.pending_names.push((at, change));
    }

    pub(super) fn open_now(&mut self, life: u64, name: &str, options: OpenOptions) -> Result<u64> {
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
                    Error::new(ErrorKind::AlreadyExists, "the file is there already")
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

    pub(super) fn list_now(&mut self, life: u64) -> Result<Vec<String>> {
        let dying = self.begin_atomic(life, Op::List, "", 0, 0)?;
        self.end(dying)?;
        Ok(self.names.keys().cloned().collect())
    }

    pub(super) fn remove_now(&mut self, life: u64, name: &str) -> Result<()> {
        let dying = self.begin_atomic(life, Op::Remove, name, 0, 0)?;
        if !self.names.contains_key(name) {
            return self.end(dying).and(Err(not_found(name)));
        }
        self.change_name(NameChange::Unlink(name.into()));
        self.end(dying)
    }

    pub(super) fn rename_now(&mut self, life: u64, from: &str, to: &str) -> Result<()> {
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

    pub(super) fn sync_directory_now(&mut self, life: u64) -> Result<()> {
        let dying = self.begin_atomic(life, Op::SyncDirectory, "", 0, 0)?;
        self.durable_names = self.names.clone();
        self.pending_names.clear();
        self.end(dying)?;
        self.collect();
        Ok(())
    }

    pub(super) fn free_bytes_now(&mut self, life: u64) -> Result<u64> {
        let dying = self.begin_atomic(life, Op::FreeBytes, "", 0, 0)?;
        self.end(dying)?;
        Ok(self.capacity.saturating_sub(self.used_bytes()))
    }

    // Files

    pub(super) fn read_now(
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

    pub(super) fn write_now(
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
                fits => (fits, Err(os_error(ENOSPC, Op::Write, name))),
            },
            Verdict::Fail(error) => (self.part_of(number, name, offset, bytes)?, Err(error)),
            Verdict::Die(error) => {
                let part = self.part_of(number, name, offset, bytes)?;
                let (stored, rest) = bytes.split_at(part as usize);
                self.change(number, name, Self::store(offset, stored))?;
                if self.landing == Landing::Later {
                    let fits = self.room_for(number, name, offset + part, rest.len() as u64)?;
                    self.take_off(number, offset + part, &rest[..fits as usize]);
                }
                self.die();
                return Err(error);
            }
        };
        self.change(number, name, Self::store(offset, &bytes[..fits as usize]))?;
        outcome
    }

    pub(super) fn store(offset: u64, bytes: &[u8]) -> Option<Change> {
        (!bytes.is_empty()).then(|| Change::Store {
            offset,
            bytes: bytes.into(),
        })
    }

    /// How much of a write that breaks off is written: some whole sectors, as far as there is room.
    fn part_of(&mut self, number: u64, name: &str, offset: u64, bytes: &[u8]) -> Result<u64> {
        let count = sectors(offset, bytes).count() as u64;
        let kept = self.random.below(count + 1) as usize;
        let part: usize = sectors(offset, bytes)
            .take(kept)
            .map(|(_, sector)| sector.len())
            .sum();
        self.room_for(number, name, offset, part as u64)
    }

    /// How much of a range, from its start on, is allocated or can be.
    fn room_for(&mut self, number: u64, name: &str, offset: u64, bytes: u64) -> Result<u64> {
        let free = self.capacity.saturating_sub(self.used_bytes()) / PAGE_BYTES;
        let image = &self.inode(number, name)?.current;
        let pages = pages_of(offset, bytes);
        if image.holes(pages.clone()) <= free {
            return Ok(bytes);
        }
        let present: BTreeSet<u64> = image.present(pages.clone()).into_iter().collect();
        let mut left = free;
        for page in pages {
            if !present.contains(&page) {
                if left == 0 {
                    return Ok((page * PAGE_BYTES).saturating_sub(offset));
                }
                left -= 1;
            }
        }
        Ok(bytes)
    }

    /// Makes a change that the process sees at once and the medium after the next sync.
    pub(super) fn change(&mut self, number: u64, name: &str, change: Option<Change>) -> Result<()> {
        let Some(change) = change else {
            return Ok(());
        };
        let at = self.next_sequence();
        self.inode(number, name)?.change(at, change);
        Ok(())
    }

    pub(super) fn sync_now(&mut self, life: u64, number: u64, name: &str) -> Result<()> {
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

    pub(super) fn set_bytes_now(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        bytes: u64,
    ) -> Result<()> {
        let dying = self.begin_atomic(life, Op::SetBytes, name, bytes, 0)?;
        self.change(number, name, Some(Change::SetBytes(bytes)))?;
        self.end(dying)
    }

    pub(super) fn allocate_now(
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
                return Err(os_error(ENOSPC, Op::Allocate, name));
            }
            self.change(number, name, Some(Change::Allocate { offset, bytes }))?;
        }
        self.end(dying)
    }

    pub(super) fn punch_now(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let dying = self.begin_atomic(life, Op::PunchHole, name, offset, bytes)?;
        if bytes > 0 {
            self.change(number, name, Some(Change::Punch { offset, bytes }))?;
        }
        self.end(dying)
    }

    // Rings

    /// The call that says that a ring is opened; the steps that open it are calls of their own.
    pub(super) fn begin_ring(&mut self, life: u64, name: &str, ring: RingOptions) -> Result<()> {
        let dying =
            self.begin_atomic(life, Op::OpenRing, name, ring.bytes, u64::from(ring.create))?;
        self.end(dying)
    }

    pub(super) fn prepare_ring(
        &mut self,
        life: u64,
        number: u64,
        name: &str,
        ring: RingOptions,
    ) -> Result<u64> {
        self.inode(number, name)?.is_ring = true;
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
        let bytes = self.image(number, name)?.bytes();
        RingOptions::check_found(bytes, name)?;
        self.allocate(life, number, name, 0, bytes)?;
        Ok(bytes)
    }

    pub(super) fn ring_read(&mut self, number: u64, offset: u64, out: &mut [u8]) {
        match self.inodes.get(&number) {
            Some(inode) => inode.current.read(offset, out),
            None => out.fill(0),
        }
    }

    pub(super) fn ring_write_now(&mut self, number: u64, name: &str, offset: u64, bytes: &[u8]) {
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

    // The test's own access

    pub(super) fn used_bytes(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes
            .iter()
            .filter(|(number, inode)| inode.handles > 0 || named.contains(number))
            .map(|(_, inode)| inode.current.allocated_bytes())
            .sum()
    }

    pub(super) fn stats(&self, name: &str) -> IoStats {
        let inode = self.inode_of(&self.names, name);
        inode.map(|inode| inode.stats).unwrap_or_default()
    }

    pub(super) fn corrupt(&mut self, name: &str, offset: u64, mask: u8) -> bool {
        let number = self.names.get(name).copied().unwrap_or(0);
        match self.inodes.get_mut(&number) {
            Some(inode) if offset < inode.current.bytes() => {
                let mut byte = [0];
                inode.current.read(offset, &mut byte);
                byte[0] ^= mask;
                inode.current.store(offset, &byte);
                inode.durable.flip(offset, mask);
                true
            }
            _ => false,
        }
    }

    pub(super) fn content(&self, name: &str) -> Option<Vec<u8>> {
        let inode = self.inode_of(&self.names, name)?;
        let mut content = vec![0; usize::try_from(inode.current.bytes()).ok()?];
        inode.current.read(0, &mut content);
        Some(content)
    }

    pub(super) fn inode_of(&self, names: &BTreeMap<String, u64>, name: &str) -> Option<&Inode> {
        self.inodes.get(names.get(name)?)
    }

    pub(super) fn bytes_of(&self, name: &str) -> Option<u64> {
        Some(self.inode_of(&self.names, name)?.current.bytes())
    }

    pub(super) fn plant(&mut self, name: &str, content: &[u8]) {
        let mut image = Image::default();
        image.store(0, content);
        image.grow(content.len() as u64);
        let number = self.next_inode;
        self.next_inode += 1;
        let inode = Inode {
            current: image.clone(),
            durable: image,
            birth: self.trace_hash | 1,
            ..Inode::default()
        };
        self.inodes.insert(number, inode);
        self.names.insert(name.into(), number);
        self.durable_names.insert(name.into(), number);
        self.collect();
    }
}
