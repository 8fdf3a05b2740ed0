//! Metrics of a database, and the counters behind them. A counter costs a hot path one addition on
//! a cache line of the thread's own. Latencies are sampled.

mod histogram;
mod keyspace;
mod openmetrics;
pub(crate) mod stalls;
mod waits;

use std::cell::Cell;
use terrapin_base::sync::{AtomicU64, Ordering, thread_local};

use terrapin_base::{Budget, Env, Purpose, STRIPES, stripe};

pub(crate) use histogram::Histogram;
pub use histogram::{Bucket, Latency};
pub(crate) use keyspace::KeyspaceCounters;
pub use keyspace::KeyspaceMetrics;
pub use terrapin_pages::{CacheCounts, DeviceReads, WrittenBytes};
pub(crate) use waits::Waits;
pub use waits::WriteWaits;

/// One of this number of operations is timed.
const SAMPLED: u32 = 64;

/// A counter that threads add to without sharing a cache line.
#[derive(Default)]
pub(crate) struct Counter([Stripe; STRIPES]);

#[derive(Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

thread_local! {
    static OPERATIONS: Cell<u32> = const { Cell::new(0) };
}

impl Counter {
    /// Adds.
    #[inline]
    pub fn add(&self, count: u64) {
        self.add_to_own(count);
    }

    /// Adds, and returns the previous value of the thread's own part of the counter.
    #[inline]
    pub fn add_to_own(&self, count: u64) -> u64 {
        self.0[stripe()].0.fetch_add(count, Ordering::Relaxed)
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|s| s.0.load(Ordering::Relaxed)).sum()
    }
}

/// The engine's counters.
#[derive(Default)]
pub(crate) struct Counters {
    pub puts: Counter,
    pub gets: Counter,
    /// Keys that were found among the cached records.
    pub record_hits: Counter,
    /// Gets that a tree answered with a value.
    pub tree_gets: Counter,
    pub deletes: Counter,
    pub scans: Counter,
    pub scanned_records: Counter,
    pub scanned_deletes: Counter,
    pub batches: Counter,
    pub transactions: Counter,
    pub transaction_conflicts: Counter,
    pub transaction_repeats: Counter,
    pub transaction_comparisons: Counter,
    pub user_bytes_written: Counter,
    pub ingested_records: Counter,
    pub syncs: Counter,
    pub writes_refused: Counter,
    pub write_wait_ns: Counter,
    pub checkpoints: Counter,
    pub checkpoints_failed: Counter,
    pub compactions: Counter,
    pub expiry_compactions: Counter,
    pub replayed_records: Counter,
    pub backup_bytes: Counter,
    pub folds: Counter,
    pub put_latency: Histogram,
    pub get_latency: Histogram,
    pub sync_latency: Histogram,
    pub waits: Waits,
}

/// The time at which a sampled operation began. None for operations that are not sampled.
pub(crate) type Timer = Option<u64>;

impl Counters {
    /// Begins a put.
    #[inline]
    pub fn put_timer(&self, env: &Env) -> Timer {
        timer(env)
    }

    /// Ends a put.
    #[inline]
    pub fn put_done(&self, env: &Env, timer: Timer) {
        if let Some(start) = timer {
            self.put_latency.record(env.now_ns().saturating_sub(start));
        }
    }

    /// Begins a get.
    #[inline]
    pub fn get_timer(&self, env: &Env) -> Timer {
        timer(env)
    }

    /// Ends a get.
    #[inline]
    pub fn get_done(&self, env: &Env, timer: Timer) {
        if let Some(start) = timer {
            self.get_latency.record(env.now_ns().saturating_sub(start));
        }
    }
}

#[inline]
fn timer(env: &Env) -> Timer {
    let operation = OPERATIONS.try_with(|o| {
        o.set(o.get().wrapping_add(1));
        o.get()
    });
    match operation {
        Ok(n) if n % SAMPLED == 0 => now(env),
        _ => None,
    }
}

/// Simulations time no operation. The sampling depends on the thread's earlier operations, and a
/// simulated run must depend on its seed only.
#[cold]
fn now(env: &Env) -> Timer {
    (!env.is_simulated()).then(|| env.now_ns())
}

/// Memory of a database in bytes, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryUse {
    /// The budget.
    pub limit_bytes: u64,
    /// Memtables and their recycled memory.
    pub memtable_bytes: u64,
    /// Cached data blocks.
    pub block_bytes: u64,
    /// Cached indexes, filters and nodes.
    pub metadata_bytes: u64,
    /// Cached records.
    pub record_bytes: u64,
    /// Merges under way.
    pub merge_bytes: u64,
    /// The log's ring, and what it notes for conditional writes.
    pub log_bytes: u64,
    /// Data of keyspaces, used or not: about 2 KiB each.
    pub keyspace_bytes: u64,
    /// What open transactions have read and written.
    pub transaction_bytes: u64,
}

impl MemoryUse {
    pub(crate) fn of(budget: &Budget) -> Self {
        MemoryUse {
            limit_bytes: budget.limit(),
            memtable_bytes: budget.used(Purpose::Memtable),
            block_bytes: budget.used(Purpose::Blocks),
            metadata_bytes: budget.used(Purpose::Metadata),
            record_bytes: budget.used(Purpose::Records),
            merge_bytes: budget.used(Purpose::Merge),
            log_bytes: budget.used(Purpose::Log),
            keyspace_bytes: budget.used(Purpose::Keyspaces),
            transaction_bytes: budget.used(Purpose::Transactions),
        }
    }

    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.memtable_bytes
            + self.block_bytes
            + self.metadata_bytes
            + self.record_bytes
            + self.merge_bytes
            + self.log_bytes
            + self.keyspace_bytes
            + self.transaction_bytes
    }
}

/// Figures since the database was opened, unless a field says otherwise. Counters only grow:
/// subtract two readings for a rate. [`Latency::since`] subtracts histograms. Figures *as of now*
/// and the two amplifications cannot be subtracted.
///
/// [`Metrics::openmetrics`] is the text that collectors read. With the feature `serde` all figures
/// implement `serde::Serialize`.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Metrics {
    /// Puts, those of batches among them.
    pub puts: u64,
    /// Keys looked up.
    pub gets: u64,
    /// Deletes, those of batches among them.
    pub deletes: u64,
    /// Ranges opened.
    pub scans: u64,
    /// Records that ranges fetched.
    pub scanned_records: u64,
    /// Deletes that ranges passed in memtables and trees. If this grows faster than
    /// [`Metrics::scanned_records`], ranges begin among deleted records. The engine merges such
    /// deletes away once they cost more than the merge.
    pub scanned_deletes: u64,
    /// Batches written, committed transactions among them.
    pub batches: u64,
    /// Transactions committed that wrote something. Each pop from a queue is one.
    pub transactions: u64,
    /// Transactions that met a conflict.
    pub transaction_conflicts: u64,
    /// Searches for changes by commits, because the log did not tell exactly what changed.
    pub transaction_repeats: u64,
    /// Values that these searches compared, because the memtables that would tell were merged.
    pub transaction_comparisons: u64,
    /// Nanoseconds for which all writes noted what they change, for conditional writes and
    /// transactions. A write costs a little more meanwhile.
    pub watched_ns: u64,
    /// Records of finished ingests.
    pub ingested_records: u64,
    /// Key and value bytes of puts, deletes and ingests.
    pub user_bytes_written: u64,

    /// Cache lookups that found their block, by kind.
    pub cache_hits: CacheCounts,
    /// Cache lookups that did not.
    pub cache_misses: CacheCounts,
    /// Gets that a cached record answered.
    pub record_hits: u64,
    /// Gets that the map of separated values answered with one read of the device.
    pub location_hits: u64,
    /// Bytes of memory of that map.
    pub location_bytes: u64,
    /// Cached records, as of now.
    pub cached_records: u64,
    /// Reads of the data file, by purpose. They include reads that the system served from its page
    /// cache ([`Options::system_cache`](crate::Options::system_cache)).
    pub device_reads: DeviceReads,
    /// Bytes written to the data file, by purpose.
    pub device_written: WrittenBytes,
    /// Bytes written to log files.
    pub log_bytes_written: u64,
    /// Bytes written to the device (data file and log) for each byte that users wrote. 0 before the
    /// first write.
    pub write_amplification: f64,
    /// Bytes of live pages for each key and value byte that readers see in the trees, as of now.
    /// Hidden records and deletes do not count as such bytes. 0 if the trees are empty.
    pub space_amplification: f64,

    /// Bytes in sealed memtables that still have to be merged, as of now.
    pub checkpoint_debt_bytes: u64,
    /// Live bytes in all memtables, as of now.
    pub memtable_bytes: u64,
    /// Checkpoints committed.
    pub checkpoints: u64,
    /// Checkpoints that failed. The engine retries them.
    pub checkpoints_failed: u64,
    /// Stretches of trees that were compacted for ranges.
    pub compactions: u64,
    /// Trees whose compaction began because enough of their records had expired.
    pub expiry_compactions: u64,
    /// Whether the engine compacts a tree for ranges now, or will after the pending merges.
    pub is_compacting: bool,
    /// Log records that were replayed when the database was opened.
    pub replayed_records: u64,
    /// Bytes of pages that backups read from the data file.
    pub backup_bytes: u64,

    /// Durations of puts, deletes and batches. One in 64 is timed.
    pub put_latency: Latency,
    /// Durations of gets. One in 64 is timed. Calls of `multi_get` and `contains` and reads of
    /// snapshots do not count.
    pub get_latency: Latency,
    /// Times that `Sync` writes waited for their sync.
    pub sync_latency: Latency,
    /// Writes refused ([`ErrorKind::Stalled`](crate::ErrorKind::Stalled)) because merging or the
    /// log's disk did not keep up.
    pub writes_refused: u64,
    /// Nanoseconds that writes waited, also those of refused writes.
    pub write_wait_ns: u64,
    /// The waits of writes, by cause.
    pub waits: WriteWaits,
    /// Syncs of the log.
    pub log_syncs: u64,
    /// Bytes of log that a recovery may have to read, as of now.
    pub log_kept_bytes: u64,
    /// Bytes of log that the next open would replay if the process died now.
    pub replay_bytes: u64,
    /// The most that these may be ([`Options::recovery_target`](crate::Options::recovery_target)),
    /// as of now; 0 without a bound.
    pub replay_bytes_max: u64,
    /// Bytes that the log's files take, as of now.
    pub log_disk_bytes: u64,

    /// Bytes of live pages in the data file, as of now.
    pub data_live_bytes: u64,
    /// Bytes of the data file that are free, as of now.
    pub data_free_bytes: u64,
    /// Bytes that the data file occupies on the disk, as of now; 0 where the system does not say.
    pub data_allocated_bytes: u64,
    /// Bytes of the data file that belong to the reserve, as of now.
    pub data_reserve_bytes: u64,

    /// Memory, by purpose, as of now.
    pub memory: MemoryUse,
    /// Registered views, as of now: snapshots and iterators.
    pub views: u64,
    /// Memtables whose records were written to the disk as runs, since snapshots or iterators need
    /// them. Each memtable counts once, and its memory could be freed.
    pub folds: u64,

    /// The keyspaces that were used since the database was opened, in the order of their numbers.
    pub keyspaces: Vec<KeyspaceMetrics>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_adds_up_over_threads() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..STRIPES + 3 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add(2)));
            }
        });
        assert_eq!(counter.get(), 2000 * (STRIPES as u64 + 3));
    }
}
