//! How the memory budget is shared out: one pure function from [`Facts`] to a [`Plan`].
//!
//! `memory::apply` gathers the facts and applies the plan. Nothing here reads a clock, takes a lock
//! or knows the engine; all numbers are integers, and facts of any size give a plan.
//! `docs/MEMORY.md` has the page for readers: shares, floors, and what happens when memory is
//! short.
//!
//! Invariants, held by the property tests below:
//!
//! - The same facts give the same plan.
//! - Memtables that follow the plan leave the caches a part of the budget: the mark at which
//!   writers wait is below the budget, and the mark at which memtables are sealed early is below
//!   that one.
//! - A memtable may hold at least one unit of L bytes. All automatic memtables together may hold no
//!   more than half of the budget, except where one unit each is more.
//! - More memory never means smaller memtables or fewer cached records, unless the additional
//!   memory is what makes everything fit into the caches. Memtables give way then.

use terrapin_structure::Estimate;

use crate::memory::workload::{Mix, ReadKind};
use crate::types::options::{CheckpointDistance, DISTANCE_MAX, distance_max};

/// The part of the budget that active memtables share, by what they hold.
const MEMTABLES_PART: u64 = 6;
/// The part of the budget that active memtables have at least, by their arenas, beside caches that
/// hold everything. Where this is too much, not everything fits anyway.
const MEMTABLES_PART_MIN: u64 = 32;
/// The share that arenas of active memtables have in a load at most, in thousandths.
const LOAD_ARENA_PERMILLE: u64 = 430;
/// The part of the budget that a load leaves to indexes, filters and nodes.
const LOAD_METADATA_PART: u64 = 16;
/// The part of the budget that merges may come to use, at least.
const MERGE_PART: u64 = 32;
/// The part of the budget that stays free, since no count is exact.
const SLACK_PART: u64 = 64;
/// The part of the budget that the pool of memtable memory may keep in any case.
const POOL_PART: u64 = 8;
/// What a cached record takes besides its bytes: header, rounding, its entry in the table.
const RECORD_OVERHEAD_BYTES: u64 = 32;
/// This share of what trees seem to hold must fit, in thousandths: some of it may be said twice.
const TO_FIT_PERMILLE: u64 = 850;
/// What an arena takes for a thousand bytes that its memtable counts, until a memtable of the
/// keyspace has shown it.
pub(crate) const ARENA_PERMILLE: u64 = 1600;

/// What a plan is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The memory budget.
    pub budget_bytes: u64,
    /// What the log takes of the budget.
    pub log_bytes: u64,
    /// What merges take of the budget at the moment.
    pub merge_bytes: u64,
    /// What indexes, filters and nodes take of the budget at the moment.
    pub metadata_bytes: u64,
    /// What all memtables would take if every one were full, by the limits in force.
    pub full_memtables_bytes: u64,
    /// L, the unit that χ counts.
    pub unit_bytes: u64,
    /// χ of keyspaces that have none of their own.
    pub distance: CheckpointDistance,
    /// Keyspaces of which a memtable holds a record.
    pub writers: u64,
    /// All of these keyspaces are known to write mostly new keys.
    pub is_growing: bool,
    /// What users mostly do.
    pub mix: Mix,
    /// What all trees hold; none while that is not known.
    pub trees: Option<Estimate>,
    /// Bytes of all live pages.
    pub page_bytes: u64,
    /// What the record cache can take; none where it is switched off.
    pub record_cache: Option<RecordCacheBounds>,
    /// The disk is low: there is room for small memtables only (D10).
    pub is_disk_low: bool,
}

/// What the record cache can take, however large the budget is.
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
            log_bytes: 0,
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
            is_disk_low: false,
        }
    }

    /// Users write and hardly read, and the writes add records, or there is little to overwrite.
    fn is_load(&self) -> bool {
        let is_small = self.page_bytes < self.budget_bytes / MEMTABLES_PART;
        !self.mix.is_read && (self.is_growing || is_small)
    }

    /// What log and merges take of the budget, and what stays free.
    fn taken_bytes(&self) -> u64 {
        let merge_bytes = self.merge_bytes.max(self.budget_bytes / MERGE_PART);
        let slack_bytes = self.budget_bytes / SLACK_PART;
        self.log_bytes
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

    /// All records as cached records; none where that is not known, or the mean record is too long
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

    /// What memtables may take beside `bytes` of cached records; none where these do not fit.
    fn beside_records(&self, bytes: u64) -> Option<u64> {
        if bytes > self.record_cache?.bytes_max {
            return None;
        }
        let taken_bytes = self.taken_bytes().saturating_add(self.metadata_bytes);
        self.budget_bytes
            .checked_sub(taken_bytes.saturating_add(bytes))
    }

    /// All pages as cached blocks, with what log and merges take.
    fn all_blocks_bytes(&self) -> u64 {
        // Slabs are not all full, and entries take something besides.
        self.page_bytes
            .saturating_add(self.page_bytes / 16)
            .saturating_add(self.taken_bytes())
    }

    /// The arenas of active memtables, of what caches leave to memtables; none where that is too
    /// little.
    fn active_arena_bytes(&self, left_bytes: u64) -> Option<u64> {
        let arena_bytes = left_bytes / 2;
        (arena_bytes >= self.budget_bytes / MEMTABLES_PART_MIN).then_some(arena_bytes)
    }

    /// Whether all records fit in the cache beside full memtables. Some of what trees seem to hold
    /// may be said twice, so a little less must fit.
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

/// How memory is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Above this, the largest memtables are sealed though they are not full.
    pub seal_early_bytes: u64,
    /// The pool of memtable memory may keep this much however slowly writers write.
    pub pool_floor_bytes: u64,
    /// The pool may keep this much where writers are fast.
    pub pool_ceiling_bytes: u64,
    /// Memtables and pool may keep this much together, since the caches hold everything that is
    /// read without it. 0 where they do not.
    pub memtables_spared_bytes: u64,
    /// When caches want the pool's memory, an active memtable still keeps this much.
    pub active_spared_bytes: u64,
    /// What users mostly did when this was planned.
    pub mix: Mix,
    /// Everything that these reads need fits in its cache: bring it in once.
    pub warms_up: bool,
    /// A merge also puts the memtable's records into the record cache.
    pub caches_merged_records: bool,
    /// What limits of memtables are computed from.
    limits: LimitBasis,
}

/// What is the same for the limits of all memtables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitBasis {
    budget_bytes: u64,
    unit_bytes: u64,
    distance: CheckpointDistance,
    writers: u64,
    /// Arenas of active memtables in a load; none where users do something else.
    load_arena_bytes: Option<u64>,
    /// Arenas of active memtables beside caches that hold everything that is read; none where that
    /// does not fit, or users do not read often.
    beside_caches_arena_bytes: Option<u64>,
    is_disk_low: bool,
}

/// Bytes at which one keyspace's active memtable is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemtableLimit {
    /// In force.
    pub bytes: u64,
    /// While the disk has room.
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
        // An arena may take a little more than the last one did for the same records, and the pool
        // may hold a few chunks.
        let both_bytes = load_arena_bytes * 2 + facts.budget_bytes / 64;
        seal_early_bytes = seal_early_bytes.max(both_bytes);
    }
    let get_soon = facts.mix.is_mostly_got || facts.mix.is_often_read && facts.do_records_fit();
    Plan {
        seal_early_bytes,
        pool_floor_bytes: pool_floor_bytes(facts.budget_bytes),
        // What a load's memtable leaves. The next one is as good as full by then.
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
            is_disk_low: facts.is_disk_low,
        },
    }
}

impl Plan {
    /// χ of keyspaces that have none of their own.
    pub fn distance(&self) -> CheckpointDistance {
        self.limits.distance
    }

    /// The limit of a memtable: χ·L, with the keyspace's own χ or the database's. `arena_permille`
    /// is what the keyspace's arenas take for a thousand bytes that their memtable counts.
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
    /// What all active memtables on auto may hold together.
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
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A small generator: equal seeds give equal facts.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.next() % bound.max(1)
        }

        fn flag(&mut self) -> bool {
            self.below(2) == 0
        }

        /// A number of any magnitude below 2^`bits`.
        fn magnitude(&mut self, bits: u64) -> u64 {
            let shift = self.below(bits);
            self.below(1 << shift)
        }

        fn mix(&mut self) -> Mix {
            let is_often_read = self.flag();
            Mix {
                is_read: is_often_read || self.flag(),
                is_often_read,
                is_mostly_got: self.flag(),
                reads: match self.flag() {
                    true => ReadKind::Gets,
                    false => ReadKind::Ranges,
                },
            }
        }

        fn distance(&mut self) -> CheckpointDistance {
            match self.below(4) {
                0 => CheckpointDistance::Fixed(self.magnitude(32) as u32),
                _ => CheckpointDistance::Auto,
            }
        }

        /// Facts that an engine could gather.
        fn facts(&mut self) -> Facts {
            // Multiples of 64 KiB, so that a larger budget loses nothing to rounding.
            let budget_bytes = (16 + self.magnitude(20)) << 16;
            let records = self.magnitude(32);
            Facts {
                budget_bytes,
                log_bytes: self.below(budget_bytes / 4),
                merge_bytes: self.below(budget_bytes / 4),
                metadata_bytes: self.below(budget_bytes / 4),
                full_memtables_bytes: self.below(budget_bytes),
                unit_bytes: 1 << (12 + self.below(12)),
                distance: self.distance(),
                writers: self.magnitude(18),
                is_growing: self.flag(),
                mix: self.mix(),
                trees: self.flag().then(|| Estimate {
                    records,
                    bytes: records * self.magnitude(14),
                }),
                page_bytes: self.magnitude(40),
                record_cache: (self.below(4) > 0).then(|| RecordCacheBounds {
                    bytes_max: budget_bytes * (1 + self.below(64)),
                    record_bytes_max: 1 << self.below(20),
                }),
                is_disk_low: self.below(8) == 0,
            }
        }

        /// Facts that no engine gathers: every number may be anything.
        fn hostile(&mut self) -> Facts {
            let mut any = || match self.below(4) {
                0 => 0,
                1 => u64::MAX - self.below(3),
                _ => self.next().rotate_left(self.0 as u32 % 64),
            };
            let numbers = [(); 11].map(|()| any());
            let [budget_bytes, log_bytes, merge_bytes, metadata_bytes, ..] = numbers;
            Facts {
                budget_bytes,
                log_bytes,
                merge_bytes,
                metadata_bytes,
                full_memtables_bytes: numbers[4],
                unit_bytes: numbers[5],
                writers: numbers[6],
                page_bytes: numbers[7],
                trees: Some(Estimate {
                    records: numbers[8],
                    bytes: numbers[9],
                }),
                record_cache: Some(RecordCacheBounds {
                    bytes_max: numbers[10],
                    record_bytes_max: numbers[4],
                }),
                ..self.facts()
            }
        }

        fn arena_permille(&mut self) -> u64 {
            1000 + self.magnitude(13)
        }
    }

    fn for_each_seed(check: impl Fn(&mut Random)) {
        for seed in 1..=20_000_u64 {
            let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
            check(&mut random);
        }
    }

    /// A database of 1 GiB that users load, read or overwrite.
    fn of_a_gibibyte(mix: Mix) -> Facts {
        Facts {
            log_bytes: 16 * MIB,
            writers: 1,
            mix,
            record_cache: Some(RecordCacheBounds {
                bytes_max: 64 << 30,
                record_bytes_max: MIB,
            }),
            ..Facts::at_open(1 << 30, 4 * MIB, CheckpointDistance::Auto)
        }
    }

    const WRITES_ONLY: Mix = Mix {
        is_read: false,
        is_often_read: false,
        is_mostly_got: false,
        reads: ReadKind::Gets,
    };
    const READS: Mix = Mix {
        is_read: true,
        is_often_read: true,
        is_mostly_got: false,
        reads: ReadKind::Gets,
    };

    fn auto_bytes(facts: &Facts) -> u64 {
        plan(facts).memtable_limit(None, ARENA_PERMILLE).bytes
    }

    #[test]
    fn a_load_gets_larger_memtables_than_overwriting() {
        let load = Facts {
            is_growing: true,
            page_bytes: 8 << 30,
            ..of_a_gibibyte(WRITES_ONLY)
        };
        let overwriting = Facts {
            is_growing: false,
            ..load
        };
        assert_eq!(auto_bytes(&overwriting), 168 * MIB);
        assert_eq!(auto_bytes(&load), 272 * MIB);
        let little = Facts {
            page_bytes: 100 * MIB,
            ..overwriting
        };
        assert_eq!(auto_bytes(&little), 272 * MIB, "little to overwrite");
        let read = Facts {
            mix: Mix::default(),
            ..load
        };
        assert_eq!(auto_bytes(&read), 168 * MIB);
        assert!(plan(&load).seal_early_bytes > plan(&read).seal_early_bytes);
    }

    #[test]
    fn memtables_give_way_to_what_users_read_if_all_of_it_fits() {
        let gets = Facts {
            trees: Some(Estimate {
                records: 4_000_000,
                bytes: 600 * MIB,
            }),
            page_bytes: 700 * MIB,
            metadata_bytes: 20 * MIB,
            ..of_a_gibibyte(READS)
        };
        // 1024 - 600 - 122 (overhead) - 16 (log) - 32 (merges) - 16 (slack) - 20 (metadata) = 218
        // MiB for the arenas of two memtables, which take 1.6 times what they hold.
        assert_eq!(auto_bytes(&gets), 68 * MIB);
        assert!(plan(&gets).warms_up && plan(&gets).caches_merged_records);
        let ranges = Facts {
            mix: Mix {
                reads: ReadKind::Ranges,
                ..READS
            },
            ..gets
        };
        assert_eq!(auto_bytes(&ranges), 64 * MIB);
        let seldom_read = Facts {
            mix: Mix {
                is_often_read: false,
                ..READS
            },
            ..gets
        };
        assert_eq!(auto_bytes(&seldom_read), 168 * MIB);
        let too_much = Facts {
            trees: Some(Estimate {
                records: 8_000_000,
                bytes: 1200 * MIB,
            }),
            ..gets
        };
        assert_eq!(auto_bytes(&too_much), 168 * MIB);
        assert!(!plan(&too_much).warms_up);
        let unknown = Facts {
            trees: None,
            ..gets
        };
        assert_eq!(auto_bytes(&unknown), 168 * MIB);
    }

    #[test]
    fn memtables_share_and_own_distances_and_low_disks_count() {
        let facts = Facts {
            writers: 4,
            ..of_a_gibibyte(READS)
        };
        assert_eq!(auto_bytes(&facts), 40 * MIB, "a quarter of the share");
        let limit = |own| plan(&facts).memtable_limit(Some(own), ARENA_PERMILLE);
        assert_eq!(limit(CheckpointDistance::Fixed(3)).bytes, 12 * MIB);
        assert_eq!(limit(CheckpointDistance::Fixed(1000)).bytes, 256 * MIB);
        let low = Facts {
            is_disk_low: true,
            ..facts
        };
        let limit = plan(&low).memtable_limit(None, ARENA_PERMILLE);
        assert_eq!((limit.bytes, limit.ample_bytes), (4 * MIB, 40 * MIB));
    }

    #[test]
    fn shares_never_exceed_the_budget() {
        for_each_seed(|random| {
            let facts = random.facts();
            let plan = plan(&facts);
            let wait_bytes = writers_wait_bytes(facts.budget_bytes);
            assert!(wait_bytes < facts.budget_bytes, "{facts:?}");
            assert!(plan.seal_early_bytes < wait_bytes, "{facts:?}\n{plan:?}");
            // What a load's arenas leave, log, merges, metadata and slack have.
            let besides = facts.taken_bytes() + facts.budget_bytes / LOAD_METADATA_PART;
            let arenas = 2 * plan.pool_ceiling_bytes;
            assert!(arenas == 0 || arenas + besides <= facts.budget_bytes);
            assert!(plan.memtables_spared_bytes <= facts.budget_bytes);
            assert!(plan.active_spared_bytes <= facts.budget_bytes / 2);
            // Caches that hold all records fit beside the arenas that the plan gives memtables.
            if let (Some(beside), ReadKind::Gets) =
                (plan.limits.beside_caches_arena_bytes, plan.mix.reads)
            {
                let records = facts.all_records_bytes().unwrap();
                let all = records + 2 * beside + facts.metadata_bytes + facts.taken_bytes();
                assert!(all <= facts.budget_bytes, "{facts:?}");
            }
        });
    }

    #[test]
    fn automatic_memtables_hold_half_of_the_budget_at_most_or_one_unit_each() {
        for_each_seed(|random| {
            let facts = Facts {
                distance: CheckpointDistance::Auto,
                ..random.facts()
            };
            let limit = plan(&facts).memtable_limit(None, random.arena_permille());
            let together = limit.ample_bytes.saturating_mul(facts.writers.max(1));
            let units = facts.unit_bytes * facts.writers.max(1);
            assert!(together <= (facts.budget_bytes / 2).max(units), "{facts:?}");
        });
    }

    #[test]
    fn every_part_keeps_its_floor() {
        for_each_seed(|random| {
            let facts = random.facts();
            let plan = plan(&facts);
            let own = random.flag().then(|| random.distance());
            let limit = plan.memtable_limit(own, random.arena_permille());
            assert!(limit.bytes >= facts.unit_bytes, "{facts:?} {limit:?}");
            assert!(limit.ample_bytes >= limit.bytes);
            assert!(limit.ample_bytes <= DISTANCE_MAX * facts.unit_bytes);
            assert_eq!(limit.bytes % facts.unit_bytes, 0);
            assert!(!facts.is_disk_low || limit.bytes == facts.unit_bytes);
            assert!(plan.seal_early_bytes >= facts.budget_bytes / 10 * 6);
            assert!(plan.pool_floor_bytes >= facts.budget_bytes / 8);
            let beside = plan.limits.beside_caches_arena_bytes;
            assert!(beside.is_none_or(|bytes| bytes >= facts.budget_bytes / MEMTABLES_PART_MIN));
        });
    }

    #[test]
    fn more_memory_takes_nothing_away() {
        for_each_seed(|random| {
            let less = random.facts();
            let more = Facts {
                budget_bytes: less.budget_bytes + (random.magnitude(20) << 16),
                ..less
            };
            let arena_permille = random.arena_permille();
            let own = random.flag().then(|| random.distance());
            let (small, large) = (plan(&less), plan(&more));
            assert!(large.seal_early_bytes >= small.seal_early_bytes, "{less:?}");
            assert!(large.pool_ceiling_bytes >= small.pool_ceiling_bytes);
            assert!(large.pool_floor_bytes >= small.pool_floor_bytes);
            assert!(large.warms_up >= small.warms_up, "{less:?}");
            assert!(large.active_spared_bytes >= small.active_spared_bytes);
            let beside = |plan: &Plan| plan.limits.beside_caches_arena_bytes;
            // Memtables give way only where the memory makes everything fit.
            if beside(&small).is_some() == beside(&large).is_some() {
                let bytes = |plan: &Plan| plan.memtable_limit(own, arena_permille).bytes;
                assert!(bytes(&large) >= bytes(&small), "{less:?} {more:?}");
            } else {
                assert!(beside(&small).is_none(), "{less:?} {more:?}");
            }
        });
    }

    #[test]
    fn facts_of_any_size_give_one_plan() {
        for_each_seed(|random| {
            let facts = random.hostile();
            let first = plan(&facts);
            assert_eq!(first, plan(&facts));
            let arena_permille = random.next();
            for own in [
                None,
                Some(CheckpointDistance::Fixed(0)),
                Some(CheckpointDistance::Fixed(u32::MAX)),
            ] {
                let limit = first.memtable_limit(own, arena_permille);
                assert_eq!(limit, first.memtable_limit(own, arena_permille));
                assert!(limit.bytes >= facts.unit_bytes.max(1), "{facts:?}");
            }
            assert!(first.seal_early_bytes <= writers_wait_bytes(facts.budget_bytes));
        });
    }
}
