//! A hash table of slot numbers with linear probing. Each cell is one word: a part of the hash, and
//! a slot's number. A lookup mostly visits one cache line of the table, then the slot. The slots
//! hold the keys.

use terrapin_disk::prefetch_all;

/// Fewest cells of a table that is not empty.
const CELLS_MIN: usize = 16;

/// A hash table of slot numbers. At most three quarters of its cells are in use.
#[derive(Default)]
pub(super) struct Table {
    /// The upper half of a cell is the part of the hash that chooses the cell. The lower half is
    /// the slot's number plus one. 0 marks a vacant cell.
    cells: Vec<u64>,
    taken: usize,
}

fn slot_of(cell: u64) -> u32 {
    (cell as u32).wrapping_sub(1)
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    /// The position at which a search for this cell begins.
    #[inline]
    fn home(&self, cell: u64) -> usize {
        (cell >> 32) as usize & (self.cells.len() - 1)
    }

    /// The position of the slot with this hash for which `is_it` returns true.
    #[inline]
    fn position_of(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<usize> {
        if self.cells.is_empty() {
            return None;
        }
        let mask = self.cells.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let cell = self.cells[at];
            if cell == 0 {
                return None;
            }
            if (cell >> 32) as u32 == hash && is_it(slot_of(cell)) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot with this hash for which `is_it` returns true. O(1) expected.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position_of(hash, is_it)
            .map(|at| slot_of(self.cells[at]))
    }

    /// Prefetches the memory at which a search for a hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        let mask = self.cells.len().wrapping_sub(1);
        if let Some(cell) = self.cells.get(hash as usize & mask) {
            prefetch_all(cell);
        }
    }

    /// Adds a slot. Its number must be below `u32::MAX` and not in the table. O(1) amortised.
    pub(super) fn insert(&mut self, hash: u32, slot: u32) {
        if self.cells.len() * 3 <= (self.taken + 1) * 4 {
            let cells = (self.cells.len() * 2).max(CELLS_MIN);
            for cell in std::mem::replace(&mut self.cells, vec![0; cells]) {
                if cell != 0 {
                    self.put(cell);
                }
            }
        }
        self.put(u64::from(hash) << 32 | (u64::from(slot) + 1));
        self.taken += 1;
    }

    fn put(&mut self, cell: u64) {
        let mut at = self.home(cell);
        while self.cells[at] != 0 {
            at = (at + 1) & (self.cells.len() - 1);
        }
        self.cells[at] = cell;
    }

    /// Removes a slot if it is in the table, and moves cells behind it up. O(1) expected.
    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        let Some(mut vacant) = self.position_of(hash, |other| other == slot) else {
            return;
        };
        let mask = self.cells.len() - 1;
        let mut at = vacant;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            // The cell may move to the vacant position if its search passes there.
            if at.wrapping_sub(self.home(cell)) & mask >= at.wrapping_sub(vacant) & mask {
                self.cells[vacant] = cell;
                vacant = at;
            }
        }
        self.cells[vacant] = 0;
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn agrees_with_a_map_when_hashes_collide() {
        for hashes in [1u32, 7, 40, 5000] {
            let mut table = Table::default();
            let mut model: HashMap<u32, u32> = HashMap::new();
            let mut random = 99u64;
            for _ in 0..4000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let slot = (random >> 33) as u32 % 150;
                let hash = (random >> 13) as u32 % hashes;
                match model.remove(&slot) {
                    Some(hash) => table.remove(hash, slot),
                    None => {
                        table.insert(hash, slot);
                        model.insert(slot, hash);
                    }
                }
                assert_eq!(table.len(), model.len());
                assert_eq!(
                    table.find(hash, |other| other == slot),
                    model.get(&slot).filter(|&&h| h == hash).map(|_| slot)
                );
            }
            for (&slot, &hash) in &model {
                assert_eq!(table.find(hash, |other| other == slot), Some(slot));
            }
        }
    }
}
