//! Writes in flight: the process that issued them died before they ended.

use terrapin_base::sync::Arc;

use super::image::sectors;
use super::random::Random;

/// What happens to a write during which the process dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Landing {
    /// Some of its sectors are stored at once. The others are lost.
    #[default]
    AtDeath,
    /// Some of its sectors are stored at once. Later calls of the next process store others or lose
    /// them. The next process cannot lock the file before that, since the write keeps the locked
    /// descriptor open (D9).
    Later,
}

/// A sector that reaches the medium: its inode, its offset in the file in bytes, its content.
pub(super) type Landed = (u64, u64, Arc<[u8]>);

/// One write in flight.
#[derive(Clone)]
struct Flight {
    inode: u64,
    /// Sectors that are neither stored nor lost yet.
    sectors: Vec<(u64, Arc<[u8]>)>,
}

/// All writes in flight.
#[derive(Clone, Default)]
pub(super) struct InFlight(Vec<Flight>);

impl InFlight {
    /// Puts the unwritten rest of a write in flight when its process dies.
    pub(super) fn take_off(&mut self, inode: u64, offset: u64, bytes: &[u8]) {
        let sectors = sectors(offset, bytes)
            .map(|(at, sector)| (at, sector.into()))
            .collect();
        self.0.push(Flight { inode, sectors });
    }

    /// The inode of each write in flight.
    pub(super) fn inodes(&self) -> Vec<u64> {
        self.0.iter().map(|flight| flight.inode).collect()
    }

    /// Chooses a sector that is stored before a call of a living process, or none.
    pub(super) fn one(&mut self, random: &mut Random) -> Option<Landed> {
        if self.0.is_empty() {
            return None;
        }
        let nth = random.below(self.0.len() as u64) as usize;
        let flight = &mut self.0[nth];
        let inode = flight.inode;
        let landing = match random.below(4) {
            0 => flight.sectors.pop(),
            _ => None,
        };
        self.0.retain(|flight| !flight.sectors.is_empty());
        landing.map(|(at, sector)| (inode, at, sector))
    }

    /// Ends all writes to an inode. Returns the sectors that are stored; the others are lost.
    pub(super) fn all_of(&mut self, inode: u64, random: &mut Random) -> Vec<Landed> {
        let all = std::mem::take(&mut self.0);
        let (ending, rest) = all.into_iter().partition(|flight| flight.inode == inode);
        self.0 = rest;
        let sectors = Vec::into_iter(ending).flat_map(|flight: Flight| flight.sectors);
        let landing = sectors.filter(|_| random.coin());
        landing.map(|(at, sector)| (inode, at, sector)).collect()
    }
}
