//! [`Settings`]: options that were checked, with every default filled in.

use std::time::Duration;

use terrapin_base::{Error, ErrorKind, Result, VALUE_BYTES_MAX};
use terrapin_structure::{MergeOptions, StructureId};

use super::keyspace::check_filter_bits;
use super::operators::Operators;
use crate::types::structures::StructureMaker;

use super::{CheckpointDistance, Durability, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN, Options};

/// The largest χ. A merge writes at most about two leaves for each L of a memtable, of records that
/// are a little more than half a leaf. While the merge writes a node, these leaves and those that
/// existed are its children, and their count goes up to 65,535.
pub(crate) const DISTANCE_MAX: u64 = 16_384;

/// Page groups of the reserve in a database whose keyspaces never needed more.
pub(crate) const RESERVE_GROUPS_MIN: u64 = 8;

/// The part of the reserve for nodes and catalog pages. A merge from the reserve takes a slice of a
/// memtable, of one record if necessary. The page groups that it writes besides are those of
/// [`Structure::reserve_groups`](terrapin_structure::Structure::reserve_groups).
const RESERVE_NODES_BYTES: u64 = 128 << 10;

/// Most bytes of a record of one operation beside key and value: header, numbers, deadline.
const RECORD_OVERHEAD_BYTES: u64 = 64;

impl Options {
    /// Checks all options and fills in the defaults.
    pub(crate) fn settle(&self) -> Result<Settings> {
        let memory = self.memory.unwrap_or(MEMORY_BYTES_DEFAULT);
        let pow2 = |bytes: u64| 1u64 << (63 - bytes.max(1).leading_zeros());
        let ring_bytes = self
            .ring_bytes
            .unwrap_or_else(|| pow2(memory / 16).clamp(2 << 20, 16 << 20));
        check(
            ring_bytes.is_power_of_two() && (64 << 10..=1 << 30).contains(&ring_bytes),
            "the log's ring must be a power of two from 64 KiB to 1 GiB (Options::ring_bytes)",
            ring_bytes,
        )?;
        check_memory(memory, ring_bytes)?;
        let group_bytes = self
            .group_bytes
            .unwrap_or_else(|| pow2(memory / 128).clamp(256 << 10, 4 << 20));
        check(
            (1 << 10..=64 << 20).contains(&group_bytes),
            "a page group takes 1 KiB to 64 MiB (Options::group_bytes)",
            group_bytes,
        )?;
        check(
            (512..=32 << 10).contains(&self.block_bytes),
            "a block takes 512 to 32768 bytes (Options::block_bytes)",
            u64::from(self.block_bytes),
        )?;
        self.compression.check()?;
        check_filter_bits(self.filter_bits)?;
        let segment_bytes = self
            .log_segment_bytes
            .unwrap_or_else(|| pow2(memory / 16).clamp(4 << 20, 64 << 20));
        check(
            (16 << 10..=4 << 30).contains(&segment_bytes),
            "a log file takes 16 KiB to 4 GiB (Options::log_segment_bytes)",
            segment_bytes,
        )?;
        let log_bytes_max = self
            .log_bytes_max
            .unwrap_or_else(|| memory.max(8 * segment_bytes));
        check(
            log_bytes_max >= 2 * segment_bytes,
            "the log must have room for two of its files (Options::log_bytes_max, twice Options::log_segment_bytes)",
            log_bytes_max,
        )?;
        let space_amplification_percent = match self.space_amplification {
            None => None,
            Some(factor) if (1.1..=100.0).contains(&factor) => {
                Some((factor * 100.0).round() as u32)
            }
            Some(factor) => {
                return Err(Error::invalid(
                    "space amplification goes from 1.1 to 100 (Options::space_amplification)",
                )
                .with("factor", factor));
            }
        };
        let threads = self
            .background_threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(2, |n| n.get().min(4)));
        check(
            (1..=256).contains(&threads),
            "background threads go from 1 to 256 (Options::background_threads)",
            threads as u64,
        )?;
        let nanoseconds = |d: Duration| {
            u64::try_from(d.as_nanos())
                .unwrap_or(u64::MAX / 4)
                .min(u64::MAX / 4)
        };
        check(
            self.fanout.is_none_or(|n| (4..=1024).contains(&n)),
            "a node has 4 to 1024 children",
            self.fanout.unwrap_or(0) as u64,
        )?;
        let settings = Settings {
            fanout: self.fanout,
            further_structures: self.further_structures.clone(),
            default_structure: self.default_structure,
            operators: self.operators.clone(),
            read_only: self.read_only,
            durability: self.durability,
            checkpoint_distance: self.checkpoint_distance,
            merge: MergeOptions {
                block_bytes: self.block_bytes,
                compression: self.compression,
                space_amplification_percent,
                filter_bits: self.filter_bits,
                separate_from: self.separate_from,
                maplets: self.always_maplets,
                ..MergeOptions::new(group_bytes)
            },
            sync_interval_ns: nanoseconds(self.sync_interval).max(1_000),
            record_cache: self.record_cache,
            range_compaction: self.range_compaction,
            background_threads: threads,
            reader_age_ns_max: nanoseconds(self.reader_age_max),
            stall_limit_ns: nanoseconds(self.stall_limit),
            recovery_target_ns: self.recovery_target.map(nanoseconds),
            segment_bytes,
            log_bytes_max,
            log_check_shift: log_check_shift(segment_bytes),
            ring_bytes,
            inline_bytes: inline_bytes(self.large_above, ring_bytes),
            large_above: large_above(self.large_above),
            memory,
            system_cache: self.system_cache.unwrap_or(self.memory.is_none()),
        };
        settings.check_distance(self.checkpoint_distance, memory)?;
        Ok(settings)
    }
}

/// The largest fixed χ that a budget holds, for units of `unit_bytes`. The active memtable gets a
/// quarter of the budget, because a second memtable may be sealed and an arena takes about 1.6
/// times the bytes of its records. At most [`DISTANCE_MAX`]. 0 if the budget does not hold one
/// unit.
pub(crate) fn distance_max(memory: u64, unit_bytes: u64) -> u64 {
    (memory / 4 / unit_bytes).min(DISTANCE_MAX)
}

/// Refuses a budget of which the log's ring would take more than a quarter. The ring keeps the size
/// that it got at the open.
pub(crate) fn check_memory(bytes: u64, ring_bytes: u64) -> Result<()> {
    let smallest = MEMORY_BYTES_MIN.max(ring_bytes.saturating_mul(4));
    if bytes >= smallest {
        return Ok(());
    }
    Err(Error::invalid(
        "the memory budget is too small: it is 1 MiB at least, and four times the log's ring, which is as large as the open asked for (8 MiB hold the default)",
    )
    .with("memory", bytes)
    .with("smallest", smallest)
    .with("ring", ring_bytes))
}

fn check(holds: bool, message: &'static str, got: u64) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::invalid(message).with("got", got))
    }
}

fn log_check_shift(segment_bytes: u64) -> u32 {
    (segment_bytes / 8).ilog2()
}

/// Options that were checked, with every default filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub read_only: bool,
    pub durability: Durability,
    /// The most children of a node (ρ). None lets the structure choose.
    pub fanout: Option<usize>,
    /// Structures besides those of a release.
    pub further_structures: Vec<StructureMaker>,
    /// The structure of the keyspace "default" of a database without a catalog.
    pub default_structure: StructureId,
    /// Merge operators that the user registered.
    pub operators: Operators,
    /// χ of keyspaces that have no own χ, as the database was opened.
    pub checkpoint_distance: CheckpointDistance,
    /// How merges write, including L. A keyspace may differ ([`Settings::merge_of`]).
    pub merge: MergeOptions,
    pub sync_interval_ns: u64,
    /// Whether hot records are cached as records.
    pub record_cache: bool,
    /// Whether trees are compacted for ranges.
    pub range_compaction: bool,
    pub background_threads: usize,
    pub stall_limit_ns: u64,
    /// The longest time of a replay after a kill.
    pub recovery_target_ns: Option<u64>,
    /// How long a reader in another process may keep a checkpoint that was replaced.
    pub reader_age_ns_max: u64,
    pub segment_bytes: u64,
    pub log_bytes_max: u64,
    /// A writer checks the room of the log when an LSN passes a multiple of two to this power. That
    /// is a few times for each segment.
    pub log_check_shift: u32,
    pub ring_bytes: u64,
    /// Up to this many bytes of key and value, a value is not large.
    pub inline_bytes: usize,
    /// Values of more than this many bytes are large.
    pub large_above: usize,
    /// The memory budget at the open, in bytes. The current one is in the `Budget`.
    pub memory: u64,
    /// Whether reads also use the system's page cache.
    pub system_cache: bool,
}

fn large_above(asked: Option<u32>) -> usize {
    asked.map_or(VALUE_BYTES_MAX, |bytes| VALUE_BYTES_MAX.min(bytes as usize))
}

/// The bytes of key and value up to which neither is too long for a record. A record takes a
/// quarter of the ring.
fn inline_bytes(asked: Option<u32>, ring_bytes: u64) -> usize {
    let record_bytes = ring_bytes / 4 - RECORD_OVERHEAD_BYTES;
    large_above(asked).min(usize::try_from(record_bytes).unwrap_or(usize::MAX))
}

impl Settings {
    /// Whether a record holds a key and a value of these lengths.
    pub fn fits_record(&self, key_bytes: usize, value_bytes: usize) -> bool {
        let record_bytes = self.ring_bytes / 4 - RECORD_OVERHEAD_BYTES;
        value_bytes <= VALUE_BYTES_MAX && (key_bytes + value_bytes) as u64 <= record_bytes
    }

    /// Bytes of the data file that only merges on a full disk may use (D10), where they may write
    /// `groups` page groups.
    pub fn reserve_bytes(&self, groups: u64) -> u64 {
        let groups = groups.saturating_mul(self.merge.group_bytes);
        groups.saturating_add(RESERVE_NODES_BYTES)
    }

    /// Sets the real size of log files. On a disk that is already full, new log files are no larger
    /// than the existing ones (D10).
    pub fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes;
        self.log_check_shift = log_check_shift(bytes);
    }

    /// The largest fixed χ that a budget holds.
    pub fn distance_max(&self, memory: u64) -> u64 {
        distance_max(memory, self.merge.group_bytes)
    }

    /// Checks that a memory budget can hold a χ.
    pub fn check_distance(&self, distance: CheckpointDistance, memory: u64) -> Result<()> {
        let largest = self.distance_max(memory).max(1);
        match distance {
            CheckpointDistance::Auto => Ok(()),
            CheckpointDistance::Fixed(0) => {
                Err(Error::invalid("the checkpoint distance is at least 1"))
            }
            CheckpointDistance::Fixed(chi) if u64::from(chi) <= largest => Ok(()),
            CheckpointDistance::Fixed(chi) if largest == DISTANCE_MAX => {
                Err(Error::invalid("the checkpoint distance is too large")
                    .with("checkpoint distance", chi)
                    .with("largest possible", largest))
            }
            CheckpointDistance::Fixed(chi) => Err(Error::new(
                ErrorKind::OutOfMemory,
                "the memory budget cannot hold a memtable of that checkpoint distance",
            )
            .with("checkpoint distance", chi)
            .with("largest possible", largest)
            .with("memory", memory)
            .with("batch unit bytes", self.merge.group_bytes)),
        }
    }
}
