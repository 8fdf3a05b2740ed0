//! The state of the simulated disk: the directory, the files, and the order of all changes.

use std::collections::{BTreeMap, BTreeSet};

use terrapin_base::{Error, ErrorKind, Result, checksum};

use super::fault::Fault;
use super::image::{Image, PAGE_BYTES, pages_of};
use super::in_flight::{InFlight, Landed, Landing};
use super::inode::{Change, Inode, NameChange};
use super::media::Faulty;
use super::op::{IoEvent, IoStats, Op};
use super::random::Random;

#[derive(Clone)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) life: u64,
    pub(super) died: bool,
    pub(super) capacity: u64,
    pub(super) alignment: u32,

    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    /// The number of the next handle on a table of readers.
    pub(super) next_table: u64,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) pending_names: Vec<(u64, NameChange)>,
    /// Number of changes so far, which orders them.
    sequence: u64,

    /// Writes of dead processes that have not ended.
    pub(super) in_flight: InFlight,
    pub(super) landing: Landing,
    pub(super) media: Faulty,

    pub(super) faults: Vec<Fault>,
    pub(super) die_at_call: Option<u64>,
    pub(super) die_at_ring_write: Option<u64>,
    pub(super) calls: u64,
    pub(super) ring_writes: u64,
    pub(super) stats_total: IoStats,
    pub(super) trace_hash: u64,
    pub(super) trace: Option<Vec<IoEvent>>,
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
            next_table: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            sequence: 0,
            in_flight: InFlight::default(),
            landing: Landing::AtDeath,
            media: Faulty::default(),
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

    // Processes and their deaths

    /// The error of each call of a dead process.
    pub(super) fn dead() -> Error {
        Error::new(ErrorKind::Io, "the simulated process is dead")
    }

    pub(super) fn check_life(&mut self, life: u64) -> Result<()> {
        if life == self.life {
            Ok(())
        } else {
            Err(World::dead())
        }
    }

    /// Kills the process: closes its handles and frees its locks.
    pub(super) fn die(&mut self) {
        self.life += 1;
        self.died = true;
        for inode in self.inodes.values_mut() {
            inode.handles = 0;
            inode.locked = false;
            inode.sharers = 0;
            inode.slots.clear();
        }
        self.collect();
    }

    /// Drops files that no process can open any more, not even after a crash.
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

    /// Makes this copy a disk of its own: its process is dead, and planned faults are removed.
    pub(super) fn forked(mut self) -> World {
        self.die();
        self.faults.clear();
        self.die_at_call = None;
        self.die_at_ring_write = None;
        self
    }

    /// Mixes a word into the trace's hash.
    pub(super) fn mix(&mut self, word: u64) {
        self.trace_hash = Random::new(self.trace_hash ^ word).next();
    }

    pub(super) fn record(&mut self, op: Op, name: &str, offset: u64, bytes: u64, data: u64) {
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

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn inode(&mut self, number: u64, name: &str) -> Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| {
            Error::internal("a live handle refers to a missing file").with("file", name)
        })
    }

    pub(super) fn image(&mut self, number: u64, name: &str) -> Result<&Image> {
        Ok(&self.inode(number, name)?.current)
    }

    /// Stores bytes. An empty store is not a change.
    pub(super) fn store(
        &mut self,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bytes = bytes.into();
        self.change(number, name, Change::Store { offset, bytes })
    }

    pub(super) fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        let at = self.next_sequence();
        self.pending_names.push((at, change));
    }

    /// Length of the prefix of a range that is allocated or can be.
    pub(super) fn room_for(
        &mut self,
        number: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<u64> {
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

    /// Makes a change that the process sees at once and the medium holds after the next sync.
    pub(super) fn change(&mut self, number: u64, name: &str, change: Change) -> Result<()> {
        let at = self.next_sequence();
        self.inode(number, name)?.change(at, change);
        Ok(())
    }

    /// Stores at most one sector in flight, before a call of a living process.
    pub(super) fn land_one(&mut self) {
        if let Some(landed) = self.in_flight.one(&mut self.random) {
            self.land(landed);
        }
    }

    /// Ends all writes in flight to a file, before the file is locked.
    pub(super) fn land_all(&mut self, number: u64) {
        for landed in self.in_flight.all_of(number, &mut self.random) {
            self.land(landed);
        }
    }

    fn land(&mut self, (number, offset, bytes): Landed) {
        let at = self.next_sequence();
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.change(at, Change::Store { offset, bytes });
        }
    }

    // Access for tests

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
