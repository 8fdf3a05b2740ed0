//! The job that brings everything into a cache, where it fits there.
//!
//! A get that finds its block cached costs several times what a cached record does, and a block
//! that is read for one record holds dozens that would be read for again: a store that fits either
//! way is slow for long where records and blocks share its memory. So when the records of all trees
//! fit, and the gets that trees answered cost about what it takes to read everything in order, that
//! is done once, and the records are kept. It is done again when trees answered several times as
//! many gets more: writes may have made some leave.
//!
//! Where ranges, which need the blocks, are what is mostly read, the same is done with blocks, if
//! all of those fit. What is mostly read is looked at every few misses, and counts from the look on
//! that found it so: neither what was read before nor a pass of the other kind keeps a pass
//! waiting, and a few ranges among gets bring none about. While a tree is compacted for ranges no
//! pass of blocks begins: it would read what is being replaced, beside a merge that reads the same.
//!
//! Records come in as by a get: an epoch, a state after it, nothing that a memtable of the state
//! says, and only while the epoch lasts. Blocks come in as those of any range.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Condition, Error, Job, KeyspaceId, Lsn, Purpose, Result, Step};
use terrapin_recordcache::Epoch;
use terrapin_structure::{Batch, BatchLimits, Direction, Estimate, Filled, Scan};

use crate::engine::core::Core;
use crate::engine::state::State;
use crate::memory::cache_split::RANGE_MISSES;
use crate::read::are_memtables_silent;

/// What a step reads: a millisecond's or two's.
const STEP: BatchLimits = BatchLimits {
    records: 1024,
    bytes: 128 << 10,
    likely: 0,
    sparing: false,
    keys_only: false,
    lends: false,
};
/// A get that reads its block costs about so many times what a record costs that is read in order,
const GET_COST: u64 = 128;
/// and a block that is read alone so many times what one costs in order.
const BLOCK_COST: u64 = 8;
/// Bytes of a block, about.
const BLOCK_BYTES: u64 = 4096;
/// After a pass the gets of so many more come first: what left since may leave again.
const WAIT_PASSES: u64 = 8;
/// Twice as many after each in succession that did not bring nearly everything in, up to this.
const WAIT_PASSES_MAX: u64 = 128;
/// And in a small store so many misses come first, which is also how often it is looked at what is
/// mostly asked for.
const MISSES_MIN: u64 = 2048;
/// The records' share of the memory for reads when all of them come in, and when all blocks do, in
/// thousandths.
const RECORDS_PERMILLE: u64 = 980;
const BLOCKS_PERMILLE: u64 = 20;

/// One part in so many of the memory for caches is free before blocks come in: more than a scan
/// reads ahead.
const ROOM_PARTS: u64 = 16;

/// Brings everything in.
pub(crate) struct Warm {
    core: Arc<Core>,
    /// What must have been [`missed`] to look again, and was at the last look.
    next_look: u64,
    looked: u64,
    /// What had been asked for then.
    last: Asked,
    /// What is mostly asked for, and how much was missed before it was.
    kind: Kind,
    since: u64,
    /// When a pass of each kind is next.
    records_due: Due,
    blocks_due: Due,
    pass: Option<Pass>,
}

/// When a pass is next.
#[derive(Clone, Copy)]
struct Due {
    /// What must have been missed.
    missed: u64,
    /// What came first after the last one, in passes.
    wait: u64,
}

/// What was asked for so far.
#[derive(Clone, Copy, Default)]
struct Asked {
    gets: u64,
    ranges: u64,
}

/// What is to come in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Records,
    Blocks,
}

/// One reading of everything.
struct Pass {
    kind: Kind,
    /// The keyspaces that are left; the last is being read.
    left: Vec<KeyspaceId>,
    /// The last key that was read there.
    behind: Option<Vec<u8>>,
    /// What was read of that one, and of all.
    read: Estimate,
    records: u64,
    /// What the last step read.
    batch: Batch,
    stretch: Option<Stretch>,
}

/// What of a pass goes by one state.
struct Stretch {
    epoch: Epoch,
    state: Arc<State>,
    before: Lsn,
    scan: Box<dyn Scan>,
}

impl Asked {
    fn of(core: &Core) -> Self {
        Asked {
            gets: core.counters.gets.get(),
            ranges: core.counters.scans.get(),
        }
    }

    /// What is mostly asked for.
    fn kind_since(self, last: Asked) -> Kind {
        let ranged = self.ranges.saturating_sub(last.ranges) * RANGE_MISSES;
        match 2 * ranged > self.gets.saturating_sub(last.gets) {
            true => Kind::Blocks,
            false => Kind::Records,
        }
    }
}

/// What a pass would spare: gets that trees answered, and reads for ranges.
fn missed(core: &Core) -> u64 {
    core.counters.tree_gets.get() + core.store.scan_reads()
}

impl Kind {
    /// Misses that cost as much as a pass over so many records, or over all pages.
    fn worth(self, core: &Core, records: u64) -> u64 {
        let misses = match self {
            Kind::Records => records / GET_COST,
            Kind::Blocks => core.store.live_bytes() / (BLOCK_BYTES * BLOCK_COST),
        };
        MISSES_MIN.max(misses)
    }

    /// Whether nearly all of so many records, or of all blocks, is there.
    fn is_there(self, core: &Core, records: u64) -> bool {
        match self {
            Kind::Records => core.records.counts().records >= records / 8 * 7,
            Kind::Blocks => core.budget.used(Purpose::Blocks) >= core.store.live_bytes() / 8 * 7,
        }
    }

    /// Whether what is to come in fits beside memtables.
    fn fits(self, core: &Core, state: &State) -> bool {
        match self {
            Kind::Records => core.could_hold_all(state),
            Kind::Blocks => core.could_hold_blocks(state),
        }
    }
}

impl Due {
    const FIRST: Due = Due {
        missed: 0,
        wait: WAIT_PASSES,
    };

    /// After a pass that was worth so many misses, at so many, and brought nearly everything in or
    /// did not.
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

impl Warm {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Warm {
            core: core.clone(),
            next_look: MISSES_MIN,
            looked: 0,
            last: Asked::default(),
            kind: Kind::Records,
            since: 0,
            records_due: Due::FIRST,
            blocks_due: Due::FIRST,
            pass: None,
        })
    }

    fn due(&mut self) -> &mut Due {
        match self.kind {
            Kind::Records => &mut self.records_due,
            Kind::Blocks => &mut self.blocks_due,
        }
    }

    /// Looks at what is asked for, and begins a pass if it is time for one and worth it.
    fn begin(&mut self) -> Result<()> {
        let core = self.core.clone();
        let missed = missed(&core);
        if missed < self.next_look {
            return Ok(());
        }
        self.next_look = missed + MISSES_MIN;
        // What is mostly read says also what memtables leave its room.
        core.look_at_operations();
        let before = std::mem::replace(&mut self.looked, missed);
        let asked = Asked::of(&core);
        let kind = asked.kind_since(std::mem::replace(&mut self.last, asked));
        if kind != self.kind {
            (self.kind, self.since) = (kind, before);
        }
        if missed < self.due().missed {
            return Ok(());
        }
        let state = core.observe()?.state.clone();
        if !core.tree_sizes.are_known() {
            for keyspace in state.keyspaces.iter() {
                let size = &keyspace.shared.tree_size;
                // One that could not be read is tried again; the others are read in as if it held
                // nothing.
                let known = size.get().is_some() && size.is_readable();
                if !known && core.measure(size, &*keyspace.version).is_err() {
                    size.unreadable();
                }
            }
        }
        let records = core.tree_sizes.held().map_or(0, |held| held.records);
        let worth = kind.worth(&core, records);
        if missed < self.since + worth {
            return Ok(());
        }
        if records == 0 || kind.is_there(&core, records) {
            return Ok(());
        }
        // What memtables may take was reckoned when the last was sealed, for the trees of then: it
        // may be all that those left, to the byte.
        core.rebalance(&core.install.lock());
        let fits = kind.fits(&core, &state);
        let is_compacting = core.compactions.is_any_asked() && !core.schedule.space_is_short();
        if fits && kind == Kind::Blocks && is_compacting {
            // What would be read is about to be replaced, and what replaces it comes in as it is
            // written, if blocks have the memory.
            core.records.set_share(BLOCKS_PERMILLE);
            return Ok(());
        }
        self.due().missed = missed + worth;
        if !fits {
            return Ok(());
        }
        core.release_pool();
        core.records.set_share(match kind {
            Kind::Records => RECORDS_PERMILLE,
            Kind::Blocks => BLOCKS_PERMILLE,
        });
        core.balance.hold(true);
        let readable = state.keyspaces.iter();
        let readable = readable.filter(|keyspace| keyspace.shared.tree_size.is_readable());
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

    /// A piece of a pass; whether there is more of it.
    fn go_on(&mut self) -> bool {
        let core = &self.core;
        let Some(pass) = &mut self.pass else {
            return false;
        };
        let has_room = match pass.kind {
            Kind::Records => {
                core.store.shrink_fully();
                // Memtables that came meanwhile may have taken it.
                !core.records.over_target()
            }
            Kind::Blocks => {
                // Blocks that find no room now are not kept.
                let room = core.budget.room_for_caches() / ROOM_PARTS;
                while !core.store.has_room_for_blocks(room) && core.records.give_way() {}
                true
            }
        };
        if has_room {
            match pass.step(core) {
                Ok(true) => {}
                Ok(false) => return true,
                // A get that comes to the same place reports it, and what other keyspaces hold
                // comes in all the same.
                Err(_) => {
                    pass.next_keyspace();
                    return true;
                }
            }
        }
        let worth = pass.kind.worth(core, pass.records);
        let is_there = pass.kind.is_there(core, pass.records);
        let missed = missed(core);
        *self.due() = self.due().after(missed, worth, is_there);
        self.end();
        false
    }

    fn end(&mut self) {
        self.pass = None;
        self.core.balance.hold(false);
    }
}

impl Pass {
    /// Reads some records; whether everything was read.
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
            // It was dropped.
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
        if self.kind == Kind::Records {
            for (key, value) in self.batch.records() {
                if are_memtables_silent(keyspace, stretch.before, key) {
                    let (epoch, collection) = (stretch.epoch, keyspace.collection);
                    core.records
                        .fill(epoch, collection, key, hash64(key), value);
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
        self.stretch = Some(stretch);
        Ok(false)
    }

    fn next_keyspace(&mut self) {
        self.left.pop();
        self.read = Estimate::default();
        self.behind = None;
        self.stretch = None;
    }

    /// Reads on in the newest state; none when the keyspace is not in it.
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
            .version
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
    /// Whether the tree is still the one that is being read: blocks of one that was replaced are of
    /// no use.
    fn is_of_newest(&self, core: &Core, id: KeyspaceId) -> bool {
        let state = core.state.load();
        match (self.state.keyspaces.get(id), state.keyspaces.get(id)) {
            (Some(read), Some(newest)) => Arc::ptr_eq(&read.version, &newest.version),
            _ => false,
        }
    }
}

impl Job for Warm {
    fn name(&self) -> &'static str {
        "warm"
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() || !core.settings.record_cache {
            self.end();
            return Step::Done;
        }
        let more = match &self.pass {
            Some(_) => self.go_on(),
            // It fails only once the database is closed.
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
    fn what_fits_is_read_though_another_tree_cannot_be() {
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
    fn passes_that_do_not_bring_everything_in_come_ever_less_often_and_others_as_before() {
        let mut due = Due::FIRST;
        let mut waits = Vec::new();
        for is_there in [false, false, false, false, false, true, true, false] {
            due = due.after(1000, 10, is_there);
            waits.push((due.missed - 1000) / 10);
        }
        assert_eq!(waits, [16, 32, 64, 128, 128, 8, 8, 16]);
    }
}
