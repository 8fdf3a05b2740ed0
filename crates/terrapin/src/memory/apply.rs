//! Where the engine gathers the [`Facts`] about memory, and where it applies the [`Plan`].
//!
//! [`Core::plan_memory`] plans anew and sets every limit. It runs at each seal, each commit, each
//! change of χ, memory, disk room or keyspaces, and when users begin to do something else. Users
//! are looked at when memtable memory is taken and when reads miss, not only at seals, so that the
//! first memtable of a load grows, and memtables shrink soon after reads begin.
//!
//! Jobs ask [`Core::plan_now`] for a plan of the moment: what the pool may keep (`prefault`),
//! whether everything fits into a cache (`warm_up`), whether a merge fills the record cache.
//!
//! Invariant: while a memtable is sealed, a change of what users do shrinks no limit. A memtable
//! that became too large could not be sealed then, and its writers would wait for the merge.

use std::sync::Arc;

use terrapin_base::sync::Ordering;
use terrapin_base::{Purpose, Result};

use crate::engine::core::{Core, Install};
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::planning::cache_split::{Caches, Saved};
use crate::planning::location_share::LocationSavings;
use crate::planning::plan::{
    ARENA_PERMILLE, Facts, Plan, RecordCacheBounds, plan, pool_floor_bytes,
};
use crate::planning::workload::Operations;
use crate::types::options::CheckpointDistance;

impl Core {
    /// What users have done since the database was opened.
    pub fn operations(&self) -> Operations {
        let counters = &self.counters;
        Operations {
            gets: counters.gets.get(),
            ranges: counters.scans.get(),
            writes: counters.puts.get() + counters.deletes.get(),
        }
    }

    /// Gathers what a plan is made from. O(written keyspaces).
    fn facts(&self, written: &[&Arc<KeyspaceState>], distance: CheckpointDistance) -> Facts {
        let full_bytes = |keyspace: &&Arc<KeyspaceState>| {
            let shared = &keyspace.shared;
            let limit_bytes = shared.memtable_bytes.load(Ordering::Relaxed);
            let arena_permille = shared.arena_permille.load(Ordering::Relaxed);
            // One is active, one is sealed.
            2 * (limit_bytes / 1000).saturating_mul(arena_permille)
        };
        let is_growing = |k: &&Arc<KeyspaceState>| k.shared.overwrite_share.is_growing();
        Facts {
            budget_bytes: self.budget.limit(),
            fixed_bytes: self.budget.used(Purpose::Log) + self.budget.used(Purpose::Keyspaces),
            merge_bytes: self.budget.used(Purpose::Merge),
            metadata_bytes: self.budget.used(Purpose::Metadata),
            full_memtables_bytes: written.iter().map(full_bytes).sum(),
            unit_bytes: self.settings.merge.group_bytes,
            distance,
            writers: written.len() as u64,
            is_growing: written.iter().all(is_growing),
            mix: self.workload.mix(),
            trees: self.tree_sizes.held(),
            page_bytes: self.store.live_bytes(),
            record_cache: self.settings.record_cache.then(|| RecordCacheBounds {
                bytes_max: self.records.bytes_max(),
                record_bytes_max: self.records.record_bytes_max(),
            }),
            replay_bytes_max: self.replay_bound.bytes_max().unwrap_or(u64::MAX),
            disk: self.schedule.disk(),
        }
    }

    /// The plan that the facts of this moment give. It changes nothing. O(written keyspaces).
    pub fn plan_now(&self) -> Plan {
        let state = self.state.load();
        let distance = self.plan_in_force().distance();
        plan(&self.facts(&self.written.written_of(&state), distance))
    }

    /// Plans anew, and sets the marks and the memtable limits of all written keyspaces. Any other
    /// keyspace gets its limit when it is first written. O(written keyspaces).
    pub fn plan_memory(&self, install: &Install) {
        let state = self.state.load();
        let written = self.written.written_of(&state);
        let plan = plan(&self.facts(&written, install.checkpoint_distance));
        self.memtable_memory_high
            .store(plan.seal_early_bytes, Ordering::Relaxed);
        *self.plan_in_force.lock() = plan;
        for keyspace in written {
            self.set_limits(keyspace, &plan);
        }
    }

    /// The plan that limits were set from last.
    pub fn plan_in_force(&self) -> Plan {
        *self.plan_in_force.lock()
    }

    /// Sets one keyspace's memtable limit.
    pub fn set_limits(&self, keyspace: &KeyspaceState, plan: &Plan) {
        let shared = &keyspace.shared;
        let arena_permille = shared.arena_permille.load(Ordering::Relaxed);
        let limit = plan.memtable_limit(keyspace.options.checkpoint_distance, arena_permille);
        shared
            .ample_memtable_bytes
            .store(limit.ample_bytes, Ordering::Relaxed);
        shared.memtable_bytes.store(limit.bytes, Ordering::Relaxed);
    }

    /// The memtable limit of a keyspace that has no options of its own and was not written yet,
    /// while the disk has room.
    pub fn limit_of_new(&self) -> u64 {
        let limit = self.plan_in_force().memtable_limit(None, ARENA_PERMILLE);
        limit.ample_bytes
    }

    /// χ in force.
    pub fn distance_in_force(&self, shared: &KeyspaceShared) -> u32 {
        // A keyspace that is not written still has the limit of when it was.
        if let Some(keyspace) = self.state.load().keyspaces.get(shared.id) {
            self.set_limits(keyspace, &self.plan_in_force());
        }
        let units = shared.memtable_bytes.load(Ordering::Relaxed) / self.settings.merge.group_bytes;
        u32::try_from(units).unwrap_or(u32::MAX).max(1)
    }

    /// Looks at what users do, between two seals. If that changed, plans anew, and seals memtables
    /// that became too large.
    pub fn look_at_users(&self) {
        if self.log.is_some() && self.is_plan_outdated() {
            let mut install = self.install.lock();
            self.plan_memory(&install);
            self.seal(&mut install, KeyspaceState::is_due);
        }
    }

    /// Looks at what users do. Returns whether the plan in force is for other users, and nothing is
    /// sealed that would keep limits from changing.
    pub fn is_plan_outdated(&self) -> bool {
        let nothing_is_sealed = self.schedule.sealed_count() == 0;
        let mix = self.workload.look(self.operations(), nothing_is_sealed);
        nothing_is_sealed && mix != self.plan_in_force().mix
    }

    /// Moves memory between cached records and cached blocks, if it is time to look. Returns
    /// whether it was.
    pub fn split_caches(&self) -> bool {
        if !self.settings.record_cache || !self.cache_split.is_due() {
            return false;
        }
        self.look_at_users();
        let store = self.store.metrics();
        let saved = Saved {
            records: self.records.rescues(),
            blocks: store.block_rescues,
            block_lookups: store.hits.blocks + store.misses.blocks,
            block_misses: store.misses.blocks,
        };
        let caches = Caches {
            records_permille: self.records.share(),
            record_bytes: self.records.bytes(),
            record_target_bytes: self.records.target(),
            block_bytes: self.budget.used(Purpose::Blocks),
            reads: self.workload.mix().reads,
        };
        let room_bytes = self.budget.room_for_data();
        if let Some(permille) = self.cache_split.look(saved, caches, room_bytes) {
            self.records.set_share(permille);
        }
        if let Some(locations) = self.locations.get() {
            let blocks = LocationSavings {
                rescues: saved.blocks,
                block_bytes: caches.block_bytes,
                lookups: saved.block_lookups,
                misses: saved.block_misses,
                records: self.tree_sizes.held().map(|held| held.records),
                ..LocationSavings::default()
            };
            locations.look(blocks, self.budget.room_beside_writes());
        }
        true
    }

    /// Gives the pool's memory to the caches, except for what an active memtable may take beside
    /// all records and beside all pages.
    pub fn release_pool(&self) {
        let spared_bytes = self.plan_now().active_spared_bytes;
        self.pool
            .keep_only(spared_bytes.saturating_sub(self.in_memtables()));
    }

    /// Moves the memory budget. Caches shrink as they are used next; memtables above their new
    /// share are sealed at once.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        self.health.check_open()?;
        crate::types::options::settings::check_memory(bytes, self.settings.ring_bytes)?;
        {
            let install = self.install.lock();
            // What more memory cannot hold, less memory could not hold either.
            if bytes < self.budget.limit() {
                self.check_distances(&install, bytes)?;
            }
            self.budget.set_limit(bytes);
            self.pool.set_bytes_max(pool_floor_bytes(bytes));
            self.plan_memory(&install);
        }
        self.schedule.released();
        while self.records.shrink_step() {}
        while self.store.shrink() {}
        if self.log.is_some() {
            self.seal_full();
            if self.memtables_are_large() {
                self.seal_largest();
            }
        }
        Ok(())
    }

    /// Checks that this much memory holds memtables of every χ that was set.
    fn check_distances(&self, install: &Install, bytes: u64) -> Result<()> {
        self.settings
            .check_distance(install.checkpoint_distance, bytes)?;
        for keyspace in self.state.load().keyspaces.iter() {
            if let Some(distance) = keyspace.options.checkpoint_distance {
                self.settings
                    .check_distance(distance, bytes)
                    .map_err(|e| e.with("keyspace", &keyspace.shared.name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::types::options::Options;

    /// In a database that fits into memory, memtables gave their memory to caches that did not want
    /// it, and writers took it from the system again, page by page.
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
        // The pool takes half of its bound at least.
        let fill_pool = || {
            core.pool.set_bytes_max(60 << 20);
            while core.pool.stock(usize::MAX) {}
            assert!(core.pool.bytes() >= 30 << 20);
        };
        put(0..8 << 10);
        fill_pool();
        let spared_bytes = core.plan_now().active_spared_bytes;
        assert!(
            (8 << 20..30 << 20).contains(&spared_bytes),
            "{spared_bytes}"
        );
        core.release_pool();
        assert_eq!(core.pool.bytes() >> 21, spared_bytes >> 21);
        assert_eq!(core.plan_now().memtables_spared_bytes, 0, "no reads yet");
        for number in 0..6000u64 {
            keyspace.get((number % 512).to_be_bytes()).unwrap();
            keyspace.put((number % 512).to_be_bytes(), [1]).unwrap();
        }
        core.look_at_users();
        let kept_bytes = core.plan_now().memtables_spared_bytes;
        assert!(kept_bytes >= core.in_memtables() + (8 << 20));
        assert!(kept_bytes <= 2 * spared_bytes);
        put(8 << 10..64 << 10);
        fill_pool();
        assert_eq!(core.plan_now().active_spared_bytes, 0);
        core.release_pool();
        assert_eq!(core.pool.bytes(), 0, "there is no room for all records");
        assert_eq!(core.plan_now().memtables_spared_bytes, 0);
    }
}
