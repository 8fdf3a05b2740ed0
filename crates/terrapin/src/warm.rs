//! The job that brings everything into a cache, where it fits there.
//!
//! A get that finds its block cached costs several times what a cached record does, and a block that is read for one record holds dozens
//! that would be read for again: a store that fits either way is slow for long where records and blocks share its memory. So when the
//! records of all trees fit, and the gets that trees answered cost about what it takes to read everything in order, that is done once, and
//! the records are kept. It is done again when trees answered several times as many gets more: writes may have made some leave.
//!
//! Where ranges, which need the blocks, are what is mostly read, the same is done with blocks, if all of those fit.
//!
//! Records come in as by a get: an epoch, a state after it, nothing that a window of the state says, and only while the epoch lasts. Blocks
//! come in as those of any range.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Condition, Job, KeyspaceId, Lsn, Purpose, Result, Step};
use terrapin_recordcache::Epoch;
use terrapin_structure::{Direction, Estimate, Scan};

use crate::balance::RANGE_MISSES;
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
/// The records' share of the memory for reads when all of them come in, and when all blocks do, in thousandths.
const RECORDS_PERMILLE: u64 = 980;
const BLOCKS_PERMILLE: u64 = 20;

/// Brings everything in.
pub(crate) struct Warm {
    core: Arc<Core>,
    /// What must have been [`missed`] to see whether to.
    next: u64,
    /// What had been asked for when last seen.
    last: Asked,
    pass: Option<Pass>,
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
            last: Asked::default(),
            pass: None,
        })
    }

    /// Begins a pass, if it is time for one and worth it.
    fn begin(&mut self) -> Result<()> {
        let core = &self.core;
        let missed = missed(core);
        if missed < self.next {
            return Ok(());
        }
        let state = core.observe()?.state.clone();
        let mut records = 0u64;
        for keyspace in state.keyspaces.iter() {
            let size = &keyspace.shared.tree_size;
            if size.get().is_none() {
                core.measure(size, &*keyspace.version)?;
            }
            records = records.saturating_add(size.get().map_or(0, |held| held.records));
        }
        let worth = worth(records);
        if missed < worth {
            self.next = worth;
            return Ok(());
        }
        self.next = missed + worth;
        let asked = Asked::of(core);
        let kind = asked.kind_since(std::mem::replace(&mut self.last, asked));
        let is_worth_it = match kind {
            Kind::Records => {
                core.records.counts().records < records / 8 * 7 && core.could_hold_all(&state)
            }
            Kind::Blocks => {
                let cached = core.budget.used(Purpose::Blocks);
                cached < core.store.live_bytes() / 8 * 7 && core.could_hold_blocks(&state)
            }
        };
        if !is_worth_it || records == 0 {
            return Ok(());
        }
        // What the last windows left for the next ones would be in the way.
        core.pool.release();
        core.records.set_share(match kind {
            Kind::Records => RECORDS_PERMILLE,
            Kind::Blocks => BLOCKS_PERMILLE,
        });
        core.balance.hold(true);
        self.pass = Some(Pass {
            kind,
            left: state.keyspaces.iter().map(|keyspace| keyspace.id).collect(),
            behind: None,
            read: Estimate::default(),
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
        let has_room = match pass.kind {
            Kind::Records => {
                while core.store.shrink_needed() && core.store.shrink() {}
                // Windows that came meanwhile may have taken it.
                !core.records.over_target()
            }
            Kind::Blocks => {
                while core.records.shrink_step() {}
                true
            }
        };
        if has_room && !pass.step(core)? {
            return Ok(true);
        }
        self.next = missed(core) + WAIT_PASSES * worth(pass.records);
        self.end();
        Ok(false)
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
                keyspace.shared.tree_size.set(self.read);
                self.next_keyspace();
                return Ok(false);
            };
            self.read.records += 1;
            self.read.bytes += (key.len() + value.len()) as u64;
            let is_wanted = self.kind == Kind::Records;
            if is_wanted && in_windows(keyspace, stretch.before, key).is_none() {
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
                self.next = missed(&core).saturating_mul(2).max(GETS_MIN);
                self.end();
            }
        }
        let (signal, next) = (core.store.reclaim_signal().clone(), self.next);
        Step::Pending(Condition::new(&signal, move || {
            core.schedule.is_stopping() || missed(&core) >= next
        }))
    }
}
