//! The options of a store under test: tiny, so rare cases of a large store are common here.

use std::fmt;
use std::time::Duration;

use terrapin::{CheckpointDistance, Compression, Durability, Options};
use terrapin_base::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::random::Random;
use crate::structures::Structures;

/// Options as printable figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// The memory budget.
    pub memory_bytes: u64,
    /// L.
    pub group_bytes: u64,
    /// The unit of a point read.
    pub block_bytes: u32,
    /// Compression of blocks.
    pub compression: Compression,
    /// Bits of filter for each record; 0 is none.
    pub filter_bits: u32,
    /// χ; none means auto.
    pub chi: Option<u32>,
    /// Accepted space amplification; none is the paper's bound.
    pub space_amplification: Option<f64>,
    /// Merge workers.
    pub threads: usize,
    /// ρ, the most children of a node; none leaves the choice to the tree.
    pub fanout: Option<usize>,
    /// Bytes of the log's ring.
    pub ring_bytes: u64,
    /// Bytes of a log file.
    pub segment_bytes: u64,
    /// Log files kept before lagging keyspaces are checkpointed.
    pub segments_max: u64,
    /// Durability of writes that name none.
    pub durability: Durability,
    /// How long unsynced writes may stay unsynced.
    pub sync_interval_ms: u64,
    /// The structures of keyspaces.
    pub structures: Structures,
    /// Values of at least this many bytes are kept out of trees.
    pub separate_from: Option<u32>,
    /// Values of more than this many bytes are large; none is the usual limit.
    pub large_above: Option<u32>,
    /// The longest replay after a kill. The bound is at least eight units of L.
    pub recovery_target: Option<Duration>,
    /// How writes use deadlines.
    pub deadlines: Deadlines,
}

/// How a store under test uses deadlines for writes that have none for the oracle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deadlines {
    /// Not at all.
    #[default]
    None,
    /// Half of the values have a deadline that never comes. Half of the keyspaces have a time to
    /// live by their options.
    Far,
    /// Besides, half of the deletes are puts whose deadline comes before the next operation.
    Near,
}

impl Configuration {
    /// The plainest: smallest memory and pages, one worker.
    #[must_use]
    pub fn small() -> Self {
        Configuration {
            memory_bytes: 1 << 20,
            group_bytes: 4 << 10,
            block_bytes: 512,
            compression: Compression::None,
            filter_bits: 12,
            chi: Some(4),
            space_amplification: Some(1.3),
            threads: 1,
            fanout: None,
            ring_bytes: 64 << 10,
            segment_bytes: 64 << 10,
            segments_max: 32,
            durability: Durability::Process,
            sync_interval_ms: 100,
            structures: Structures::Leveled,
            separate_from: None,
            large_above: None,
            recovery_target: None,
            deadlines: Deadlines::None,
        }
    }

    /// The configurations of the conformance scripts: every option at both ends at least once.
    #[must_use]
    pub fn matrix() -> Vec<(&'static str, Configuration)> {
        let small = Configuration::small;
        vec![
            ("small", small()),
            (
                "tiny groups",
                Configuration {
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    filter_bits: 0,
                    chi: Some(1),
                    threads: 2,
                    ..small()
                },
            ),
            (
                "compressed",
                Configuration {
                    compression: Compression::Lz4,
                    filter_bits: 20,
                    block_bytes: 4096,
                    group_bytes: 16 << 10,
                    chi: Some(2),
                    ..small()
                },
            ),
            (
                "the paper's bound, often synced",
                Configuration {
                    space_amplification: None,
                    durability: Durability::Sync,
                    chi: Some(16),
                    group_bytes: 2 << 10,
                    ..small()
                },
            ),
            (
                "large records",
                Configuration {
                    memory_bytes: 16 << 20,
                    ring_bytes: 2 << 20,
                    segment_bytes: 1 << 20,
                    group_bytes: 64 << 10,
                    block_bytes: 4096,
                    chi: None,
                    threads: 3,
                    ..small()
                },
            ),
            (
                "plain",
                Configuration {
                    structures: Structures::Plain,
                    ..small()
                },
            ),
            (
                "some plain, tiny groups",
                Configuration {
                    structures: Structures::Mixed(21),
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    threads: 2,
                    ..small()
                },
            ),
            (
                "separated values",
                Configuration {
                    separate_from: Some(16),
                    structures: Structures::Mixed(22),
                    ..small()
                },
            ),
            (
                "all values separated, tiny groups",
                Configuration {
                    separate_from: Some(0),
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    compression: Compression::Lz4,
                    threads: 2,
                    ..small()
                },
            ),
            (
                "large values",
                Configuration {
                    large_above: Some(20),
                    structures: Structures::Mixed(24),
                    ..small()
                },
            ),
            (
                "all values large, tiny groups",
                Configuration {
                    large_above: Some(0),
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    deadlines: Deadlines::Near,
                    threads: 2,
                    ..small()
                },
            ),
            (
                "large values and separated ones, hashed or not",
                Configuration {
                    large_above: Some(100),
                    separate_from: Some(0),
                    structures: Structures::SomeHashed(5),
                    ..small()
                },
            ),
            (
                "plain without order",
                Configuration {
                    structures: Structures::WithoutOrder,
                    compression: Compression::Lz4,
                    ..small()
                },
            ),
            (
                "tiered",
                Configuration {
                    structures: Structures::Tiered,
                    ..small()
                },
            ),
            (
                "tiered and leveled by turns, tiny groups, compressed",
                Configuration {
                    structures: Structures::Changing(5),
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    compression: Compression::Lz4,
                    threads: 2,
                    ..small()
                },
            ),
            (
                "in place",
                Configuration {
                    structures: Structures::InPlace,
                    ..small()
                },
            ),
            (
                "in place, tiny groups, compressed",
                Configuration {
                    structures: Structures::InPlace,
                    group_bytes: 1 << 10,
                    compression: Compression::Lz4,
                    threads: 3,
                    ..small()
                },
            ),
            (
                "hashed",
                Configuration {
                    structures: Structures::Hashed,
                    ..small()
                },
            ),
            (
                "some hashed, tiny groups",
                Configuration {
                    structures: Structures::SomeHashed(3),
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    threads: 2,
                    ..small()
                },
            ),
            (
                "deadlines",
                Configuration {
                    deadlines: Deadlines::Near,
                    structures: Structures::Mixed(23),
                    ..small()
                },
            ),
            (
                "deadlines beside separated values, tiny groups",
                Configuration {
                    deadlines: Deadlines::Near,
                    separate_from: Some(16),
                    group_bytes: 1 << 10,
                    fanout: Some(4),
                    threads: 2,
                    ..small()
                },
            ),
        ]
    }

    /// Any configuration.
    #[must_use]
    pub fn random(random: &mut Random) -> Self {
        let ring_bytes = if random.one_in(8) {
            2 << 20
        } else {
            64 << (10 + random.below(2))
        };
        let memory_bytes = (1 << 20).max(4 * ring_bytes) + random.below(4) * (512 << 10);
        let group_bytes = 1024 << random.below(6);
        let distance_max = (memory_bytes / 4 / group_bytes).min(64);
        // Of a copy, so that the structures change nothing else that a seed decides.
        let mut apart = Random::new(!random.clone().bits());
        Configuration {
            memory_bytes,
            group_bytes,
            block_bytes: *random.pick(&[512, 512, 1024, 1500, 4096, 8192]),
            compression: *random.pick(&[Compression::None, Compression::Lz4]),
            filter_bits: *random.pick(&[12, 12, 0, 6, 9, 20]),
            chi: if random.one_in(5) {
                None
            } else {
                Some(random.scaled(distance_max) as u32)
            },
            space_amplification: *random.pick(&[Some(1.3), Some(1.1), Some(2.0), None]),
            threads: 1 + random.index(3),
            fanout: *random.pick(&[None, None, Some(4), Some(5), Some(8), Some(16)]),
            ring_bytes,
            segment_bytes: (16 << 10) << random.below(4),
            segments_max: 2 + random.scaled(62),
            durability: if random.one_in(4) {
                Durability::Sync
            } else {
                Durability::Process
            },
            sync_interval_ms: random.scaled(1000),
            structures: Structures::random(&mut apart),
            separate_from: *apart.pick(&[None, None, Some(0), Some(24), Some(700), Some(4096)]),
            deadlines: *apart.pick(&[
                Deadlines::None,
                Deadlines::None,
                Deadlines::Far,
                Deadlines::Near,
            ]),
            // The least bound, and one of 128 KiB.
            recovery_target: *apart.pick(&[
                None,
                None,
                Some(Duration::from_nanos(1)),
                Some(Duration::from_millis(2)),
            ]),
            large_above: *apart.pick(&[None, None, None, Some(0), Some(30), Some(500), Some(5000)]),
        }
    }

    /// These options, with structures that refuse no call ([`Structures::without_refusals`]).
    #[must_use]
    pub fn without_refusals(self) -> Self {
        Configuration {
            structures: self.structures.without_refusals(),
            ..self
        }
    }

    /// Other options for the same database. The largest write stays possible, and so does every
    /// memory budget that the run may choose. The durability of writes and the structures stay the
    /// same.
    #[must_use]
    pub fn varied(&self, seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let other = Configuration::random(random);
        let memory_bytes = self.memory_bytes + random.below(3) * (512 << 10);
        let larger = self.ring_bytes << random.below(2);
        let ring_bytes = if 4 * larger <= self.memory_bytes {
            larger
        } else {
            self.ring_bytes
        };
        Configuration {
            memory_bytes,
            ring_bytes,
            durability: self.durability,
            structures: self.structures,
            ..other
        }
        .fitted()
    }

    /// Lowers χ to what the memory can hold.
    #[must_use]
    pub fn fitted(self) -> Self {
        Configuration {
            chi: self.chi.map(|chi| chi.min(self.distance_max())),
            ..self
        }
    }

    /// Key and value bytes of the largest write: a batch takes a quarter of the ring.
    #[must_use]
    pub fn record_bytes_max(&self) -> usize {
        usize::try_from(self.ring_bytes / 4 - 1024)
            .unwrap_or(usize::MAX)
            .min(KEY_BYTES_MAX + VALUE_BYTES_MAX)
    }

    /// The largest χ that the run's smallest memory budget can hold.
    #[must_use]
    pub fn distance_max(&self) -> u32 {
        u32::try_from(self.memory_bytes / 4 / self.group_bytes)
            .unwrap_or(u32::MAX)
            .clamp(1, 64)
    }

    /// The same as `Options`.
    #[must_use]
    pub fn options(&self) -> Options {
        let options = Options::new()
            .memory(self.memory_bytes)
            .group_bytes(self.group_bytes)
            .block_bytes(self.block_bytes)
            .compression(self.compression)
            .filter_bits(self.filter_bits)
            .checkpoint_distance(
                self.chi
                    .map_or(CheckpointDistance::Auto, CheckpointDistance::Fixed),
            )
            .space_amplification(self.space_amplification)
            .background_threads(self.threads)
            .ring_bytes(self.ring_bytes)
            .log_segment_bytes(self.segment_bytes)
            .log_bytes_max(self.segment_bytes * self.segments_max)
            .durability(self.durability)
            .sync_interval(Duration::from_millis(self.sync_interval_ms));
        let options = options.recovery_target(self.recovery_target);
        let options = options
            .separate_from_for_tests(self.separate_from)
            .large_above_for_tests(self.large_above)
            .always_maplets_for_tests(self.filter_bits.is_multiple_of(2));
        let options = self.structures.choose(options);
        match self.fanout {
            Some(children) => options.fanout(children),
            None => options,
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
