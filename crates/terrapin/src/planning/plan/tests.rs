//! Cases of the plan, and properties that hold for facts of any size.

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
            fixed_bytes: self.below(budget_bytes / 4),
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
            replay_bytes_max: match self.flag() {
                true => self.magnitude(40),
                false => u64::MAX,
            },
            disk: DiskState::of_number(self.below(3) as u32),
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
        let [budget_bytes, fixed_bytes, merge_bytes, metadata_bytes, ..] = numbers;
        Facts {
            budget_bytes,
            fixed_bytes,
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
        fixed_bytes: 16 * MIB,
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
        disk: DiskState::Low,
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
        // The rest that a load's arenas, log, merges, metadata and slack leave.
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
        assert!(facts.disk != DiskState::Low || limit.bytes == facts.unit_bytes);
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
        // Memtables shrink only if the memory makes everything fit.
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
