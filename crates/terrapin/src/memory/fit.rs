//! Whether all records fit in memory among the cached ones, or all blocks, and what memtables may
//! take beside them.
//!
//! Where they fit, no get reads from the device, as long as memtables leave them the room. A
//! memtable of twice the size saves about half a byte for each byte written; a get that reads costs
//! fifty that do not. So while users read beside their writes, memtables are no larger than what
//! all records leave, or what all blocks leave where mostly ranges are asked for. A part of the
//! budget they have at least: where that is too much, not everything fits anyway.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use terrapin_base::{Purpose, Result};
use terrapin_structure::{Estimate, Version};

use crate::engine::core::Core;
use crate::engine::state::State;

/// What a cached record takes besides its bytes: header, ends of words, place in the table.
const RECORD_BYTES: u64 = 32;
/// The part of the budget that merges may come to use, at least.
const MERGE_PART: u64 = 32;
/// The part that is left over: what no count is exact about.
const SLACK_PART: u64 = 64;
/// The part of the budget that active memtables share where room is scarce.
const MEMTABLES_PART_MIN: u64 = 32;

/// Of what trees seem to hold so many thousandths must fit: some of it may be said twice.
const TO_FIT_PERMILLE: u64 = 850;

/// In the place of a count of records: that it is not known yet,
const UNKNOWN: u64 = u64::MAX;
/// and that it could not be found out.
const UNREADABLE: u64 = u64::MAX - 1;

/// What the trees of all keyspaces hold: the sums of their [`TreeSize`]s, so that nobody has to go
/// over them.
#[derive(Default)]
pub(crate) struct TreeSizes(Mutex<Sums>);

#[derive(Clone, Copy, Default)]
struct Sums {
    held: Estimate,
    live_bytes: u64,
    /// Trees of which it is not known what they hold, and trees that could not be measured.
    unknown: u64,
    unreadable: u64,
}

impl TreeSizes {
    /// What all hold; none while that is not known of all. What cannot be read counts as empty.
    pub fn held(&self) -> Option<Estimate> {
        let sums = *self.0.lock();
        (sums.unknown == 0).then_some(sums.held)
    }

    /// Whether all were measured, and could be read.
    pub fn are_known(&self) -> bool {
        let sums = *self.0.lock();
        sums.unknown == 0 && sums.unreadable == 0
    }

    /// Key and value bytes in all trees: see [`TreeSize::live_bytes`].
    pub fn live_bytes(&self) -> u64 {
        self.0.lock().live_bytes
    }
}

/// What a keyspace's tree holds, as far as it is known: every key once, about. Changes are made
/// under the lock of all sizes' sums.
pub(crate) struct TreeSize {
    all: Arc<TreeSizes>,
    records: AtomicU64,
    bytes: AtomicU64,
    /// Key and value bytes that readers see in the tree of the last commit, by its sums.
    live_bytes: AtomicU64,
    /// The keyspace was dropped: it is no part of the sums.
    is_gone: AtomicBool,
}

impl TreeSize {
    /// Of a tree of which nothing is known yet.
    pub fn new(all: &Arc<TreeSizes>) -> Self {
        all.0.lock().unknown += 1;
        TreeSize {
            all: all.clone(),
            records: AtomicU64::new(UNKNOWN),
            bytes: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
        }
    }

    /// What it holds; none until that is known.
    pub fn get(&self) -> Option<Estimate> {
        let records = self.records.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        match records {
            UNKNOWN => None,
            UNREADABLE => Some(Estimate::default()),
            records => Some(Estimate { records, bytes }),
        }
    }

    /// Makes a change, and keeps the sums right.
    fn change(&self, change: impl FnOnce()) {
        let mut sums = self.all.0.lock();
        let before = self.part();
        change();
        let after = self.part();
        let moved =
            |sum: u64, before: u64, after: u64| sum.wrapping_sub(before).wrapping_add(after);
        sums.held.records = moved(sums.held.records, before.held.records, after.held.records);
        sums.held.bytes = moved(sums.held.bytes, before.held.bytes, after.held.bytes);
        sums.live_bytes = moved(sums.live_bytes, before.live_bytes, after.live_bytes);
        sums.unknown = moved(sums.unknown, before.unknown, after.unknown);
        sums.unreadable = moved(sums.unreadable, before.unreadable, after.unreadable);
    }

    /// Its part of the sums.
    fn part(&self) -> Sums {
        if self.is_gone.load(Ordering::Relaxed) {
            return Sums::default();
        }
        let held = self.get();
        Sums {
            held: held.unwrap_or_default(),
            live_bytes: self.live_bytes(),
            unknown: u64::from(held.is_none()),
            unreadable: u64::from(!self.is_readable()),
        }
    }

    /// Its keyspace was dropped.
    pub fn leave(&self) {
        self.change(|| self.is_gone.store(true, Ordering::Relaxed));
    }

    /// It could not be measured, as a node cannot be read: it counts as empty until it is measured.
    /// Who needs the node reports it.
    pub fn unreadable(&self) {
        self.change(|| self.records.store(UNREADABLE, Ordering::Relaxed));
    }

    /// Whether it is not known to be unreadable.
    pub fn is_readable(&self) -> bool {
        self.records.load(Ordering::Relaxed) != UNREADABLE
    }

    /// Key and value bytes that readers see in the tree of the last commit, without a look at it.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Takes note of the tree that a keyspace has. May read its root.
    pub fn begin(&self, version: &dyn Version) -> Result<()> {
        let live_bytes = version.live_bytes()?;
        self.change(|| self.live_bytes.store(live_bytes, Ordering::Relaxed));
        Ok(())
    }

    /// The tree is empty: it leaves its room to the others at once.
    pub fn cleared(&self) {
        self.change(|| self.live_bytes.store(0, Ordering::Relaxed));
        self.set(Estimate::default());
    }

    /// It is known to hold that.
    pub fn set(&self, held: Estimate) {
        self.change(|| {
            self.bytes.store(held.bytes, Ordering::Relaxed);
            self.records.store(held.records, Ordering::Relaxed);
        });
    }
}

/// All that a version says. May read nodes.
fn stored(version: &dyn Version) -> Result<Estimate> {
    version.estimate((Bound::Unbounded, Bound::Unbounded))
}

/// What a version holds of `all` that it says. Of one that might fit in so much memory what is said
/// twice counts once, for which all of its nodes are visited.
fn held(version: &dyn Version, all: Estimate, memory_bytes: u64) -> Result<Estimate> {
    if all.bytes / 2 > memory_bytes {
        return Ok(all);
    }
    let stats = version.stats()?;
    let twice = stats.superseded_bytes.min(stats.buffered_bytes);
    let records = u128::from(stats.buffered_records) * u128::from(stats.buffered_bytes - twice)
        / u128::from(stats.buffered_bytes.max(1));
    Ok(Estimate {
        records: stats.leaf_records + u64::try_from(records).unwrap_or(0),
        bytes: (stats.leaf_bytes + stats.buffered_bytes).saturating_sub(stats.superseded_bytes),
    })
}

impl Core {
    /// Finds out what a keyspace's tree holds. May read nodes.
    pub fn measure(&self, size: &TreeSize, version: &dyn Version) -> Result<()> {
        size.set(held(version, stored(version)?, self.budget.limit())?);
        Ok(())
    }

    /// Takes note of what a keyspace's tree has come to hold by a merge that `added` so many
    /// records at most. A tree does not know which of its buffered records replace others before it
    /// meets them.
    pub fn measure_merged(&self, size: &TreeSize, version: &dyn Version, added: u64) -> Result<()> {
        let all = stored(version)?;
        size.begin(version)?;
        let now = held(version, all, self.budget.limit())?;
        let before = size.get().filter(|_| size.is_readable());
        let before = before.map_or(now.records, |before| before.records);
        let records = now.records.min(before.saturating_add(added));
        let bytes = u128::from(now.bytes) * u128::from(records) / u128::from(now.records.max(1));
        let bytes = u64::try_from(bytes).unwrap_or(now.bytes);
        size.set(Estimate { records, bytes });
        Ok(())
    }

    /// What all trees hold, as cached records; none where that is not known of all, or they are
    /// mostly too long to be cached.
    fn all_as_records(&self) -> Option<u64> {
        let all = self.tree_sizes.held()?;
        if all.bytes / all.records.max(1) > self.records.record_bytes_max() {
            return None;
        }
        let overhead = all.records.saturating_mul(RECORD_BYTES);
        Some(all.bytes.saturating_add(overhead))
    }

    /// What so many bytes of cached records leave to memtables of the budget; none where they would
    /// not fit.
    fn left_to_memtables(&self, all: u64) -> Option<u64> {
        if !self.settings.record_cache || all > self.records.bytes_max() {
            return None;
        }
        let taken = self.taken_besides() + self.budget.used(Purpose::Metadata);
        let limit = self.budget.limit();
        limit.checked_sub(taken.saturating_add(all))
    }

    /// What log and merges take of the budget, and what is left over.
    pub fn taken_besides(&self) -> u64 {
        let limit = self.budget.limit();
        let merge = self.budget.used(Purpose::Merge).max(limit / MERGE_PART);
        self.budget.used(Purpose::Log) + merge + limit / SLACK_PART
    }

    /// Bytes of arenas that all active memtables on auto may come to beside the records of all
    /// trees; none where those do not fit beside memtables of a reasonable size.
    pub fn arenas_beside_all(&self) -> Option<u64> {
        // As much again is sealed.
        let all = self.all_as_records()?;
        self.shared_by_memtables(self.left_to_memtables(all)?)
    }

    /// As [`Core::arenas_beside_all`], beside all pages.
    pub fn arenas_beside_blocks(&self) -> Option<u64> {
        let left = self.budget.limit().checked_sub(self.all_as_blocks())?;
        self.shared_by_memtables(left)
    }

    /// What applies of those two, by what users do; none where they hardly read.
    pub fn arenas_beside_what_is_read(&self) -> Option<u64> {
        match (self.mix.is_often_read(), self.mix.is_mostly_ranged()) {
            (true, true) => self.arenas_beside_blocks(),
            (true, false) => self.arenas_beside_all(),
            (false, _) => None,
        }
    }

    /// What memtables leave for the next ones, as far as to give it to the caches would save no
    /// read: where all that is read is cached beside memtables, all of it; elsewhere nothing.
    pub fn left_for_memtables_only(&self, state: &State) -> u64 {
        let beside = self.arenas_beside_what_is_read().unwrap_or(0);
        (2 * beside)
            .min(self.memtables(state))
            .saturating_sub(self.in_memtables())
    }

    /// Gives what the last memtables left for the next ones to the caches, except for what an
    /// active memtable may take beside all records and beside all pages.
    pub fn release_pool(&self) {
        let arenas = self.arenas_beside_all().unwrap_or(0);
        let arenas = arenas.min(self.arenas_beside_blocks().unwrap_or(0));
        self.pool
            .keep_only(arenas.saturating_sub(self.in_memtables()));
    }

    /// Bytes that memtables have, without what waits for the next ones.
    pub fn in_memtables(&self) -> u64 {
        let all = self.budget.used(Purpose::Memtable);
        all.saturating_sub(self.pool.bytes())
    }

    fn shared_by_memtables(&self, left: u64) -> Option<u64> {
        let each = left / 2;
        (each >= self.budget.limit() / MEMTABLES_PART_MIN).then_some(each)
    }

    /// What all pages take in the cache, with log and merges and what is left over.
    fn all_as_blocks(&self) -> u64 {
        let pages = self.store.live_bytes();
        // Slabs are not all full, and entries take something besides.
        pages + pages / 16 + self.taken_besides()
    }

    /// Whether what a memtable holds is to come among the cached records as it is merged: it would
    /// have to be read from the device again soon, or all are to be there.
    pub fn takes_memtables(&self) -> bool {
        self.mix.is_mostly_got()
            || self.mix.is_often_read() && self.could_hold_all(&self.state.load())
    }

    /// Whether the records of all trees could be cached beside the memtables of a state, each as
    /// large as it may come to be. Benevolently: who reads them all will know.
    pub fn could_hold_all(&self, state: &State) -> bool {
        let all = self.all_as_records().unwrap_or(u64::MAX);
        let left = self.left_to_memtables(all / 1000 * TO_FIT_PERMILLE);
        left.is_some_and(|left| self.memtables(state) <= left)
    }

    /// Whether all pages could be cached beside them.
    pub fn could_hold_blocks(&self, state: &State) -> bool {
        self.settings.record_cache
            && self.all_as_blocks() + self.memtables(state) <= self.budget.limit()
    }

    /// Bytes that the memtables of a state may come to take.
    fn memtables(&self, state: &State) -> u64 {
        let written = self.written_of(state);
        let memtables = written.iter().map(|keyspace| {
            let shared = &keyspace.shared;
            let held = shared.memtable_bytes.load(Ordering::Relaxed);
            let arena_permille = shared.arena_permille.load(Ordering::Relaxed);
            2 * (held / 1000).saturating_mul(arena_permille)
        });
        memtables.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;

    /// Read over and over, memtables of a database that fits gave their memory to caches that did
    /// not want it, and writers took it from the system again, page by page.
    #[test]
    fn caches_get_what_memtables_leave_only_where_they_want_it() {
        let (database, _sim) = Options::new().memory(64 << 20).open_simulated();
        let keyspace = database.default_keyspace();
        let core = &database.owner.core;
        let put = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                keyspace.put(number.to_be_bytes(), [0; 1 << 10]).unwrap();
            }
            database.checkpoint().unwrap();
        };
        // Half of its bound at least comes to wait for the next memtable.
        let pooled = || {
            core.pool.set_bytes_max(60 << 20);
            while core.pool.stock(usize::MAX) {}
            assert!(core.pool.bytes() >= 30 << 20);
        };
        put(0..8 << 10);
        pooled();
        let state = core.state.load_full();
        let arenas = core.arenas_beside_all().unwrap();
        assert!((8 << 20..30 << 20).contains(&arenas), "{arenas}");
        core.release_pool();
        assert_eq!(core.pool.bytes() >> 21, arenas >> 21);
        assert_eq!(core.left_for_memtables_only(&state), 0, "nobody reads");
        for number in 0..6000u64 {
            keyspace.get((number % 512).to_be_bytes()).unwrap();
            keyspace.put((number % 512).to_be_bytes(), [1]).unwrap();
        }
        core.look_at_operations();
        let state = core.state.load_full();
        let left = core.left_for_memtables_only(&state);
        assert!(left >= 8 << 20 && left + core.in_memtables() <= 2 * arenas);
        put(8 << 10..64 << 10);
        pooled();
        let state = core.state.load_full();
        assert_eq!(core.arenas_beside_all(), None);
        core.release_pool();
        assert_eq!(core.pool.bytes(), 0, "there is no room for all records");
        assert_eq!(core.left_for_memtables_only(&state), 0);
    }

    /// It was counted as the memtables', and every one of them was sealed for it, over and over.
    #[test]
    fn memory_that_waits_for_memtables_has_none_sealed() {
        let (database, sim) = Options::new().memory(64 << 20).open_simulated();
        sim.set_breathing(false);
        database.default_keyspace().put("a", "1").unwrap();
        let core = &database.owner.core;
        let high = 16 << 20;
        core.memtable_memory_high.store(high, Ordering::Relaxed);
        core.pool.set_bytes_max(60 << 20);
        while core.pool.stock(usize::MAX) {}
        assert!(core.budget.used(Purpose::Memtable) > high && !core.memtables_are_large());
        core.cut_largest();
        assert_eq!(core.schedule.sealed_count(), 0);
        core.pool.trim();
        assert!(core.budget.used(Purpose::Memtable) <= high);
        database.close().unwrap();
    }
}
