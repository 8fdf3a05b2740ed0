//! The job that reads everything into a cache once, where everything fits there.
//!
//! A get that finds its block cached costs several times what a cached record costs. A block that
//! is read for one record holds dozens that later gets would read again. So a store that fits in
//! memory would be slow for long. Therefore, once gets have cost what reading everything in order
//! takes, this job does that and keeps the records. It repeats it when trees have answered several
//! times as many gets more, since writes may have pushed some records out.
//!
//! Where ranges are most reads, the job does the same with blocks, if all blocks fit. Ranges need
//! the blocks.
//!
//! - [`crate::planning::workload`] says which reads are the most. A pass counts the misses since
//!   that was last found different, so reads of the other kind neither delay a pass nor bring it
//!   about.
//! - [`crate::planning::plan`] says whether everything fits.
//! - While a tree is compacted for ranges, no pass of blocks begins: it would read what is about to
//!   be replaced, beside a merge that reads the same.
//!
//! Records come in as by a get: the pass takes an epoch, then a state, and brings in a record only
//! if no memtable of that state says anything of its key and the epoch still lasts. Blocks come in
//! as those of any range.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Lsn, Purpose, Result, Step};
use terrapin_recordcache::Epoch;
use terrapin_structure::{Batch, BatchLimits, Direction, Estimate, Filled, Scan};

use crate::engine::core::Core;
use crate::engine::state::State;
use crate::planning::workload::{Operations, ReadKind};
use crate::read::are_memtables_silent;

/// What a step reads, in a millisecond or two.
const STEP: BatchLimits = BatchLimits {
    records: 1024,
    bytes: 128 << 10,
    likely: 0,
    most: usize::MAX,
    sparing: false,
    keys_only: false,
    lends: false,
};
/// A get that reads its block costs about as much as reading this many records in order.
const GET_COST: u64 = 128;
/// A block that is read alone costs as much as this many blocks in order.
const BLOCK_COST: u64 = 8;
/// Bytes of a block, about.
const BLOCK_BYTES: u64 = 4096;
/// After a pass, as many misses as pay for this many passes come before the next one.
const WAIT_PASSES: u64 = 8;
/// That number doubles, up to this one, after each pass in succession that did not bring nearly
/// everything in.
const WAIT_PASSES_MAX: u64 = 128;
/// Misses between two looks, and before a pass over a small store.
const MISSES_MIN: u64 = 2048;
/// The records' share of the memory for reads while all records come in, in thousandths.
const RECORDS_PERMILLE: u64 = 980;
/// The records' share while all blocks come in.
const BLOCKS_PERMILLE: u64 = 20;
/// This part of the memory for caches is free before blocks come in: more than a scan reads ahead.
const ROOM_PARTS: u64 = 16;

/// Reads everything in.
pub(crate) struct WarmUp {
    core: Arc<Core>,
    /// The number of misses ([`missed`]) at the next look, and at the last one.
    next_look: u64,
    looked: u64,
    /// What users had done at the last look.
    last: Operations,
    /// Which reads were the most at the last look, and the number of misses before they were.
    kind: ReadKind,
    since: u64,
    /// When a pass of each kind is next.
    records_due: Due,
    blocks_due: Due,
    pass: Option<Pass>,
}

/// When a pass is next.
#[derive(Clone, Copy)]
struct Due {
    /// The number of misses at which it is.
    missed: u64,
    /// How many passes' worth of misses came between this one and the last.
    wait: u64,
}

/// One reading of everything.
struct Pass {
    kind: ReadKind,
    /// The keyspaces that are left; the pass reads the last one.
    left: Vec<KeyspaceId>,
    /// The last key that it read there.
    behind: Option<Vec<u8>>,
    /// What it read of that keyspace, and the records of all keyspaces.
    read: Estimate,
    records: u64,
    /// What the last step read.
    batch: Batch,
    stretch: Option<Stretch>,
}

/// The part of a pass that reads one state.
struct Stretch {
    epoch: Epoch,
    state: Arc<State>,
    before: Lsn,
    scan: Box<dyn Scan>,
}

/// What a pass would have spared: gets that trees answered, and reads for ranges.
fn missed(core: &Core) -> u64 {
    core.counters.tree_gets.get() + core.store.scan_reads()
}

/// Misses that cost as much as a pass for reads of a kind, over `records` records or all pages.
fn worth(kind: ReadKind, core: &Core, records: u64) -> u64 {
    let misses = match kind {
        ReadKind::Gets => records / GET_COST,
        ReadKind::Ranges => core.store.live_bytes() / (BLOCK_BYTES * BLOCK_COST),
    };
    MISSES_MIN.max(misses)
}

/// Whether nearly all of `records` records, or nearly all blocks, are cached.
fn is_there(kind: ReadKind, core: &Core, records: u64) -> bool {
    match kind {
        ReadKind::Gets => core.records.counts().records >= records / 8 * 7,
        ReadKind::Ranges => core.budget.used(Purpose::Blocks) >= core.store.live_bytes() / 8 * 7,
    }
}

/// The records' share of the memory for reads while what reads of that kind need comes in.
fn records_permille(kind: ReadKind) -> u64 {
    match kind {
        ReadKind::Gets => RECORDS_PERMILLE,
        ReadKind::Ranges => BLOCKS_PERMILLE,
    }
}

impl Due {
    const FIRST: Due = Due {
        missed: 0,
        wait: WAIT_PASSES,
    };

    /// The next pass after one that paid for `worth` misses and ended at `missed`. `is_there` says
    /// whether nearly everything is cached then.
    fn after(self, missed: u64, worth: u64, is_there: bool) -> Due {
        let wait = match is_there {
            true => WAIT_PASSES,
            false => (2 * self.wait).min(WAIT_PASSES_MAX),
        };
        Due {
            missed: missed.saturating_add(wait.saturating_mul(worth)),
            wait,
        }
    }
}

impl WarmUp {
    /// The job of a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(WarmUp {
            core: core.clone(),
            next_look: MISSES_MIN,
            looked: 0,
            last: Operations::default(),
            kind: ReadKind::Gets,
            since: 0,
            records_due: Due::FIRST,
            blocks_due: Due::FIRST,
            pass: None,
        })
    }

    fn due(&mut self) -> &mut Due {
        match self.kind {
            ReadKind::Gets => &mut self.records_due,
            ReadKind::Ranges => &mut self.blocks_due,
        }
    }

    /// Looks at what users read, and begins a pass if it is time for one, it is worth it, and
    /// everything fits.
    fn begin(&mut self) -> Result<()> {
        let core = self.core.clone();
        let missed = missed(&core);
        if missed < self.next_look {
            return Ok(());
        }
        self.next_look = missed + MISSES_MIN;
        let now = core.operations();
        let last = std::mem::replace(&mut self.last, now);
        let kind = core.workload.look_at_reads(now, last);
        core.look_at_users();
        let before = std::mem::replace(&mut self.looked, missed);
        if kind != self.kind {
            (self.kind, self.since) = (kind, before);
        }
        if missed < self.due().missed {
            return Ok(());
        }
        let state = core.observe()?.state.clone();
        self.measure_trees(&state);
        let records = core.tree_sizes.held().map_or(0, |held| held.records);
        let worth = worth(kind, &core, records);
        if missed < self.since + worth {
            return Ok(());
        }
        if records == 0 || is_there(kind, &core, records) {
            return Ok(());
        }
        // The limits of memtables are from the last seal, for the trees of then. They may be all
        // that those trees left, to the byte.
        core.plan_memory(&core.install.lock());
        let plan = core.plan_now();
        let fits = plan.warms_up && plan.mix.reads == kind;
        let is_compacting = core.compactions.is_any_asked() && !core.schedule.disk_is_full();
        if fits && kind == ReadKind::Ranges && is_compacting {
            // What replaces the old blocks comes in as it is written, if blocks have the memory.
            core.records.set_share(BLOCKS_PERMILLE);
            return Ok(());
        }
        self.due().missed = missed + worth;
        if !fits {
            return Ok(());
        }
        core.release_pool();
        core.records.set_share(records_permille(kind));
        core.cache_split.hold(true);
        // A tree without order has no scan that reads it in.
        let readable = state.keyspaces.iter().filter(|keyspace| {
            keyspace.shared.tree_size.is_readable() && keyspace.version.ordered().is_some()
        });
        self.pass = Some(Pass {
            kind,
            left: readable.map(|keyspace| keyspace.id).collect(),
            behind: None,
            read: Estimate::default(),
            records: 0,
            batch: Batch::default(),
            stretch: None,
        });
        Ok(())
    }

    /// Measures the trees that were not measured yet, and tries again those that could not be read.
    /// A tree that cannot be read counts as empty, so that the others come in.
    fn measure_trees(&self, state: &State) {
        let core = &self.core;
        if core.tree_sizes.are_known() {
            return;
        }
        for keyspace in state.keyspaces.iter() {
            let size = &keyspace.shared.tree_size;
            let is_known = size.get().is_some() && size.is_readable();
            let budget_bytes = core.budget.limit();
            if !is_known && size.measure(&*keyspace.version, budget_bytes).is_err() {
                size.unreadable();
            }
        }
    }

    /// Does a step of the pass. Returns whether there is more of it.
    fn go_on(&mut self) -> bool {
        let core = &self.core;
        let Some(pass) = &mut self.pass else {
            return false;
        };
        let has_room = match pass.kind {
            ReadKind::Gets => {
                core.store.shrink_fully();
                // New memtables may have taken the room.
                !core.records.over_target()
            }
            ReadKind::Ranges => {
                // Blocks that find no room would not be kept.
                let room = core.budget.room_for_caches() / ROOM_PARTS;
                while !core.store.has_room_for_blocks(room) && core.records.give_way() {}
                true
            }
        };
        if has_room {
            match pass.step(core) {
                Ok(true) => {}
                Ok(false) => return true,
                // A get of the same block reports the error. Other keyspaces come in.
                Err(_) => {
                    pass.next_keyspace();
                    return true;
                }
            }
        }
        let worth = worth(pass.kind, core, pass.records);
        let is_there = is_there(pass.kind, core, pass.records);
        let missed = missed(core);
        *self.due() = self.due().after(missed, worth, is_there);
        self.end();
        false
    }

    fn end(&mut self) {
        self.pass = None;
        self.core.cache_split.hold(false);
    }
}

impl Pass {
    /// Reads some records. Returns whether everything was read.
    fn step(&mut self, core: &Core) -> Result<bool> {
        let Some(&id) = self.left.last() else {
            return Ok(true);
        };
        let stretch = match self
            .stretch
            .take()
            .filter(|s| core.records.is_still(s.epoch) && s.is_of_newest(core, id))
        {
            Some(stretch) => Some(stretch),
            None => self.open(core, id)?,
        };
        let Some(mut stretch) = stretch else {
            // The keyspace was dropped.
            self.next_keyspace();
            return Ok(false);
        };
        let Some(keyspace) = stretch.state.keyspaces.get(id) else {
            return Ok(false);
        };
        self.batch.restart(STEP, STEP.records, 0);
        let filled = stretch.scan.fill(Bound::Unbounded, &mut self.batch)?;
        self.read.records += self.batch.len() as u64;
        self.read.bytes += self.batch.bytes().len() as u64;
        self.records += self.batch.len() as u64;
        if self.kind == ReadKind::Gets {
            for (key, value) in self.batch.records() {
                if are_memtables_silent(keyspace, stretch.before, key)
                    && let Some((key, hash)) = keyspace.shared.form.in_caches(key)
                {
                    let (epoch, collection) = (stretch.epoch, keyspace.collection);
                    core.records.fill(epoch, collection, key, hash, value);
                }
            }
        }
        if filled == Filled::End {
            keyspace.shared.tree_size.set(self.read);
            self.next_keyspace();
            return Ok(false);
        }
        if let Some((first, rest)) = self.batch.last_key() {
            let behind = self.behind.get_or_insert_default();
            behind.clear();
            behind.extend_from_slice(first);
            behind.extend_from_slice(rest);
        }
        if filled == Filled::Unresolved {
            // The block is cached. Reads apply the record's operands until a merge has done so.
            let behind = self.behind.get_or_insert_default();
            behind.clear();
            stretch.scan.unresolved(behind);
            stretch.scan.skip(behind);
        }
        self.stretch = Some(stretch);
        Ok(false)
    }

    fn next_keyspace(&mut self) {
        self.left.pop();
        self.read = Estimate::default();
        self.behind = None;
        self.stretch = None;
    }

    /// Begins to read on in the newest state; none when the keyspace is not in it.
    fn open(&self, core: &Core, id: KeyspaceId) -> Result<Option<Stretch>> {
        let epoch = core.records.epoch();
        let observed = core.observe()?;
        let state = observed.state.clone();
        let Some(keyspace) = state.keyspaces.get(id) else {
            return Ok(None);
        };
        let from = self
            .behind
            .as_deref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let scan = keyspace
            .ordered()?
            .scan((from, Bound::Unbounded), Direction::Forward)?;
        Ok(Some(Stretch {
            epoch,
            before: observed.before,
            scan,
            state,
        }))
    }
}

impl Stretch {
    /// Whether the stretch reads the newest tree. Blocks of a tree that was replaced are of no use.
    fn is_of_newest(&self, core: &Core, id: KeyspaceId) -> bool {
        let state = core.state.load();
        match (self.state.keyspaces.get(id), state.keyspaces.get(id)) {
            (Some(read), Some(newest)) => Arc::ptr_eq(&read.version, &newest.version),
            _ => false,
        }
    }
}

impl Job for WarmUp {
    fn name(&self) -> &'static str {
        "warm-up"
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() || !core.settings.record_cache {
            self.end();
            return Step::Done;
        }
        let more = match &self.pass {
            Some(_) => self.go_on(),
            // An error means that the database is closed.
            None => self.begin().is_ok() && self.pass.is_some(),
        };
        if more {
            return Step::Again;
        }
        let (signal, next) = (core.store.reclaim_signal().clone(), self.next_look);
        Step::Pending(Condition::new(&signal, move || {
            core.schedule.is_stopping() || missed(&core) >= next
        }))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;
    use terrapin_disk::SimDisk;

    use super::*;
    use crate::Options;
    use crate::testing::unreadable::make_unreadable;

    /// One keyspace with a damaged node kept all others from coming in.
    #[test]
    fn a_damaged_tree_does_not_keep_others_from_being_read_in() {
        const RECORDS: u64 = 20_000;
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let options = Options::small().memory(16 << 20).group_bytes(64 << 10);
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let database = options.open_on(env.clone(), disk.handle()).unwrap();
        for name in ["default", "unreadable"] {
            let keyspace = database.keyspace(name).unwrap();
            for number in 0..RECORDS {
                keyspace.put(key(number), [0; 100]).unwrap();
            }
        }
        database.close().unwrap();
        let database = options.open_on(env, disk.handle()).unwrap();
        let unreadable = database.keyspace("unreadable").unwrap();
        make_unreadable(database.core(), unreadable.id());
        let keyspace = database.default_keyspace();
        for number in 0..RECORDS / 4 {
            assert!(keyspace.get(key(number)).unwrap().is_some());
        }
        sim.settle();
        assert_eq!(database.metrics().cached_records, RECORDS);
    }

    #[test]
    fn passes_that_leave_something_out_come_less_and_less_often() {
        let mut due = Due::FIRST;
        let mut waits = Vec::new();
        for is_there in [false, false, false, false, false, true, true, false] {
            due = due.after(1000, 10, is_there);
            waits.push((due.missed - 1000) / 10);
        }
        assert_eq!(waits, [16, 32, 64, 128, 128, 8, 8, 16]);
    }
}
