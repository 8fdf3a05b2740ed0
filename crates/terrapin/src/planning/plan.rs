//! [`plan`]: one pure function from [`Facts`] to a [`Plan`], which shares out the memory budget.
//!
//! `memory::apply` gathers the facts and applies the plan. This file reads no clock, takes no lock
//! and does not know the engine. All numbers are integers, and facts of any size give a plan.
//! `docs/MEMORY.md` is the page for readers: shares, floors, and what happens when memory is short.
//!
//! Invariants, held by the property tests in `plan/tests.rs`:
//!
//! - The same facts give the same plan.
//! - Memtables that follow the plan leave the caches a part of the budget. The mark at which
//!   writers wait is below the budget. The mark at which memtables are sealed early is below the
//!   first mark.
//! - A memtable may hold at least one unit of L bytes. All automatic memtables together may hold no
//!   more than half of the budget, except where one unit each is more.
//! - More memory never means smaller memtables or fewer cached records. There is one exception: if
//!   the additional memory makes everything fit into the caches, memtables shrink.

use terrapin_structure::Estimate;

use crate::planning::disk_state::DiskState;
use crate::planning::workload::{Mix, ReadKind};
use crate::types::options::CheckpointDistance;
use crate::types::options::settings::DISTANCE_MAX;
use crate::types::options::settings::distance_max;

/// The part of the budget that active memtables share, by what they hold.
const MEMTABLES_PART: u64 = 6;
/// The smallest part of the budget for active memtables, by their arenas, beside caches that hold
/// everything. If this is too much, not everything fits.
const MEMTABLES_PART_MIN: u64 = 32;
/// The share that arenas of active memtables have in a load at most, in thousandths.
const LOAD_ARENA_PERMILLE: u64 = 430;
/// The part of the budget that a load leaves to indexes, filters and nodes.
const LOAD_METADATA_PART: u64 = 16;
/// The smallest part of the budget that merges may use.
const MERGE_PART: u64 = 32;
/// The part of the budget that stays free, since no count is exact.
const SLACK_PART: u64 = 64;
/// The part of the budget that the pool of memtable memory may always keep.
const POOL_PART: u64 = 8;
/// Memory of a cached record besides its bytes: header, rounding, and its entry in the table.
const RECORD_OVERHEAD_BYTES: u64 = 32;
/// Share of the trees' estimated content that must fit, in thousandths. Some records may be counted
/// twice.
const TO_FIT_PERMILLE: u64 = 850;
/// Bytes of an arena per thousand bytes that its memtable counts, until a memtable of the keyspace
/// has shown its own ratio.
pub(crate) const ARENA_PERMILLE: u64 = 1600;

/// The facts from which a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The memory budget.
    pub budget_bytes: u64,
    /// Bytes of the budget that the log and the keyspaces' own data take.
    pub fixed_bytes: u64,
    /// Bytes of the budget that merges take now.
    pub merge_bytes: u64,
    /// Bytes of the budget that indexes, filters and nodes take now.
    pub metadata_bytes: u64,
    /// Bytes that all memtables would take if every one were full, by the limits in force.
    pub full_memtables_bytes: u64,
    /// L, the unit that χ counts.
    pub unit_bytes: u64,
    /// χ of keyspaces that have none of their own.
    pub distance: CheckpointDistance,
    /// Number of keyspaces with a record in a memtable.
    pub writers: u64,
    /// Whether all of these keyspaces are known to write mostly new keys.
    pub is_growing: bool,
    /// The mix of users' operations.
    pub mix: Mix,
    /// Content of all trees. None while it is unknown.
    pub trees: Option<Estimate>,
    /// Bytes of all live pages.
    pub page_bytes: u64,
    /// Limits of the record cache. None if it is switched off.
    pub record_cache: Option<RecordCacheBounds>,
    /// Bytes of log that the next open may have to replay; the largest number without a bound.
    pub replay_bytes_max: u64,
    /// How much room the disk has. On a low disk, memtables are small (D10).
    pub disk: DiskState,
}

/// The limits of the record cache, for any budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordCacheBounds {
    /// Bytes of all records.
    pub bytes_max: u64,
    /// Bytes of one record.
    pub record_bytes_max: u64,
}

impl Facts {
    /// The facts of a database that was just opened: empty and unused.
    pub fn at_open(budget_bytes: u64, unit_bytes: u64, distance: CheckpointDistance) -> Self {
        Facts {
            budget_bytes,
            fixed_bytes: 0,
            merge_bytes: 0,
            metadata_bytes: 0,
            full_memtables_bytes: 0,
            unit_bytes,
            distance,
            writers: 0,
            is_growing: false,
            mix: Mix::default(),
            trees: None,
            page_bytes: 0,
            record_cache: None,
            replay_bytes_max: u64::MAX,
            disk: DiskState::Ample,
        }
    }

    /// Whether users load: they write and hardly read, and the writes add records, or there is
    /// little to overwrite.
    fn is_load(&self) -> bool {
        let is_small = self.page_bytes < self.budget_bytes / MEMTABLES_PART;
        !self.mix.is_read && (self.is_growing || is_small)
    }

    /// Bytes of the budget that the log, the keyspaces' own data and merges take, and that stay
    /// free.
    fn taken_bytes(&self) -> u64 {
        let merge_bytes = self.merge_bytes.max(self.budget_bytes / MERGE_PART);
        let slack_bytes = self.budget_bytes / SLACK_PART;
        self.fixed_bytes
            .saturating_add(merge_bytes)
            .saturating_add(slack_bytes)
    }

    /// Arenas of all active memtables in a load.
    fn load_arena_bytes(&self) -> u64 {
        let metadata_bytes = self.budget_bytes / LOAD_METADATA_PART;
        let taken_bytes = self.taken_bytes().saturating_add(metadata_bytes);
        let left_bytes = self.budget_bytes.saturating_sub(taken_bytes);
        // The sealed memtables take as much again.
        (left_bytes / 2).min(self.budget_bytes / 1000 * LOAD_ARENA_PERMILLE)
    }

    /// Bytes of all records as cached records. None if unknown, or if the mean record is too long
    /// for the cache.
    fn all_records_bytes(&self) -> Option<u64> {
        let trees = self.trees?;
        let record_bytes_max = self.record_cache?.record_bytes_max;
        if trees.bytes / trees.records.max(1) > record_bytes_max {
            return None;
        }
        let overhead_bytes = trees.records.saturating_mul(RECORD_OVERHEAD_BYTES);
        Some(trees.bytes.saturating_add(overhead_bytes))
    }

    /// Bytes left to memtables beside `bytes` of cached records. None if the records do not fit.
    fn beside_records(&self, bytes: u64) -> Option<u64> {
        if bytes > self.record_cache?.bytes_max {
            return None;
        }
        let taken_bytes = self.taken_bytes().saturating_add(self.metadata_bytes);
        self.budget_bytes
            .checked_sub(taken_bytes.saturating_add(bytes))
    }

    /// Bytes of all pages as cached blocks, and what log and merges take.
    fn all_blocks_bytes(&self) -> u64 {
        // Slabs are not completely full, and cache entries take memory, too.
        self.page_bytes
            .saturating_add(self.page_bytes / 16)
            .saturating_add(self.taken_bytes())
    }

    /// Bytes for arenas of active memtables, out of what caches leave to memtables. None if that is
    /// too little.
    fn active_arena_bytes(&self, left_bytes: u64) -> Option<u64> {
        let arena_bytes = left_bytes / 2;
        (arena_bytes >= self.budget_bytes / MEMTABLES_PART_MIN).then_some(arena_bytes)
    }

    /// Whether all records fit in the cache beside full memtables. Some records may be counted
    /// twice in the trees, so a little less must fit.
    fn do_records_fit(&self) -> bool {
        let all_bytes = self.all_records_bytes();
        let left_bytes =
            all_bytes.and_then(|bytes| self.beside_records(bytes / 1000 * TO_FIT_PERMILLE));
        left_bytes.is_some_and(|left_bytes| self.full_memtables_bytes <= left_bytes)
    }

    /// Whether all blocks fit in the cache beside full memtables.
    fn do_blocks_fit(&self) -> bool {
        let bytes = self
            .all_blocks_bytes()
            .saturating_add(self.full_memtables_bytes);
        self.record_cache.is_some() && bytes <= self.budget_bytes
    }
}

/// The division of the memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Above this, the largest memtables are sealed before they are full.
    pub seal_early_bytes: u64,
    /// Bytes that the pool of memtable memory may keep, however slow writers are.
    pub pool_floor_bytes: u64,
    /// Bytes that the pool may keep while writers are fast.
    pub pool_ceiling_bytes: u64,
    /// Bytes that memtables and pool may keep together, because the caches hold everything that is
    /// read without them. 0 if the caches do not.
    pub memtables_spared_bytes: u64,
    /// Bytes that an active memtable keeps when caches want the pool's memory.
    pub active_spared_bytes: u64,
    /// The mix of operations when this was planned.
    pub mix: Mix,
    /// True if everything that these reads need fits in its cache. The warm-up then reads it once.
    pub warms_up: bool,
    /// Whether a merge also puts the memtable's records into the record cache.
    pub caches_merged_records: bool,
    /// The basis for the limits of memtables.
    limits: LimitBasis,
}

/// The part of the plan that is equal for the limits of all memtables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitBasis {
    budget_bytes: u64,
    unit_bytes: u64,
    distance: CheckpointDistance,
    writers: u64,
    /// Bytes of arenas of active memtables in a load. None for other workloads.
    load_arena_bytes: Option<u64>,
    /// Bytes of arenas of active memtables beside caches that hold everything that is read. None if
    /// that does not fit, or if users do not read often.
    beside_caches_arena_bytes: Option<u64>,
    /// The most that one memtable may hold, for the sake of a replay.
    replayed_bytes_max: u64,
    is_disk_low: bool,
}

/// Bytes at which one keyspace's active memtable is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemtableLimit {
    /// The limit in force.
    pub bytes: u64,
    /// The limit when the disk has room.
    pub ample_bytes: u64,
}

/// Shares the budget out. Equal facts give equal plans.
pub(crate) fn plan(facts: &Facts) -> Plan {
    let load_arena_bytes = facts.load_arena_bytes();
    let all_records_bytes = facts.all_records_bytes();
    let beside_records = all_records_bytes
        .and_then(|bytes| facts.beside_records(bytes))
        .and_then(|left_bytes| facts.active_arena_bytes(left_bytes));
    let beside_blocks = facts
        .budget_bytes
        .checked_sub(facts.all_blocks_bytes())
        .and_then(|left_bytes| facts.active_arena_bytes(left_bytes));
    let (fits, beside_caches) = match facts.mix.reads {
        ReadKind::Gets => (facts.do_records_fit(), beside_records),
        ReadKind::Ranges => (facts.do_blocks_fit(), beside_blocks),
    };
    let beside_caches = beside_caches.filter(|_| facts.mix.is_often_read);
    let is_load = facts.is_load();
    let mut seal_early_bytes = usual_seal_early_bytes(facts.budget_bytes);
    if is_load {
        // An arena may take a little more than the last one did for the same records. The pool may
        // hold a few chunks.
        let both_bytes = load_arena_bytes * 2 + facts.budget_bytes / 64;
        seal_early_bytes = seal_early_bytes.max(both_bytes);
    }
    let get_soon = facts.mix.is_mostly_got || facts.mix.is_often_read && facts.do_records_fit();
    Plan {
        seal_early_bytes,
        pool_floor_bytes: pool_floor_bytes(facts.budget_bytes),
        // The memory that a load's memtable frees. The next memtable is almost full by then.
        pool_ceiling_bytes: load_arena_bytes,
        memtables_spared_bytes: beside_caches
            .map_or(0, |bytes| (bytes * 2).min(facts.full_memtables_bytes)),
        active_spared_bytes: beside_records.unwrap_or(0).min(beside_blocks.unwrap_or(0)),
        mix: facts.mix,
        warms_up: fits,
        caches_merged_records: facts.record_cache.is_some() && get_soon,
        limits: LimitBasis {
            budget_bytes: facts.budget_bytes,
            unit_bytes: facts.unit_bytes.max(1),
            distance: facts.distance,
            writers: facts.writers.max(1),
            load_arena_bytes: is_load.then_some(load_arena_bytes),
            beside_caches_arena_bytes: beside_caches,
            replayed_bytes_max: facts.replay_bytes_max / 8 * 3 / facts.writers.max(1),
            is_disk_low: facts.disk == DiskState::Low,
        },
    }
}

impl Plan {
    /// χ of keyspaces that have none of their own.
    pub fn distance(&self) -> CheckpointDistance {
        self.limits.distance
    }

    /// The limit of a memtable: χ·L, with the keyspace's own χ or the database's. `arena_permille`
    /// is what the keyspace's arenas take per thousand bytes that their memtable counts.
    pub fn memtable_limit(
        &self,
        own: Option<CheckpointDistance>,
        arena_permille: u64,
    ) -> MemtableLimit {
        let basis = &self.limits;
        let units = match own.unwrap_or(basis.distance) {
            // Memory may have shrunk since a fixed χ was accepted.
            CheckpointDistance::Fixed(chi) => {
                u64::from(chi).min(distance_max(basis.budget_bytes, basis.unit_bytes))
            }
            CheckpointDistance::Auto => {
                basis.auto_share_bytes(arena_permille) / basis.writers / basis.unit_bytes
            }
        };
        let units = units.min(basis.replayed_bytes_max / basis.unit_bytes);
        let units = units.clamp(1, DISTANCE_MAX);
        let ample_bytes = units.saturating_mul(basis.unit_bytes);
        let bytes = match basis.is_disk_low {
            true => basis.unit_bytes,
            false => ample_bytes,
        };
        MemtableLimit { bytes, ample_bytes }
    }
}

impl LimitBasis {
    /// Bytes that all active memtables on auto may hold together.
    fn auto_share_bytes(&self, arena_permille: u64) -> u64 {
        let held_in = |arena_bytes: u64| {
            let held = u128::from(arena_bytes) * 1000 / u128::from(arena_permille.max(1000));
            u64::try_from(held).unwrap_or(arena_bytes)
        };
        let usual_bytes = self.budget_bytes / MEMTABLES_PART;
        let load_bytes = self.load_arena_bytes.map_or(0, held_in);
        let share_bytes = usual_bytes.max(load_bytes);
        match self.beside_caches_arena_bytes {
            Some(arena_bytes) => share_bytes.min(held_in(arena_bytes)),
            None => share_bytes,
        }
    }
}

/// [`Plan::seal_early_bytes`], unless a load may take more.
pub(crate) fn usual_seal_early_bytes(budget_bytes: u64) -> u64 {
    budget_bytes / 10 * 6
}

/// Above this much memtable memory, writers wait until a merge gives some back.
#[inline]
pub(crate) fn writers_wait_bytes(budget_bytes: u64) -> u64 {
    budget_bytes / 16 * 15
}

/// [`Plan::pool_floor_bytes`].
pub(crate) fn pool_floor_bytes(budget_bytes: u64) -> u64 {
    budget_bytes / POOL_PART
}

#[cfg(test)]
mod tests;
