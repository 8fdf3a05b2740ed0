//! Writes in flight: their process died, and they have not ended.

use terrapin_base::sync::Arc;

use super::image::sectors;
use super::random::Random;

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

/// A sector that lands: its inode, its offset in the file, its bytes.
pub(super) type Landed = (u64, u64, Arc<[u8]>);

/// A write in whose midst its process died, and which has not ended.
#[derive(Clone)]
struct Flight {
    inode: u64,
    /// The sectors that have neither landed nor been lost.
    sectors: Vec<(u64, Arc<[u8]>)>,
}

/// All writes in flight.
#[derive(Clone, Default)]
pub(super) struct InFlight(Vec<Flight>);

impl InFlight {
    /// The rest of a write goes on its way when its process dies.
    pub(super) fn take_off(&mut self, inode: u64, offset: u64, bytes: &[u8]) {
        let sectors = sectors(offset, bytes)
            .map(|(at, sector)| (at, sector.into()))
            .collect();
        self.0.push(Flight { inode, sectors });
    }

    /// The inodes of the writes, one for each.
    pub(super) fn inodes(&self) -> Vec<u64> {
        self.0.iter().map(|flight| flight.inode).collect()
    }

    /// A sector that lands before a call of a living process, or none.
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

    /// Ends all writes to an inode: the sectors that land; the others are lost.
    pub(super) fn all_of(&mut self, inode: u64, random: &mut Random) -> Vec<Landed> {
        let all = std::mem::take(&mut self.0);
        let (ending, rest) = all.into_iter().partition(|flight| flight.inode == inode);
        self.0 = rest;
        let sectors = Vec::into_iter(ending).flat_map(|flight: Flight| flight.sectors);
        let landing = sectors.filter(|_| random.coin());
        landing.map(|(at, sector)| (inode, at, sector)).collect()
    }
}
