//! How a crash goes: what a power cut leaves of what no sync covered, and when the writes land that
//! were in flight when the process died.

use std::collections::BTreeMap;

use terrapin_base::sync::Arc;

use super::image::{Image, sectors};
use super::inode::{Change, Inode, NameChange};
use super::world::World;
use super::{Random, SECTOR_BYTES};

/// What a power cut leaves of writes that no sync covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CrashMode {
    /// Nothing.
    LoseUnsynced,
    /// Everything.
    KeepAll,
    /// Any subset: the seed decides for every sector, every change of a size and every change of
    /// the directory by itself. A sector that was written several times may come out as any of its
    /// versions.
    RandomSubset,
    /// Everything up to a moment that the seed chooses, in the order in which it was written,
    /// across all files; the write at that moment is cut at a sector.
    Prefix,
    /// Only the last one to three changes, across all files.
    NewestOnly,
    /// Everything but the first one to three changes, across all files.
    OldestLost,
    /// Any subset as with [`CrashMode::RandomSubset`]; and of the sectors that were to be written,
    /// some hold random bytes, others begin with the new and end with the old ones.
    GarbageInFlight,
    /// Sizes, allocation, holes and the directory are all there; of the data nothing is: zeros, or
    /// what was there before.
    SizeBeforeData,
}

impl CrashMode {
    /// Every mode.
    pub const ALL: [CrashMode; 8] = [
        CrashMode::LoseUnsynced,
        CrashMode::KeepAll,
        CrashMode::RandomSubset,
        CrashMode::Prefix,
        CrashMode::NewestOnly,
        CrashMode::OldestLost,
        CrashMode::GarbageInFlight,
        CrashMode::SizeBeforeData,
    ];
}

/// What becomes of a write in whose midst the process dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Landing {
    /// Some of its sectors are stored at once, the others never.
    #[default]
    AtDeath,
    /// Some are stored at once; others land, or not, during the later calls of the next process, at
    /// the latest before the file's lock can be had again: the write holds the descriptor on which
    /// the lock lies (D9).
    Later,
}

/// What is left of one change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    /// Some of its first sectors; what is no write, by chance.
    Begun,
    /// Any of its sectors, and its size or not.
    Mixed,
    /// As [`Fate::Mixed`], with garbage.
    Garbled,
    /// All but its data.
    SizeOnly,
}

/// A power cut: the mode, and the place in the order of all changes at which it parts them.
pub(super) struct Cut {
    mode: CrashMode,
    place: u64,
}

impl Cut {
    /// Chooses the place for changes in this order.
    fn choose(mode: CrashMode, mut order: Vec<u64>, random: &mut Random) -> Self {
        order.sort_unstable();
        let count = order.len();
        let few = |random: &mut Random| random.below(3) as usize;
        let index = match mode {
            CrashMode::NewestOnly => count.saturating_sub(1 + few(random)),
            CrashMode::OldestLost => 1 + few(random),
            _ => random.below(count as u64 + 1) as usize,
        };
        let place = order.get(index).copied().unwrap_or(u64::MAX);
        Cut { mode, place }
    }

    fn fate(&self, at: u64) -> Fate {
        match self.mode {
            CrashMode::LoseUnsynced => Fate::Lost,
            CrashMode::KeepAll => Fate::Kept,
            CrashMode::RandomSubset => Fate::Mixed,
            CrashMode::Prefix if at < self.place => Fate::Kept,
            CrashMode::Prefix if at == self.place => Fate::Begun,
            CrashMode::Prefix => Fate::Lost,
            CrashMode::NewestOnly | CrashMode::OldestLost if at >= self.place => Fate::Kept,
            CrashMode::NewestOnly | CrashMode::OldestLost => Fate::Lost,
            CrashMode::GarbageInFlight => Fate::Garbled,
            CrashMode::SizeBeforeData => Fate::SizeOnly,
        }
    }

    fn keeps_name(&self, at: u64, random: &mut Random) -> bool {
        match self.fate(at) {
            Fate::Lost => false,
            Fate::Kept | Fate::SizeOnly => true,
            Fate::Begun | Fate::Mixed | Fate::Garbled => random.coin(),
        }
    }
}

impl Change {
    fn apply_by(&self, fate: Fate, image: &mut Image, random: &mut Random) {
        match (fate, self) {
            (Fate::Lost, _) => {}
            (Fate::Kept, change) => change.apply(image),
            (Fate::SizeOnly, Change::Store { offset, bytes }) => {
                image.allocate(*offset, bytes.len() as u64);
            }
            (Fate::SizeOnly, change) => change.apply(image),
            (Fate::Begun, Change::Store { offset, bytes }) => {
                let count = sectors(*offset, bytes).count() as u64;
                let kept = random.below(count + 1) as usize;
                for (at, sector) in sectors(*offset, bytes).take(kept) {
                    image.store(at, sector);
                    image.grow(at + sector.len() as u64);
                }
            }
            (Fate::Mixed | Fate::Garbled, Change::Store { offset, bytes }) => {
                for (at, sector) in sectors(*offset, bytes) {
                    match fate {
                        Fate::Garbled => garble(image, at, sector, random),
                        _ if random.coin() => image.store(at, sector),
                        _ => {}
                    }
                }
                if random.coin() {
                    image.grow(offset + bytes.len() as u64);
                }
            }
            (Fate::Begun | Fate::Mixed | Fate::Garbled, change) => {
                if random.coin() {
                    change.apply(image);
                }
            }
        }
    }

    /// Applies any subset of the change's sectors, and the change of size or not.
    pub(super) fn apply_some(&self, image: &mut Image, random: &mut Random) {
        self.apply_by(Fate::Mixed, image, random);
    }
}

/// A sector on its way when the power failed: it is as it was, new, random, or new up to a byte. A
/// write of a part of a sector endangers all of it.
fn garble(image: &mut Image, at: u64, new: &[u8], random: &mut Random) {
    match random.below(4) {
        0 => {}
        1 => image.store(at, new),
        2 => {
            let mut garbage = [0; SECTOR_BYTES as usize];
            for word in garbage.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            image.store(at - at % SECTOR_BYTES, &garbage);
        }
        _ => {
            let torn = random.below(new.len() as u64) as usize;
            image.store(at, &new[..torn]);
        }
    }
}

impl Inode {
    /// What a power cut leaves.
    fn after_power_loss(&self, cut: &Cut, random: &mut Random) -> Image {
        if cut.mode == CrashMode::KeepAll {
            return self.current.clone();
        }
        let mut image = self.durable.clone();
        for (at, change) in &self.pending {
            change.apply_by(cut.fate(*at), &mut image, random);
        }
        for (&page, &at) in &self.ring_pages {
            match cut.fate(at) {
                Fate::Lost | Fate::SizeOnly => {}
                Fate::Kept | Fate::Begun => image.take_page(page, &self.current),
                fate => self
                    .current
                    .page_as_store(page)
                    .apply_by(fate, &mut image, random),
            }
        }
        image.clip();
        image
    }
}

/// A write in whose midst its process died, and which has not ended.
#[derive(Clone)]
pub(super) struct InFlight {
    inode: u64,
    /// The sectors that have neither landed nor been lost.
    sectors: Vec<(u64, Arc<[u8]>)>,
}

impl World {
    /// The power fails. The process is dead already.
    pub(super) fn lose_power(&mut self, mode: CrashMode) {
        self.mix(mode as u64);
        for number in self.in_flight.iter().map(|f| f.inode).collect::<Vec<_>>() {
            self.land_all(number);
        }
        let mut order: Vec<u64> = self.pending_names.iter().map(|(at, _)| *at).collect();
        for inode in self.inodes.values() {
            order.extend(inode.pending.iter().map(|(at, _)| *at));
            order.extend(inode.ring_pages.values());
        }
        let cut = Cut::choose(mode, order, &mut self.random);

        let mut names: BTreeMap<String, u64> = self.durable_names.clone();
        for (at, change) in &self.pending_names {
            if cut.keeps_name(*at, &mut self.random) {
                NameChange::apply(change, &mut names);
            }
        }
        for inode in self.inodes.values_mut() {
            let image = inode.after_power_loss(&cut, &mut self.random);
            *inode = Inode {
                durable: image.clone(),
                current: image,
                stats: inode.stats,
                birth: inode.birth,
                ..Inode::default()
            };
        }
        self.names = names.clone();
        self.durable_names = names;
        self.pending_names.clear();
        self.collect();
    }

    /// The rest of a write goes on its way when its process dies.
    pub(super) fn take_off(&mut self, inode: u64, offset: u64, bytes: &[u8]) {
        let sectors = sectors(offset, bytes)
            .map(|(at, sector)| (at, sector.into()))
            .collect();
        self.in_flight.push(InFlight { inode, sectors });
    }

    /// Before a call of a living process: some of what the dead one has in flight lands.
    pub(super) fn land_some(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let nth = self.random.below(self.in_flight.len() as u64) as usize;
        let flight = &mut self.in_flight[nth];
        let inode = flight.inode;
        let landing = match self.random.below(4) {
            0 => flight.sectors.pop(),
            _ => None,
        };
        self.in_flight.retain(|f| !f.sectors.is_empty());
        if let Some((at, sector)) = landing {
            self.land(inode, at, sector);
        }
    }

    /// Before a file's lock is had: everything in flight to it has landed or is lost.
    pub(super) fn land_all(&mut self, number: u64) {
        let (landing, rest) = std::mem::take(&mut self.in_flight)
            .into_iter()
            .partition(|flight| flight.inode == number);
        self.in_flight = rest;
        for (at, sector) in Vec::into_iter(landing).flat_map(|f: InFlight| f.sectors) {
            if self.random.coin() {
                self.land(number, at, sector);
            }
        }
    }

    fn land(&mut self, number: u64, offset: u64, bytes: Arc<[u8]>) {
        let at = self.next_sequence();
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.change(at, Change::Store { offset, bytes });
        }
    }
}
