//! Eviction: makes room for new entries and shrinks the cache to its budget. Blocks leave by
//! cohorts, metadata by a hand that takes lives.

use std::cmp::Reverse;

use terrapin_base::Purpose;
use terrapin_base::sync::{Arc, Ordering};

use super::lanes::{Cohort, Home};
use super::shard::{Entry, Resident, Turn};
use super::{Cache, SHARDS, Shards, Worth, shard};
use crate::block::Block;

/// Slots that the hand over metadata passes in one visit of a shard.
const VISIT_SLOTS: usize = 32;
/// Visits of a shard that together take one life from all of its metadata.
const AGE_PARTS: usize = 16;
/// Most ageing visits for one evicted slab.
const AGE_VISITS_MAX: u64 = 64;
/// One in this many times that a scan makes room, eviction treats both lanes alike and ages
/// metadata.
const SCAN_AGEING: u64 = 16;
/// Quarters of a slab's bytes that eviction keeps at most, so each evicted slab makes room.
const KEPT_QUARTERS: u64 = 3;
/// After this many slabs without enough room, eviction keeps no block.
const PATIENCE: usize = 32;

impl Cache {
    /// Evicts until `bytes` more than are charged fit. `false` if eviction cannot get there.
    /// `coming` of the charged bytes are for metadata that is not in the cache yet.
    pub(super) fn make_room(&self, bytes: u64, coming: u64, worth: Worth) -> bool {
        if bytes > self.budget.room_for_caches() {
            return false;
        }
        let mut tries = 0;
        while self.used() + bytes > self.budget.room_for_caches() {
            let for_scan = worth == Worth::Low;
            let evenly = for_scan && tries == 0 && self.is_turn_of_all();
            if !self.evict_blocks(evenly, for_scan && !evenly, tries) {
                // Readers keep the blocks that are left. If these alone are too many, evicting
                // metadata would not help.
                let stays = self.budget.used(Purpose::Blocks) + coming;
                if stays + bytes > self.budget.room_for_caches() || !self.evict_metadata() {
                    return false;
                }
            }
            tries += 1;
        }
        true
    }

    fn is_turn_of_all(&self) -> bool {
        let before = self.scans_made_room.fetch_add(1, Ordering::Relaxed);
        before % SCAN_AGEING == SCAN_AGEING - 1
    }

    pub(super) fn evicted<V>(&self, purpose: Purpose, entry: Entry<V>) {
        self.gone(purpose, entry);
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// Evicts the next cohort of blocks. Metadata ages in proportion, unless `gentle`. `false` if
    /// there are no blocks. From `PATIENCE` tries on, no block is kept.
    fn evict_blocks(&self, evenly: bool, gentle: bool, tries: usize) -> bool {
        let Some((cohort, all_bytes)) = self.lanes.pop(evenly) else {
            return false;
        };
        let bytes = cohort.bytes();
        let kept = if tries < PATIENCE {
            bytes / 4 * KEPT_QUARTERS
        } else {
            0
        };
        self.recycle(cohort, Worth::Normal, 1, kept);
        if !gentle {
            // If records hold most of the memory, eviction passes over all blocks quickly. Metadata
            // also serves misses of the record cache, so it ages as slowly as if that memory were
            // blocks.
            let held = self.budget.used(Purpose::Records) + self.budget.used(Purpose::Metadata);
            self.age(bytes, all_bytes + held);
        }
        true
    }

    /// Moves the blocks of a cohort that are worth keeping, and evicts the rest. Blocks with the
    /// most lives move first, at most `kept_max` bytes. A move costs `lives` lives. With no lives
    /// to pay, blocks without lives move too.
    pub(super) fn recycle(&self, cohort: Cohort, worth: Worth, lives: u8, kept_max: u64) {
        let mut kept = Vec::new();
        // The blocks entered together long ago, so their entries are scattered in memory.
        self.prefetch_blocks(&cohort.keys);
        for &key in &cohort.keys {
            let resident = shard(&self.blocks, key)
                .lock()
                .resident(key, &cohort.home, lives == 0);
            match resident {
                Resident::Gone => {}
                Resident::Left(entry) => self.evicted(Purpose::Blocks, entry),
                Resident::Lives(lives, block) => kept.push((lives, key, block)),
            }
        }
        kept.sort_by_key(|(lives, _, _)| Reverse(*lives));
        let mut kept_bytes = 0;
        for (_, key, block) in kept {
            kept_bytes += block.payload().len() as u64;
            let fits =
                kept_bytes <= kept_max || matches!(cohort.home, Home::Alone(_)) && kept_max > 0;
            let moved = fits.then(|| self.move_block(&block, worth)).flatten();
            match moved {
                Some(next) => {
                    let replaced = shard(&self.blocks, key).lock().replace(
                        key,
                        &block,
                        &next,
                        lives,
                        self.lanes.birth(worth),
                    );
                    if replaced {
                        self.enter(key, &next, cohort.bytes() as u32, worth);
                    }
                }
                None => {
                    let entry = shard(&self.blocks, key).lock().remove(key, &block);
                    if let Some(entry) = entry {
                        self.evicted(Purpose::Blocks, entry);
                    }
                }
            }
        }
    }

    /// The block, copied into the slab that fills now. A block with memory of its own stays as it
    /// is.
    fn move_block(&self, block: &Arc<Block>, worth: Worth) -> Option<Arc<Block>> {
        if !block.payload().is_in_slab() {
            return Some(block.clone());
        }
        let bytes = block.payload().len();
        let piece = self.lanes.take(worth, bytes);
        let piece = piece.or_else(|| self.another_slab(worth, bytes))?;
        Some(Arc::new(block.copied_to(piece)))
    }

    /// Takes lives from metadata in proportion to the blocks that eviction passed over.
    fn age(&self, bytes: u64, all_bytes: u64) {
        const ROUND: u64 = ((SHARDS * AGE_PARTS) as u64) << 16;
        let owed = (u128::from(bytes) * u128::from(ROUND) / u128::from(all_bytes.max(1))) as u64;
        let before = self.to_age.fetch_add(owed, Ordering::Relaxed);
        let visits = ((before + owed) >> 16) - (before >> 16);
        let mut gone = Vec::new();
        for _ in 0..visits.min(AGE_VISITS_MAX) {
            let visit = self.aged.fetch_add(1, Ordering::Relaxed);
            let part = visit / SHARDS % AGE_PARTS;
            self.metadata[visit % SHARDS]
                .lock()
                .age(part, AGE_PARTS, &mut gone);
            for entry in gone.drain(..) {
                self.evicted(Purpose::Metadata, entry);
            }
        }
    }

    /// Evicts the first metadata without lives that the hand reaches. `false` if there is none. The
    /// hand visits one shard after the other, a few slots each. So no shard loses all its entries
    /// while others keep unused ones.
    fn evict_metadata(&self) -> bool {
        let (mut empty, mut visits) = (0, 0);
        while empty < SHARDS {
            let at = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
            // The hand takes more lives the longer it searches. So one insert never walks a large
            // cache many times.
            visits += 1;
            let lives = 1 << (visits / (2 * SHARDS)).min(3);
            let turn = self.metadata[at].lock().turn(VISIT_SLOTS, lives);
            match turn {
                Turn::Evicted(entry) => {
                    self.evicted(Purpose::Metadata, entry);
                    return true;
                }
                Turn::Nothing => empty = 0,
                Turn::Empty => empty += 1,
            }
        }
        false
    }

    /// Evicts at most `slabs` cohorts of blocks or pieces of metadata while over budget. Returns
    /// whether there is more to do.
    pub(crate) fn shrink(&self, slabs: usize) -> bool {
        for tries in 0..slabs {
            if !self.over_budget() {
                return false;
            }
            if !self.evict_blocks(false, false, tries) && !self.evict_metadata() {
                self.compact();
                return false;
            }
        }
        self.over_budget()
    }

    pub(super) fn compact(&self) {
        self.compact_shards(&self.blocks);
        self.compact_shards(&self.metadata);
    }

    /// Compacts shards while there is no purge. A purge keeps a position in a shard's slots and
    /// would miss entries that a compaction moves below it. The purge compacts each shard that it
    /// has finished.
    fn compact_shards<V: Clone>(&self, shards: &Shards<V>) {
        for shard in shards {
            // The lock comes before the question: a purge that visited this shard has set its mark
            // by then.
            let mut shard = shard.lock();
            if !self.purge_needed() {
                shard.compact();
            }
        }
    }
}
