//! The job that brings everything into the cache of records, where it fits there.
//!
//! A get that finds its block cached costs several times what a cached record does, and a block that is read for one record holds dozens
//! that would be read for again: a store that fits either way is slow for long where records and blocks share its memory. So when the
//! records of all trees fit, and the gets that trees answered cost about what it takes to read everything in order, that is done once, and
//! the records are kept. It is done again when trees answered several times as many gets more: writes may have made some leave. Not
//! where ranges, which need the blocks, are what is mostly read.
//!
//! Records come in as by a get: an epoch, a state after it, nothing that a window of the state says, and only while the epoch lasts.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::sync::Ordering;
use terrapin_base::{Condition, Job, KeyspaceId, Lsn, Purpose, Result, Step};
use terrapin_recordcache::Epoch;
use terrapin_structure::{Direction, Estimate, Scan};

use crate::balance::{MOST_PERMILLE, RANGE_MISSES};
use crate::core::Core;
use crate::read::in_windows;
use crate::state::State;

/// Records of a step: a millisecond or two.
const STEP_RECORDS: usize = 1024;
/// A get that reads its block costs about so many times what a record costs that is read in order.
const GET_COST: u64 = 128;
/// After a pass the gets of so many more come first: what left since may leave again.
const WAIT_PASSES: u64 = 8;
/// And in a store of few records so many gets come first.
const GETS_MIN: u64 = 2048;
/// What a cached record takes besides its bytes: header, ends of words, place in the table.
const RECORD_BYTES: u64 = 40;
/// Of what trees hold so many thousandths are to fit: some of it is said twice, in a buffer and below it. Where nothing is, what does not
/// fit is no more than the blocks that are left can hold.
const TO_FIT_PERMILLE: u64 = 850;

/// Brings everything in.
pub(crate) struct Warm {
    core: Arc<Core>,
    /// Gets answered by trees at which to see whether to.
    next: u64,
    /// Such gets, and ranges, when last seen.
    gets: u64,
    ranges: u64,
    pass: Option<Pass>,
}

/// One reading of everything.
struct Pass {
    /// The keyspaces that are left; the last is being read.
    left: Vec<KeyspaceId>,
    /// The last key that was read there.
    behind: Option<Vec<u8>>,
    records: u64,
    stretch: Option<Stretch>,
}

/// What of a pass goes by one state.
struct Stretch {
    epoch: Epoch,
    state: Arc<State>,
    before: Lsn,
    scan: Box<dyn Scan>,
}

/// Gets that cost as much as it does to read so many records in order.
fn worth(records: u64) -> u64 {
    GETS_MIN.max(records / GET_COST)
}

impl Warm {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Warm {
            core: core.clone(),
            next: GETS_MIN,
            gets: 0,
            ranges: 0,
            pass: None,
        })
    }

    /// Begins a pass, if it is time for one and worth it.
    fn begin(&mut self) -> Result<()> {
        let core = &self.core;
        let (gets, ranges) = (core.counters.tree_gets.get(), core.counters.scans.get());
        if gets < self.next {
            return Ok(());
        }
        let state = core.observe()?.state.clone();
        let mut all = Estimate::default();
        for keyspace in state.keyspaces.iter() {
            let held = keyspace
                .version
                .estimate((Bound::Unbounded, Bound::Unbounded))?;
            all.records += held.records;
            all.bytes += held.bytes;
        }
        let worth = worth(all.records);
        if gets < worth {
            self.next = worth;
            return Ok(());
        }
        let ranged = ranges.saturating_sub(self.ranges) * RANGE_MISSES;
        let mostly_ranges = 2 * ranged > gets.saturating_sub(self.gets);
        (self.gets, self.ranges) = (gets, ranges);
        self.next = gets + worth;
        let is_there = core.records.counts().records >= all.records / 8 * 7;
        if is_there || mostly_ranges || !core.could_hold(all, &state) {
            return Ok(());
        }
        // What the last windows left for the next ones would be in the way.
        core.pool.release();
        core.records.set_share(MOST_PERMILLE);
        core.balance.hold(true);
        self.pass = Some(Pass {
            left: state.keyspaces.iter().map(|keyspace| keyspace.id).collect(),
            behind: None,
            records: 0,
            stretch: None,
        });
        Ok(())
    }

    /// A piece of a pass; whether there is more of it.
    fn go_on(&mut self) -> Result<bool> {
        let core = &self.core;
        let Some(pass) = &mut self.pass else {
            return Ok(false);
        };
        while core.store.shrink_needed() && core.store.shrink() {}
        // Windows that came meanwhile may have taken the room.
        if !core.records.over_target() && !pass.step(core)? {
            return Ok(true);
        }
        self.next = core.counters.tree_gets.get() + WAIT_PASSES * worth(pass.records);
        self.end();
        Ok(false)
    }

    fn end(&mut self) {
        self.pass = None;
        self.core.balance.hold(false);
    }
}

impl Core {
    /// Whether records of so much could about be cached beside the windows of that state, each as large as it may come to be.
    fn could_hold(&self, all: Estimate, state: &State) -> bool {
        let windows = state.keyspaces.iter().map(|keyspace| {
            if keyspace.sealed.is_none() && keyspace.active.window.is_empty() {
                return 0;
            }
            let held = keyspace.shared.window_bytes.load(Ordering::Relaxed);
            let arena_permille = keyspace.shared.arena_permille.load(Ordering::Relaxed);
            2 * (held / 1000).saturating_mul(arena_permille)
        });
        let taken = self.budget.used(Purpose::Log)
            + self.budget.used(Purpose::Merge)
            + self.budget.used(Purpose::Metadata)
            + windows.sum::<u64>();
        let room = self.budget.limit().saturating_sub(taken) / 1000 * MOST_PERMILLE;
        let bytes = all
            .bytes
            .saturating_add(all.records.saturating_mul(RECORD_BYTES));
        all.records > 0 && bytes / 1000 * TO_FIT_PERMILLE <= room
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
            .filter(|s| core.records.is_still(s.epoch))
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
        for _ in 0..STEP_RECORDS {
            let Some((key, value)) = stretch.scan.next()? else {
                self.next_keyspace();
                return Ok(false);
            };
            if in_windows(keyspace, stretch.before, key).is_none() {
                core.records
                    .fill(stretch.epoch, id, key, hash64(key), value);
            }
            self.records += 1;
            let behind = self.behind.get_or_insert_default();
            behind.clear();
            behind.extend_from_slice(key);
        }
        self.stretch = Some(stretch);
        Ok(false)
    }

    fn next_keyspace(&mut self) {
        self.left.pop();
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
            None => self.begin().map(|()| self.pass.is_some()),
        };
        match more {
            Ok(true) => return Step::Again,
            Ok(false) => {}
            // A get that comes to the same place reports it.
            Err(_) => {
                self.next = core
                    .counters
                    .tree_gets
                    .get()
                    .saturating_mul(2)
                    .max(GETS_MIN);
                self.end();
            }
        }
        let (signal, next) = (core.store.reclaim_signal().clone(), self.next);
        Step::Pending(Condition::new(&signal, move || {
            core.schedule.is_stopping() || core.counters.tree_gets.get() >= next
        }))
    }
}
