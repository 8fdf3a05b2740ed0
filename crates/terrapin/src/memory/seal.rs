//! When memtables are sealed, and how large they may grow: the dial χ, and its share of the memory
//! budget.
//!
//! χ·L counts live bytes; garbage of as much again seals early, or a hot key overwritten for ever
//! would fill memory and the log and never the memtable. With χ on auto the keyspaces that write
//! share a sixth of the budget: an active and a sealed memtable with arenas of 1.6 times what they
//! hold then take about half of it at the peak. While data grows and hardly anybody reads, as in a
//! load, caches are of little use, and both arenas may take what log, merges and the metadata that
//! they read leave, with what they really took for what they held: large records leave more of it
//! for themselves. Not so where data is overwritten: what a checkpoint writes before it can free
//! anything would grow with the memtable. And where users read, and all records (or all blocks,
//! where they mostly read ranges) would fit in memory beside smaller memtables, they are smaller
//! ([`crate::memory::fit`]). Where room on the disk is scarce, each is of one unit
//! ([`crate::disk_space::room`]).
//!
//! A memtable is sealed early, too, once ranges have passed a million deletes in it: a queue that
//! is read from its front would pass all that it took out so far each time, and a memtable holds
//! hundreds of thousands of them ([`KeyspaceState::is_due`], decision 0022).
//!
//! Who reads is seen at each seal, and in between as memtable memory is taken and as reads miss: a
//! memtable that is larger than it may be from then on is sealed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::sync::{AtomicBool, AtomicU64, Ordering};

use terrapin_base::{Purpose, Result};
use terrapin_memtable::Memtable;

use crate::engine::core::{Core, Install};
use crate::engine::state::{KeyspaceShared, KeyspaceState, LoggedMemtable, State};
use crate::keyspaces::written::Basis;
use crate::memory::cache_split::RANGE_MISSES;
use crate::types::options::{CheckpointDistance, DISTANCE_MAX};

/// The part of the budget that active memtables on auto share.
const AUTO_SHARE: u64 = 6;
/// The part in thousandths that their arenas share in a load, at most.
const LOAD_ARENA_PERMILLE: u64 = 430;
/// The part of the budget that a load leaves to indexes, filters and nodes.
const LOAD_METADATA_PART: u64 = 16;
/// So many operations since the last seal say what users do.
const TELLING_OPERATIONS: u64 = 4096;
/// Ranges that passed so many deletes in a memtable have paid for its being sealed: that took them
/// a tenth of a second, about (decision 0022).
const PASSED_MAX: u64 = 1 << 20;
/// What an arena takes for a thousand bytes that its memtable counts (see
/// [`KeyspaceState::active_bytes`]), until one is known.
pub(crate) const ARENA_PERMILLE: u64 = 1600;
/// A memtable that held less tells nothing of that.
const TELLING_BYTES: u64 = 1 << 20;
/// Somebody reads when there was a read for so many writes.
const WRITES_A_READ: u64 = 16;
/// Somebody reads often when there was a read for so many writes: then what reads cost is worth
/// more writing.
const WRITES_AN_OFTEN_READ: u64 = 4;
/// With so many gets to a write, what is written is read again soon.
const GETS_A_WRITE: u64 = 4;

/// Whether users read beside their writes, between one seal and the next, and what they mostly
/// read, since that was last told: where nothing is written nothing is sealed, and a hundred
/// million gets must not hide for long that ranges have taken their place.
pub(crate) struct Mix {
    /// Operations at the last seal.
    gets: AtomicU64,
    ranges: AtomicU64,
    writes: AtomicU64,
    /// Reads when it was last told which kind they mostly are.
    told_gets: AtomicU64,
    told_ranges: AtomicU64,
    is_read: AtomicBool,
    is_often_read: AtomicBool,
    is_mostly_got: AtomicBool,
    is_mostly_ranged: AtomicBool,
}

impl Default for Mix {
    /// Until it is known, somebody reads.
    fn default() -> Self {
        Mix {
            gets: AtomicU64::new(0),
            ranges: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            told_gets: AtomicU64::new(0),
            told_ranges: AtomicU64::new(0),
            is_read: AtomicBool::new(true),
            is_often_read: AtomicBool::new(false),
            is_mostly_got: AtomicBool::new(false),
            is_mostly_ranged: AtomicBool::new(false),
        }
    }
}

/// Operations of users, since the store was opened or since some moment.
#[derive(Clone, Copy, Default)]
struct Operations {
    gets: u64,
    ranges: u64,
    writes: u64,
}

impl Mix {
    /// A memtable was sealed; the counts go on for ever.
    fn seal(&self, now: Operations) {
        let since = self.since(now);
        self.gets.store(now.gets, Ordering::Relaxed);
        self.ranges.store(now.ranges, Ordering::Relaxed);
        self.writes.store(now.writes, Ordering::Relaxed);
        self.judge(since);
        self.judge_reads(now);
    }

    /// Judges by what was done since the last seal, if that is enough to tell; whether memtables
    /// may have come to be worth another size.
    fn look(&self, now: Operations) -> bool {
        let since = self.since(now);
        if since.gets + since.ranges + since.writes < TELLING_OPERATIONS {
            return false;
        }
        let before = self.judged();
        self.judge(since);
        self.judge_reads(now);
        before != self.judged()
    }

    fn since(&self, now: Operations) -> Operations {
        Operations {
            gets: since(&self.gets, now.gets),
            ranges: since(&self.ranges, now.ranges),
            writes: since(&self.writes, now.writes),
        }
    }

    fn judge(&self, since: Operations) {
        let Operations { gets, writes, .. } = since;
        let reads = gets + since.ranges;
        let is_read = reads.saturating_mul(WRITES_A_READ) >= writes;
        self.is_read.store(is_read, Ordering::Relaxed);
        let is_often_read = reads.saturating_mul(WRITES_AN_OFTEN_READ) >= writes;
        self.is_often_read.store(is_often_read, Ordering::Relaxed);
        let is_mostly_got = gets >= writes.saturating_mul(GETS_A_WRITE);
        self.is_mostly_got.store(is_mostly_got, Ordering::Relaxed);
    }

    /// Judges which reads are the most by those since the last time, if they are enough to tell.
    fn judge_reads(&self, now: Operations) {
        let gets = since(&self.told_gets, now.gets);
        let ranges = since(&self.told_ranges, now.ranges);
        if gets + ranges < TELLING_OPERATIONS {
            return;
        }
        self.told_gets.store(now.gets, Ordering::Relaxed);
        self.told_ranges.store(now.ranges, Ordering::Relaxed);
        let is_mostly_ranged = 2 * RANGE_MISSES.saturating_mul(ranges) > gets;
        self.is_mostly_ranged
            .store(is_mostly_ranged, Ordering::Relaxed);
    }

    /// What the size of memtables goes by.
    fn judged(&self) -> (bool, bool, bool) {
        let (is_read, is_often_read) = (self.is_read(), self.is_often_read());
        (is_read, is_often_read, self.is_mostly_ranged())
    }

    /// Whether reads were mostly ranges, which need blocks.
    pub fn is_mostly_ranged(&self) -> bool {
        self.is_mostly_ranged.load(Ordering::Relaxed)
    }

    /// Whether there were far more gets than writes: what the last memtable holds is read, and
    /// would have to be read from the device once it is merged.
    pub fn is_mostly_got(&self) -> bool {
        self.is_mostly_got.load(Ordering::Relaxed)
    }

    /// Whether there were about as many reads as writes, or more.
    pub fn is_often_read(&self) -> bool {
        self.is_often_read.load(Ordering::Relaxed)
    }

    fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }
}

/// What was counted since another count was stored.
fn since(last: &AtomicU64, now: u64) -> u64 {
    now.saturating_sub(last.load(Ordering::Relaxed))
}

#[inline]
fn counted_bytes(memtable: &Memtable) -> u64 {
    memtable.live_bytes().max(memtable.garbage_bytes())
}

/// Whether a keyspace takes a share of the memtables' memory.
pub(crate) fn is_written(keyspace: &KeyspaceState) -> bool {
    keyspace.sealed.is_some() || !keyspace.active.memtable.is_empty()
}

impl KeyspaceState {
    /// What the active memtable holds against its limit: live bytes or garbage, whichever is more.
    #[inline]
    pub fn active_bytes(&self) -> u64 {
        counted_bytes(&self.active.memtable)
    }

    /// Whether the active memtable has reached χ·L.
    #[inline]
    pub fn is_full(&self) -> bool {
        #[cfg(test)]
        tests::LOOKS.set(tests::LOOKS.get() + 1);
        self.active_bytes() >= self.shared.memtable_bytes.load(Ordering::Relaxed)
    }

    /// Whether the active memtable is to be sealed: it is full, or ranges have passed so many
    /// deletes in it that it costs less to merge them. For the latter nobody waits, as for memory:
    /// such a memtable takes writes while the one before it is being merged.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.is_full() || self.active.passed.load(Ordering::Relaxed) >= PASSED_MAX
    }
}

impl Core {
    /// A range went over so many deletes in the active memtable of its view. Once ranges have paid
    /// for a seal, the coordinator is asked to make one: nobody may be writing.
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
        if self.operations_changed() {
            self.rebalance(&install);
        }
        self.seal(&mut install, KeyspaceState::is_due);
        self.rebalance(&install);
    }

    /// Whether memtables, and not what waits for the next ones, take more than
    /// [`Core::memtable_memory_high`].
    pub fn memtables_are_large(&self) -> bool {
        let high = self.memtable_memory_high();
        self.budget.used(Purpose::Memtable) > high && self.in_memtables() > high
    }

    /// Whether memtable memory is so short that the largest memtables are sealed though they are
    /// not full. Memtables that cannot be merged may hold the most of it for as long as that lasts:
    /// beside such, others have half of what is left, so that they are not sealed record by record.
    #[inline]
    pub fn memtable_memory_is_short(&self) -> bool {
        let used = self.budget.used(Purpose::Memtable);
        if used <= self.memtable_memory_high() {
            return false;
        }
        let held = self.schedule.aside_bytes();
        used > held + self.memtable_memory_max().saturating_sub(held) / 2
    }

    /// Looks at what users do before the next seal tells. Memtables that came to be too large are
    /// sealed.
    pub fn look_at_operations(&self) {
        if self.log.is_some() && self.operations_changed() {
            let mut install = self.install.lock();
            self.rebalance(&install);
            self.seal(&mut install, KeyspaceState::is_due);
        }
    }

    /// Not while a memtable is sealed: another that came to be too large could not be sealed then,
    /// and its writers would wait for the merge.
    fn operations_changed(&self) -> bool {
        self.schedule.sealed_count() == 0 && self.mix.look(self.operations())
    }

    fn operations(&self) -> Operations {
        let counters = &self.counters;
        Operations {
            gets: counters.gets.get(),
            ranges: counters.scans.get(),
            writes: counters.puts.get() + counters.deletes.get(),
        }
    }

    /// Memtable memory is short and nothing sealed is about to free any: seals the memtables with
    /// the largest arenas, at one LSN, as many as bring it down to half of where it is short. One
    /// of many small memtables would free too little for a checkpoint that all writers wait for.
    /// Where it is what waits for the next memtables that takes it, that is given back instead: a
    /// seal would free none of it.
    #[cold]
    pub fn cut_largest(&self) {
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
        let written = self.written_of(&state);
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

    /// Learns from memtables that were just sealed what the next ones may hold.
    pub fn learn_of(
        &self,
        sealed: impl Iterator<Item = (Arc<KeyspaceShared>, Arc<LoggedMemtable>)>,
    ) {
        self.mix.seal(self.operations());
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
        self.written_of(state).iter().map(live).sum()
    }

    /// Bytes of memtable memory above which the largest memtables are sealed though they are not
    /// full.
    #[inline]
    pub fn memtable_memory_high(&self) -> u64 {
        self.memtable_memory_high.load(Ordering::Relaxed)
    }

    /// What that is unless a load takes more.
    pub fn memtable_memory_usual(limit: u64) -> u64 {
        limit / 10 * 6
    }

    /// Bytes of arenas that all active memtables on auto may come to in a load: as much again is
    /// sealed.
    pub fn arenas_of_load(&self) -> u64 {
        let limit = self.budget.limit();
        let left = limit.saturating_sub(self.taken_besides() + limit / LOAD_METADATA_PART);
        (left / 2).min(limit / 1000 * LOAD_ARENA_PERMILLE)
    }

    /// Whether data grows and hardly anybody reads. What is less than a memtable is little to
    /// overwrite.
    fn is_loaded(&self, written: &[&Arc<KeyspaceState>]) -> bool {
        let grows = || written.iter().all(|k| k.shared.replacing.is_growing());
        let is_small = || self.store.live_bytes() < self.budget.limit() / AUTO_SHARE;
        !self.mix.is_read() && (grows() || is_small())
    }

    /// Bytes of memtable memory above which writers wait for a merge to free some.
    #[inline]
    pub fn memtable_memory_max(&self) -> u64 {
        self.budget.limit() / 16 * 15
    }

    /// Sets the memtable limits of all written keyspaces anew from χ, the memory budget, and how
    /// many those are. Any other one gets its limit as it is first written. O(written keyspaces).
    pub fn rebalance(&self, install: &Install) {
        let state = self.state.load();
        let written = self.written_of(&state);
        let beside_all = self.arenas_beside_what_is_read();
        let limit = self.budget.limit();
        let mut high = Self::memtable_memory_usual(limit);
        let is_loaded = self.is_loaded(&written);
        if is_loaded {
            // An arena takes a little more for what it holds than the last one did, or the pool has
            // a few chunks ready.
            high = high.max(self.arenas_of_load() * 2 + limit / 64);
        }
        self.memtable_memory_high.store(high, Ordering::Relaxed);
        let basis = Basis {
            writers: written.len(),
            is_loaded,
            beside_all,
            distance: install.checkpoint_distance,
        };
        self.written.set_basis(basis);
        for keyspace in written {
            self.set_limits(keyspace, &basis);
        }
    }

    /// Sets one keyspace's memtable limit.
    pub fn set_limits(&self, keyspace: &KeyspaceState, basis: &Basis) {
        let shared = &keyspace.shared;
        let distance = keyspace.options.checkpoint_distance;
        let arena_permille = shared.arena_permille.load(Ordering::Relaxed);
        let bytes = self.memtable_bytes(distance, arena_permille, basis);
        shared.ample_memtable_bytes.store(bytes, Ordering::Relaxed);
        let bytes = self.limit_in_room(bytes);
        shared.memtable_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The memtable limit of a keyspace that has no options of its own and was not written yet.
    pub fn limit_of_new(&self) -> u64 {
        self.memtable_bytes(None, ARENA_PERMILLE, &self.written.basis())
    }

    /// χ·L for a keyspace where the disk has room, with a χ of its own or the database's, and
    /// arenas that take so much for a thousand bytes that they hold; on auto no more than what
    /// arenas of `beside_all` bytes hold.
    fn memtable_bytes(
        &self,
        distance: Option<CheckpointDistance>,
        arena_permille: u64,
        basis: &Basis,
    ) -> u64 {
        let &Basis {
            writers,
            is_loaded,
            beside_all,
            ..
        } = basis;
        let distance = distance.unwrap_or(basis.distance);
        let unit = self.settings.merge.group_bytes;
        let limit = self.budget.limit();
        // Memory may have shrunk below what a fixed χ was allowed under.
        let largest = self.settings.distance_max(limit).max(1);
        let units = match distance {
            CheckpointDistance::Fixed(chi) => u64::from(chi).clamp(1, largest),
            CheckpointDistance::Auto => {
                let held = |arena: u64| {
                    let held = u128::from(arena) * 1000 / u128::from(arena_permille.max(1000));
                    u64::try_from(held).unwrap_or(arena)
                };
                let share = match is_loaded {
                    true => held(self.arenas_of_load()).max(limit / AUTO_SHARE),
                    false => limit / AUTO_SHARE,
                };
                let share = beside_all.map_or(share, |arena| share.min(held(arena)));
                share / writers.max(1) as u64 / unit
            }
        };
        units.clamp(1, DISTANCE_MAX) * unit
    }

    /// χ in force.
    pub fn distance_in_force(&self, shared: &KeyspaceShared) -> u32 {
        // One that is not written has the limit of when it last was.
        if let Some(keyspace) = self.state.load().keyspaces.get(shared.id) {
            self.set_limits(keyspace, &self.written.basis());
        }
        let units = shared.memtable_bytes.load(Ordering::Relaxed) / self.settings.merge.group_bytes;
        u32::try_from(units).unwrap_or(u32::MAX).max(1)
    }

    /// Moves the memory budget. Caches shrink as they are used next; memtables over their new share
    /// are sealed at once.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        self.health.check_open()?;
        crate::types::options::check_memory(bytes, self.settings.ring_bytes)?;
        {
            let install = self.install.lock();
            // What more memory still does not hold, the memory of before held even less.
            if bytes < self.budget.limit() {
                self.check_distances(&install, bytes)?;
            }
            self.budget.set_limit(bytes);
            self.pool
                .set_bytes_max(bytes / crate::engine::core::POOL_SHARE);
            self.rebalance(&install);
        }
        self.schedule.released();
        while self.records.shrink_step() {}
        while self.store.shrink() {}
        if self.log.is_some() {
            self.seal_full();
            if self.memtables_are_large() {
                self.cut_largest();
            }
        }
        Ok(())
    }

    /// Whether so much memory holds memtables of every χ that was set.
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
pub(crate) mod tests {
    use std::cell::Cell;

    use terrapin_base::sync::thread_local;

    use super::*;

    thread_local! {
        /// How often it was looked whether a memtable is full.
        pub(crate) static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn batches_look_as_seldom_as_single_writes_whether_memtables_are_full() {
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

    fn operations(gets: u64, ranges: u64, writes: u64) -> Operations {
        Operations {
            gets,
            ranges,
            writes,
        }
    }

    #[test]
    fn a_mix_is_read_until_writes_come_without_reads() {
        let mix = Mix::default();
        assert!(mix.is_read());
        mix.seal(operations(0, 0, 1000));
        assert!(!mix.is_read(), "nothing but writes");
        mix.seal(operations(40, 30, 2000));
        assert!(mix.is_read(), "one in sixteen");
        mix.seal(operations(60, 70, 3000));
        assert!(!mix.is_read(), "one in seventeen");
    }

    #[test]
    fn a_mix_is_mostly_got_where_four_gets_come_for_a_write_and_ranges_do_not_count() {
        let mix = Mix::default();
        assert!(!mix.is_mostly_got());
        mix.seal(operations(4000, 0, 1000));
        assert!(mix.is_mostly_got());
        mix.seal(operations(7999, 9000, 2000));
        assert!(!mix.is_mostly_got());
    }

    #[test]
    fn a_mix_is_mostly_ranged_where_a_range_comes_for_eight_gets() {
        let mix = Mix::default();
        mix.seal(operations(8000, 1000, 0));
        assert!(!mix.is_mostly_ranged());
        mix.seal(operations(16_000, 2001, 0));
        assert!(mix.is_mostly_ranged());
        mix.seal(operations(16_100, 2001, 9000));
        assert!(mix.is_mostly_ranged(), "not enough to tell");
        assert!(
            mix.look(operations(60_000, 2002, 9000)),
            "memtables may be of another size"
        );
        assert!(!mix.is_mostly_ranged());
    }

    /// What was read since the last seal was counted, however long ago: nothing is sealed where
    /// nothing is written.
    #[test]
    fn a_mix_is_mostly_ranged_soon_after_a_hundred_million_gets() {
        let mix = Mix::default();
        mix.seal(operations(1000, 0, 1000));
        mix.look(operations(100_000_000, 0, 1000));
        assert!(!mix.is_mostly_ranged());
        assert!(mix.look(operations(100_000_000, TELLING_OPERATIONS, 1000)));
        assert!(mix.is_mostly_ranged());
    }

    #[test]
    fn a_mix_is_seen_between_seals_once_enough_was_done() {
        let mix = Mix::default();
        assert!(!mix.look(operations(0, 0, TELLING_OPERATIONS - 1)));
        assert!(mix.is_read(), "not enough to tell");
        assert!(mix.look(operations(0, 0, TELLING_OPERATIONS)));
        assert!(!mix.is_read());
        assert!(!mix.look(operations(0, 0, 9000)), "no news");
        assert!(mix.look(operations(900, 0, 9000)), "since the last seal");
        mix.seal(operations(900, 0, 9000));
        assert!(mix.look(operations(900, 0, 20_000)), "since this one");
        assert!(!mix.is_read());
    }
}
