//! When memtables are sealed.
//!
//! A memtable is sealed when
//!
//! - it is full: it counts χ·L bytes of live data, or as many bytes of garbage. Without the second
//!   bound, a hot key that is overwritten again and again would fill memory and the log, and never
//!   the memtable;
//! - its large values take 64 MiB: overwritten ones give their space back once they are merged;
//! - ranges have passed a million deletes in it (decision 0022). No write waits for such a
//!   memtable: it takes writes while the one before it is being merged;
//! - its range deletes hide as much of the tree as a full memtable holds. A checkpoint then frees
//!   that space;
//! - memtable memory is short: then the largest memtables are sealed, though they are not full;
//! - its limit became smaller than what it holds (`memory::apply`);
//! - a checkpoint asks for it.
//!
//! Invariant: a keyspace has at most one sealed memtable. A memtable that is due while another one
//! is sealed waits for the end of that merge.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::sync::Ordering;
use terrapin_base::{Lsn, Purpose, mutant};
use terrapin_memtable::{Fragment, Memtable};

use crate::engine::core::{Core, Install};
use crate::engine::state::{KeyspaceShared, KeyspaceState, LoggedMemtable, SealedMemtable, State};
use crate::planning::plan::writers_wait_bytes;

/// Ranges that passed this many deletes in a memtable have paid for its seal: they took about a
/// tenth of a second for it (decision 0022).
const PASSED_MAX: u64 = 1 << 20;
/// The coordinator asks a tree for the content of about this many range deletes at a time.
const WEIGHED_MAX: usize = 256;
/// A memtable that counts less says nothing about how much arenas take.
const TELLING_BYTES: u64 = 1 << 20;

#[inline]
fn counted_bytes(memtable: &Memtable) -> u64 {
    memtable.live_bytes().max(memtable.garbage_bytes())
}

impl KeyspaceState {
    /// What the active memtable counts against its limit: live bytes or garbage, whichever is more.
    #[inline]
    pub fn active_bytes(&self) -> u64 {
        counted_bytes(&self.active.memtable)
    }

    /// Whether the active memtable has reached its limit, χ·L.
    #[inline]
    pub fn is_full(&self) -> bool {
        #[cfg(test)]
        tests::LOOKS.set(tests::LOOKS.get() + 1);
        self.active_bytes() >= self.shared.memtable_bytes.load(Ordering::Relaxed)
    }

    /// Whether the active memtable is to be sealed: it is full, or ranges have passed a
    /// million deletes in it, so that merging these costs less, or its range deletes hide much of
    /// the tree.
    #[inline]
    pub fn is_due(&self) -> bool {
        let active = &self.active;
        self.is_full()
            || active.large.are_many()
            || active.passed.load(Ordering::Relaxed) >= PASSED_MAX
            || active.hidden_bytes.load(Ordering::Relaxed)
                >= self.shared.memtable_bytes.load(Ordering::Relaxed)
    }
}

/// Counts what the range deletes of a keyspace's active memtable hide in the tree, as far as they
/// were not counted before. `visible`: everything below is in its memtable.
fn weigh_range_deletes(keyspace: &KeyspaceState, visible: Lsn) {
    let active = &keyspace.active;
    let Some(fragments) = active.memtable.fragments() else {
        return;
    };
    let Ok(ordered) = keyspace.ordered() else {
        return;
    };
    let from = Lsn(active.weighed.swap(visible.0, Ordering::Relaxed));
    let is_new = |fragment: &Fragment| (from..visible).contains(&fragment.lsn);
    let mut count = 0_usize;
    fragments.for_each(&mut |fragment| count += usize::from(is_new(fragment)));
    // Of many, some stand for the others.
    let stride = count.div_ceil(WEIGHED_MAX).max(1);
    let (mut hidden, mut number) = (0_u64, 0_usize);
    fragments.for_each(&mut |fragment| {
        if !is_new(fragment) {
            return;
        }
        number += 1;
        if !number.is_multiple_of(stride) {
            return;
        }
        let upper = fragment.hi.as_deref();
        let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
        // A read or a merge that needs an unreadable node reports the error.
        if let Ok(inside) = ordered.estimate((Bound::Included(&fragment.lo), upper)) {
            hidden = hidden.saturating_add(inside.bytes.saturating_mul(stride as u64));
        }
    });
    active.hidden_bytes.fetch_add(hidden, Ordering::Relaxed);
}

/// What [`Core::seal`] came to.
pub(crate) struct SealMade {
    /// The state right after the seal.
    pub state: Arc<State>,
    /// Where the seal is: every record below it is in `state`'s sealed memtables or versions, or in
    /// memtables that were not sealed.
    pub lsn: Lsn,
    /// Once this much of the log is visible, every record below the seal is in its memtable.
    pub publish_to: Lsn,
}

impl Core {
    /// Seals the active memtables of the keyspaces that `choose` names and that have no sealed one,
    /// all at one LSN. Returns the state that this makes (the current one if nothing was chosen),
    /// the LSN, and how much of the log must be visible for everything below the LSN to be in its
    /// memtable.
    pub fn seal(&self, install: &mut Install, choose: impl Fn(&KeyspaceState) -> bool) -> SealMade {
        let current = self.state.load_full();
        let chosen: Vec<_> = self
            .written
            .noted_of(&current)
            .into_iter()
            .filter(|k| k.sealed.is_none() && choose(k))
            .map(|k| (k.clone(), self.new_memtable()))
            .collect();
        let sealed: Vec<_> = chosen
            .iter()
            .map(|(k, _)| (k.shared.clone(), k.active.clone()))
            .collect();
        let count = chosen.len();
        let store = |lsn: Lsn| {
            if count == 0 {
                return None;
            }
            let mut keyspaces = current.keyspaces.clone();
            for (keyspace, memtable) in chosen {
                let mut next = (*keyspace).clone();
                next.sealed = Some(SealedMemtable {
                    records: next.active,
                    seal: lsn,
                });
                next.active = LoggedMemtable::new(lsn, memtable);
                keyspaces.insert(Arc::new(next));
            }
            let next = State {
                generation: current.generation,
                pin: current.pin.clone(),
                floor: current.floor,
                keyspaces,
            };
            Some(self.replace_state(next))
        };
        let (last, lsn, publish_to) = match (install.replay, &self.log) {
            (None, Some(log)) => {
                let (last, mut seal) = log.boundary(store);
                if mutant::active("applied-lsn-past-seal") {
                    seal.lsn = Lsn(seal.lsn.0 + 1);
                }
                (last, seal.lsn, seal.publish_to)
            }
            (Some(position), _) => (store(position), position, Lsn(0)),
            (None, None) => {
                let end = self.visible();
                (store(end), end, end)
            }
        };
        drop(last);
        let now_ns = self.env.now_ns();
        for (shared, _) in &sealed {
            shared.forecast.sealed(now_ns);
        }
        if count > 0 {
            self.learn_from_sealed(sealed.into_iter());
            self.schedule.sealed(count);
        }
        SealMade {
            state: self.state.load_full(),
            lsn,
            publish_to,
        }
    }

    /// A range passed deletes in the active memtable of its view. Once ranges have paid for a seal,
    /// the coordinator is asked to make one, since perhaps nothing is written that would.
    #[inline]
    pub fn range_passed_in_memtable(&self, memtable: &LoggedMemtable, passed: u64) {
        let before = memtable.passed.fetch_add(passed, Ordering::Relaxed);
        if before < PASSED_MAX && before.saturating_add(passed) >= PASSED_MAX {
            self.schedule.ask_for_seal();
        }
    }

    /// Seals every memtable that is due and has no sealed one before it.
    pub fn seal_full(&self) {
        let mut install = self.install.lock();
        if self.is_plan_outdated() {
            self.plan_memory(&install);
        }
        self.seal(&mut install, KeyspaceState::is_due);
        self.plan_memory(&install);
    }

    /// Looks what new range deletes hide, and seals every memtable that is due and has no sealed
    /// one before it. Reads nodes of trees, so only a job calls it.
    pub fn seal_asked(&self) {
        let state = self.state.load_full();
        let visible = self.visible();
        for keyspace in self.written.written_of(&state) {
            weigh_range_deletes(keyspace, visible);
        }
        self.seal_full();
    }

    /// Whether an active memtable has range deletes.
    pub fn has_range_deletes(&self) -> bool {
        let state = self.state.load_full();
        let written = self.written.written_of(&state);
        let mut active = written.iter().map(|k| &k.active.memtable);
        active.any(|memtable| memtable.fragments().is_some())
    }

    /// Bytes that memtables have, without the pool's.
    pub fn in_memtables(&self) -> u64 {
        let all = self.budget.used(Purpose::Memtable);
        all.saturating_sub(self.pool.bytes())
    }

    /// Memtable memory above which the largest memtables are sealed though they are not full.
    #[inline]
    pub fn memtable_memory_high(&self) -> u64 {
        self.memtable_memory_high.load(Ordering::Relaxed)
    }

    /// Memtable memory above which writers wait for a merge to free some.
    #[inline]
    pub fn memtable_memory_max(&self) -> u64 {
        writers_wait_bytes(self.budget.limit())
    }

    /// Whether memtables by themselves, without the pool, take more than
    /// [`Core::memtable_memory_high`].
    pub fn memtables_are_large(&self) -> bool {
        let high = self.memtable_memory_high();
        self.budget.used(Purpose::Memtable) > high && self.in_memtables() > high
    }

    /// Whether memtable memory is so short that the largest memtables are sealed though they are
    /// not full. Memtables that cannot be merged may hold most of it for as long as that lasts.
    /// Beside them, other memtables have half of what is left, so that they are not sealed record
    /// by record.
    #[inline]
    pub fn memtable_memory_is_short(&self) -> bool {
        let used = self.budget.used(Purpose::Memtable);
        if used <= self.memtable_memory_high() {
            return false;
        }
        let held = self.schedule.aside_bytes();
        used > held + self.memtable_memory_max().saturating_sub(held) / 2
    }

    /// Seals the memtables with the largest arenas, all at one LSN, when memtable memory is short
    /// and no merge is about to free any. It seals as many as bring the memory down to half of the
    /// mark: one of many small memtables would free too little for a checkpoint that all writers
    /// wait for. Where the pool has the memory, the pool gives it back instead, since a seal would
    /// free none of it.
    #[cold]
    pub fn seal_largest(&self) {
        let mut install = self.install.lock();
        if self.schedule.releasing_count() > 0 {
            return;
        }
        let high = self.memtable_memory_high();
        let mut left = self.in_memtables();
        if left <= high {
            self.pool.lower_bytes_max(high - left);
            return;
        }
        let state = self.state.load_full();
        let written = self.written.written_of(&state);
        let mut arenas: Vec<_> = written
            .iter()
            .filter(|k| k.sealed.is_none() && !k.active.memtable.is_empty())
            .map(|k| (k.active.memtable.arena_bytes(), k.id))
            .collect();
        arenas.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let aim = high / 2;
        let largest: BTreeSet<_> = arenas
            .into_iter()
            .take_while(|(bytes, _)| {
                let is_short = left > aim;
                left = left.saturating_sub(*bytes);
                is_short
            })
            .map(|(_, id)| id)
            .collect();
        self.seal(&mut install, |k| largest.contains(&k.id));
    }

    /// Learns from memtables that were just sealed what users do, and how much arenas take for what
    /// memtables hold.
    pub fn learn_from_sealed(
        &self,
        sealed: impl Iterator<Item = (Arc<KeyspaceShared>, Arc<LoggedMemtable>)>,
    ) {
        self.workload.sealed(self.operations());
        for (shared, memtable) in sealed {
            let memtable = &memtable.memtable;
            let counted = counted_bytes(memtable);
            if counted >= TELLING_BYTES {
                let permille = memtable.arena_bytes().saturating_mul(1000) / counted;
                shared.arena_permille.store(permille, Ordering::Relaxed);
            }
        }
    }

    /// Live bytes of a state's memtables.
    pub fn memtable_live_bytes(&self, state: &State) -> u64 {
        let live = |k: &&Arc<KeyspaceState>| {
            let sealed = k.sealed.as_ref().map(|s| s.records.memtable.live_bytes());
            k.active.memtable.live_bytes() + sealed.unwrap_or(0)
        };
        self.written.written_of(state).iter().map(live).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use terrapin_base::sync::thread_local;

    use super::*;

    thread_local! {
        /// How often this thread looked whether a memtable is full.
        pub(crate) static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn a_batch_looks_as_seldom_as_single_writes_whether_memtables_are_full() {
        let options = crate::Options::new().memory(64 << 20);
        let (database, _sim) = options.open_simulated();
        let keyspaces = [
            database.default_keyspace(),
            database.keyspace("other").unwrap(),
        ];
        let before = LOOKS.get();
        for i in 0..1000_u32 {
            let mut batch = database.batch();
            for keyspace in &keyspaces {
                batch.put(keyspace, i.to_be_bytes(), [0; 100]);
            }
            database.write(&batch).unwrap();
        }
        let looks = LOOKS.get() - before;
        assert!((1..400).contains(&looks), "{looks}");
        database.close().unwrap();
    }

    /// The pool's memory was counted as the memtables', which were sealed for it over and over.
    #[test]
    fn memory_in_the_pool_seals_no_memtable() {
        let (database, sim) = crate::Options::new().memory(64 << 20).open_simulated();
        sim.set_breathing(false);
        database.default_keyspace().put("a", "1").unwrap();
        let core = &database.owner.core;
        let high = 16 << 20;
        core.memtable_memory_high.store(high, Ordering::Relaxed);
        core.pool.set_bytes_max(60 << 20);
        while core.pool.stock(usize::MAX) {}
        assert!(core.budget.used(Purpose::Memtable) > high && !core.memtables_are_large());
        core.seal_largest();
        assert_eq!(core.schedule.sealed_count(), 0);
        core.pool.trim();
        assert!(core.budget.used(Purpose::Memtable) <= high);
        database.close().unwrap();
    }
}
