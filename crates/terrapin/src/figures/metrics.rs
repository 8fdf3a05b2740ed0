//! Gathers [`Metrics`] from the counters of all parts of the engine.

use terrapin_base::Purpose;
use terrapin_base::sync::Ordering;
use terrapin_wal::LogMetrics;

use crate::engine::core::Core;
use crate::engine::locations::Locations;
use crate::metrics::{MemoryUse, Metrics};

/// Figures of the log for a read-only database, which has the log not open.
fn kept_log(core: &Core) -> LogMetrics {
    let replayed = core.replayed.load(Ordering::Acquire);
    let files = core.log_space.get().copied().unwrap_or_default();
    let mut log = LogMetrics::default();
    log.kept_bytes = replayed.saturating_sub(core.schedule.durable_through().0);
    log.disk_bytes = files.segment_bytes + files.spare_bytes;
    log
}

/// The figures of an open or closed database. O(keyspaces in use); reads nothing from the device.
pub(crate) fn metrics(core: &Core) -> Metrics {
    let counters = &core.counters;
    let store = core.store.metrics();
    let log = core.log.as_ref().map(|log| log.metrics());
    let log = log.unwrap_or_else(|| kept_log(core));
    let state = core.state.load();
    let user_bytes_written = counters.user_bytes_written.get();
    let log_bytes_written = log.drained_bytes + log.ahead_bytes;
    let written = store.written.total() + log_bytes_written;
    let live_bytes = core.store.live_bytes();
    let tree_bytes = core.tree_sizes.live_bytes();
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let holders = core.written.written_of(&state);
    let debt = holders.iter().filter_map(|k| {
        let sealed = k.sealed.as_ref()?.records.memtable.live_bytes();
        Some(k.shared.forecast.left_of(sealed))
    });
    let records = core.records.counts();
    let used = state.keyspaces.iter().filter_map(|k| {
        let bytes = k.memtables().map(|w| w.memtable.live_bytes()).sum();
        k.shared.counters.read(&k.shared.name, k.id, bytes)
    });
    Metrics {
        keyspaces: used.collect(),
        puts: counters.puts.get(),
        ingested_records: counters.ingested_records.get(),
        gets: counters.gets.get(),
        deletes: counters.deletes.get(),
        scans: counters.scans.get(),
        scanned_records: counters.scanned_records.get(),
        scanned_deletes: counters.scanned_deletes.get(),
        batches: counters.batches.get(),
        transactions: counters.transactions.get(),
        transaction_conflicts: counters.transaction_conflicts.get(),
        transaction_repeats: counters.transaction_repeats.get(),
        transaction_comparisons: counters.transaction_comparisons.get(),
        watched_ns: log.watched_ns,
        user_bytes_written,
        record_hits: core.counters.record_hits.get(),
        location_hits: core.locations.get().map_or(0, Locations::hits),
        location_bytes: core.budget.used(Purpose::Locations),
        cached_records: records.records,
        cache_hits: store.hits,
        cache_misses: store.misses,
        device_reads: store.read,
        device_written: store.written,
        log_bytes_written,
        write_amplification: ratio(written, user_bytes_written),
        space_amplification: ratio(live_bytes, tree_bytes),
        checkpoint_debt_bytes: debt.sum(),
        memtable_bytes: core.memtable_live_bytes(&state),
        checkpoints: counters.checkpoints.get(),
        checkpoints_failed: counters.checkpoints_failed.get(),
        compactions: counters.compactions.get(),
        expiry_compactions: counters.expiry_compactions.get(),
        is_compacting: core.compactions.is_any_asked() && !core.schedule.disk_is_full(),
        replayed_records: counters.replayed_records.get(),
        backup_bytes: counters.backup_bytes.get(),
        put_latency: counters.put_latency.latency(),
        get_latency: counters.get_latency.latency(),
        sync_latency: counters.sync_latency.latency(),
        writes_refused: counters.writes_refused.get(),
        write_wait_ns: counters.write_wait_ns.get(),
        waits: counters.waits.read(),
        log_syncs: log.syncs,
        log_kept_bytes: log.kept_bytes,
        replay_bytes: core.replay_bytes(),
        replay_bytes_max: core.replay_bound.bytes_max().unwrap_or(0),
        log_disk_bytes: log.disk_bytes,
        data_live_bytes: live_bytes,
        data_free_bytes: core.store.free_bytes(),
        data_allocated_bytes: core.store.allocated_bytes().unwrap_or(0),
        data_reserve_bytes: core.store.reserve_held_bytes(),
        memory: MemoryUse::of(&core.budget),
        views: core.views.len() as u64,
        folds: counters.folds.get(),
    }
}
