//! The purge removes the entries of pages that a checkpoint freed, one bounded step at a time.
//! Eviction alone would let a dead index stay long. The purge then joins slabs that are mostly
//! empty.

use std::collections::HashSet;

use terrapin_base::sync::{Mutex, Ordering, yield_now};
use terrapin_base::{PageId, Purpose};

use super::lanes::{Sparse, SparseCursor};
use super::shard::{IdHash, Shard};
use super::{Cache, SHARDS};

/// Slots that one step looks at.
const STEP_SLOTS: usize = 4096;
/// Slabs that one step looks at.
const STEP_SLABS: usize = 256;

/// The pages whose entries the purge removes, and the purge's position.
#[derive(Default)]
pub(super) struct Purge {
    /// Whether a thread works on the purge without the lock. New pages then collect in `waiting`.
    busy: bool,
    waiting: Vec<PageId>,
    dead: HashSet<PageId, IdHash>,
    /// The shard that the next step visits: first shards of blocks, then of metadata, then the
    /// slabs.
    shard: usize,
    slot: usize,
    slabs: SparseCursor,
}

/// The purge while one thread works on it. Its drop puts the purge back, also after a panic.
struct AtWork<'c> {
    cache: &'c Cache,
    purge: Purge,
}

impl Cache {
    /// Notes at least one page that was freed. [`Cache::purge_step`] removes the pages' entries.
    pub(crate) fn forget(&self, pages: Vec<PageId>) {
        let mut purge = self.purge.lock();
        purge.waiting.extend(pages);
        self.purging.store(true, Ordering::Relaxed);
    }

    /// Whether the purge has work left.
    pub(crate) fn purge_needed(&self) -> bool {
        self.purging.load(Ordering::Relaxed)
    }

    /// One bounded step of the purge: at most 4,096 slots of one shard, or 256 slabs.
    pub(crate) fn purge_step(&self) {
        let Some(mut at_work) = self.begin_purge() else {
            // A job and a close may both purge until nothing is left. One must not spin while the
            // other waits for a processor.
            yield_now();
            return;
        };
        let purge = &mut at_work.purge;
        if purge.dead.is_empty() {
            purge.dead.extend(purge.waiting.drain(..));
            (purge.shard, purge.slot) = (0, 0);
            purge.slabs = SparseCursor::default();
        }
        if purge.dead.is_empty() {
            return;
        }
        let at = purge.shard;
        if let Some(shard) = self.blocks.get(at) {
            self.purge_shard(shard, Purpose::Blocks, purge);
        } else if let Some(shard) = self.metadata.get(at - SHARDS) {
            self.purge_shard(shard, Purpose::Metadata, purge);
        } else {
            match self.lanes.take_sparse(&mut purge.slabs, STEP_SLABS) {
                Sparse::Found(cohort, worth) => self.recycle(cohort, worth, 0, u64::MAX),
                Sparse::Nothing => {}
                Sparse::End => purge.dead.clear(),
            }
        }
    }

    /// Takes the purge out, so that its lock is not held while the shards' locks are. `None` while
    /// another thread has the purge.
    fn begin_purge(&self) -> Option<AtWork<'_>> {
        let mut shared = self.purge.lock();
        if shared.busy {
            return None;
        }
        let left = Purge {
            busy: true,
            ..Purge::default()
        };
        let purge = std::mem::replace(&mut *shared, left);
        Some(AtWork { cache: self, purge })
    }

    fn purge_shard<V: Clone>(&self, shard: &Mutex<Shard<V>>, purpose: Purpose, purge: &mut Purge) {
        let mut gone = Vec::new();
        let dead = &purge.dead;
        {
            let mut shard = shard.lock();
            let is_dead = |page| dead.contains(&page);
            match shard.purge(purge.slot, STEP_SLOTS, &is_dead, &mut gone) {
                Some(slot) => purge.slot = slot,
                None => {
                    shard.compact();
                    (purge.shard, purge.slot) = (purge.shard + 1, 0);
                }
            }
        }
        gone.into_iter().for_each(|entry| self.gone(purpose, entry));
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut purge = std::mem::take(&mut self.purge);
        let mut now = self.cache.purge.lock();
        purge.waiting.append(&mut now.waiting);
        let is_needed = !purge.dead.is_empty() || !purge.waiting.is_empty();
        self.cache.purging.store(is_needed, Ordering::Relaxed);
        *now = purge;
    }
}

#[cfg(all(test, not(terrapin_shuttle)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use terrapin_base::Budget;
    use terrapin_base::sync::Arc;

    use super::*;
    use crate::cache::{Key, Kind, shard};

    #[test]
    fn a_purge_finds_all_entries_beside_a_compaction() {
        let cache = Cache::new(Budget::new(16 << 20));
        let page = PageId(1);
        let keys = (0..).map(|number| Key {
            page,
            kind: Kind::Object,
            number,
        });
        let first = &cache.metadata[0];
        let of_first = |key: &Key| std::ptr::eq(shard(&cache.metadata, *key), &**first);
        // After one step few entries are left, so a compaction of the shard has something to do.
        let left = STEP_SLOTS / 4;
        for key in keys.filter(of_first).take(STEP_SLOTS + left) {
            cache.insert(key, Arc::new(()), 0);
        }
        cache.forget(vec![page]);
        // One step for each shard of blocks, then one for the first shard of metadata.
        (0..=SHARDS).for_each(|_| cache.purge_step());
        assert_eq!(first.lock().len(), left);
        cache.compact();
        while cache.purge_needed() {
            cache.purge_step();
        }
        assert_eq!(first.lock().len(), 0);
    }

    /// Guards against a purge that stays marked busy after a panic. A close and every checkpoint
    /// would wait for it.
    #[test]
    fn a_purge_continues_after_a_panic() {
        let cache = Cache::new(Budget::new(16 << 20));
        let (page, kind, number) = (PageId(1), Kind::Object, 0);
        let key = Key { page, kind, number };
        cache.insert(key, Arc::new(()), 0);
        cache.forget(vec![page]);
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            let at_work = cache.begin_purge();
            assert!(at_work.is_none(), "a panic in a step");
        }));
        assert!(stepped.is_err() && cache.purge_needed());
        let steps = (0..10 * SHARDS).take_while(|_| cache.purge_needed());
        steps.for_each(|_| cache.purge_step());
        assert!(!cache.purge_needed());
        assert_eq!(shard(&cache.metadata, key).lock().len(), 0);
    }
}
