//! What a power cut and a failed sync leave of the changes that no sync covered.

use std::collections::BTreeMap;

use super::image::{Image, PAGE_BYTES, SECTOR_BYTES, sectors};
use super::inode::{Change, Inode, NameChange};
use super::random::Random;
use super::world::World;

/// What a power cut leaves of the changes that no sync covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CrashMode {
    /// No change survives.
    LoseUnsynced,
    /// Every change survives.
    KeepAll,
    /// Any subset survives. The seed decides for each sector, each change of a size and each change
    /// of the directory. A sector that was written several times may hold any of its versions.
    RandomSubset,
    /// Everything up to a moment that the seed chooses survives, in the order of writing across all
    /// files. The write at that moment is cut at a sector.
    Prefix,
    /// Only the last one to three changes across all files survive.
    NewestOnly,
    /// All but the first one to three changes across all files survive.
    OldestLost,
    /// Any subset survives, as in [`CrashMode::RandomSubset`], and sectors may be damaged. Some
    /// sectors hold random bytes. Others begin with new bytes and end with old ones.
    GarbageInFlight,
    /// Sizes, allocation, holes and the directory survive. Data does not: it reads as zeros or as
    /// its old content.
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

/// What survives of one change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    /// Some of the first sectors of a write. Any other change survives by chance.
    Begun,
    /// Any of its sectors, and perhaps its new size.
    Mixed,
    /// Like [`Fate::Mixed`], and sectors may hold garbage.
    Garbled,
    /// Everything but its data.
    SizeOnly,
}

/// A power cut: the mode, and the sequence number at which the mode splits the changes.
pub(super) struct PowerCut {
    mode: CrashMode,
    position: u64,
}

impl PowerCut {
    /// Chooses the splitting sequence number among those in `order`.
    fn choose(mode: CrashMode, mut order: Vec<u64>, random: &mut Random) -> Self {
        order.sort_unstable();
        let count = order.len();
        let few = |random: &mut Random| random.below(3) as usize;
        let index = match mode {
            CrashMode::NewestOnly => count.saturating_sub(1 + few(random)),
            CrashMode::OldestLost => 1 + few(random),
            _ => random.below(count as u64 + 1) as usize,
        };
        let position = order.get(index).copied().unwrap_or(u64::MAX);
        PowerCut { mode, position }
    }

    fn fate(&self, at: u64) -> Fate {
        match self.mode {
            CrashMode::LoseUnsynced => Fate::Lost,
            CrashMode::KeepAll => Fate::Kept,
            CrashMode::RandomSubset => Fate::Mixed,
            CrashMode::Prefix if at < self.position => Fate::Kept,
            CrashMode::Prefix if at == self.position => Fate::Begun,
            CrashMode::Prefix => Fate::Lost,
            CrashMode::NewestOnly | CrashMode::OldestLost if at >= self.position => Fate::Kept,
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
    /// The store that gives a page the content that it has in `image`.
    fn of_page(image: &Image, page: u64) -> Self {
        let offset = page * PAGE_BYTES;
        let bytes = image.bytes().saturating_sub(offset).min(PAGE_BYTES);
        let mut content = vec![0; bytes as usize];
        image.read(offset, &mut content);
        Change::Store {
            offset,
            bytes: content.into(),
        }
    }

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
}

/// Damages a sector that was being written when the power failed.
///
/// The sector keeps its old content, has the new content, holds random bytes, or is new up to one
/// byte. A write of part of a sector can damage the whole sector.
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
    /// Applies a failed sync. Chance decides which changes reached the medium. The others are never
    /// written again, although the process still sees them.
    pub(super) fn forget(&mut self, random: &mut Random) {
        for (_, change) in std::mem::take(&mut self.pending) {
            change.apply_by(Fate::Mixed, &mut self.durable, random);
        }
        self.durable.clip();
        self.touched.clear();
    }

    /// The file's content after a power cut.
    fn after_power_loss(&self, cut: &PowerCut, random: &mut Random) -> Image {
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
                fate => Change::of_page(&self.current, page).apply_by(fate, &mut image, random),
            }
        }
        image.clip();
        image
    }
}

impl World {
    /// Cuts the power. The process must be dead already.
    pub(super) fn lose_power(&mut self, mode: CrashMode) {
        self.mix(mode as u64);
        for number in self.in_flight.inodes() {
            self.land_all(number);
        }
        let mut order: Vec<u64> = self.pending_names.iter().map(|(at, _)| *at).collect();
        for inode in self.inodes.values() {
            order.extend(inode.pending.iter().map(|(at, _)| *at));
            order.extend(inode.ring_pages.values());
        }
        let cut = PowerCut::choose(mode, order, &mut self.random);

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
}
