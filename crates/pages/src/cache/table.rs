//! Finds slots by hash: linear probing over single words, each a part of the hash and a slot's
//! number, so that a lookup mostly visits one cache line here, and then the slot. Keys are the
//! slots' business.

use terrapin_disk::prefetch_all;

/// Least places of a table that is not empty.
const PLACES_MIN: usize = 16;

/// A hash table of slot numbers. At most three quarters of its places are taken.
#[derive(Default)]
pub(super) struct Table {
    /// The upper half: what of the hash chooses the place. The lower half: the slot's number plus
    /// one; 0 is vacant.
    places: Vec<u64>,
    taken: usize,
}

fn slot_of(place: u64) -> u32 {
    (place as u32).wrapping_sub(1)
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    /// Where a place's search begins.
    #[inline]
    fn home(&self, place: u64) -> usize {
        (place >> 32) as usize & (self.places.len() - 1)
    }

    /// The place that holds a slot of that hash for which `is_it` says so.
    #[inline]
    fn place_of(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let place = self.places[at];
            if place == 0 {
                return None;
            }
            if (place >> 32) as u32 == hash && is_it(slot_of(place)) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot of that hash for which `is_it` says so. O(1) expected.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.place_of(hash, is_it)
            .map(|at| slot_of(self.places[at]))
    }

    /// Asks for the memory in which a search for that hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        let mask = self.places.len().wrapping_sub(1);
        if let Some(place) = self.places.get(hash as usize & mask) {
            prefetch_all(place);
        }
    }

    /// Adds a slot, of which the number is not in the table and below `u32::MAX`. O(1) amortised.
    pub(super) fn insert(&mut self, hash: u32, slot: u32) {
        if self.places.len() * 3 <= (self.taken + 1) * 4 {
            let places = (self.places.len() * 2).max(PLACES_MIN);
            for place in std::mem::replace(&mut self.places, vec![0; places]) {
                if place != 0 {
                    self.put(place);
                }
            }
        }
        self.put(u64::from(hash) << 32 | (u64::from(slot) + 1));
        self.taken += 1;
    }

    fn put(&mut self, place: u64) {
        let mut at = self.home(place);
        while self.places[at] != 0 {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = place;
    }

    /// Takes a slot out, if it is there; what stood behind it moves up. O(1) expected.
    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        let Some(mut vacant) = self.place_of(hash, |other| other == slot) else {
            return;
        };
        let mask = self.places.len() - 1;
        let mut at = vacant;
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place == 0 {
                break;
            }
            // It may stand at the vacant place if its search comes by there.
            if at.wrapping_sub(self.home(place)) & mask >= at.wrapping_sub(vacant) & mask {
                self.places[vacant] = place;
                vacant = at;
            }
        }
        self.places[vacant] = 0;
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn behaves_as_a_map_does_when_hashes_collide() {
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
