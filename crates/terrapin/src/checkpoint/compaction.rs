//! When a tree is compacted for the ranges over it.
//!
//! A range visits every buffer level on its way: of five sorted runs it takes a block or two each,
//! where a tree whose leaves hold everything has one. Each visit too many is a payment; once ranges
//! have paid what it takes to merge all that buffers hold into the leaves, that is done, stretch by
//! stretch, each a checkpoint of its own (`checkpoint::job`). Who rents until the rent comes to the
//! price, and then buys, never pays more than twice what was the least in hindsight. Where mostly
//! ranges are asked for they are taken to go on, and a part is enough: of what they went over in
//! memory a quarter; of reads of the device, if they wait for it, an eighth, since what is not in
//! memory was written long ago. What was written lately is, and comes again with the next memtable:
//! while buffers hold little, what lies in memory pays less, and no part of it is enough. LevelDB
//! counts seeks for the same purpose (its `allowed_seeks`); there each file pays for itself.
//!
//! Gets pay nothing: filters keep them from runs that do not hold their key. Nor do ranges over
//! snapshots that are older than the tree.
//!
//! Apart from that, a range that goes over deletes before it comes to a record pays for merging
//! just what lies there (decision 0024): the looks at the front of a queue go over all that was
//! taken out of it and waits in buffers, each time.

use std::sync::Arc;
use terrapin_base::sync::Ordering;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Result, Step, mutant};
use terrapin_structure::ToCompact;

use crate::engine::compactions::{KeySpan, LOOK_RUNS, Stretches};
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;
use crate::planning::workload::Operations;

/// Ranges visit at most this many runs between two looks at what they paid.
const LOOK_RUNS_MAX: u64 = 1 << 16;
/// And so many while a tree is being compacted.
const BUSY_RUNS: u64 = 1 << 12;
/// A visit to a cached block of a run takes as long as merging so many bytes does: a microsecond or
/// two.
const VISIT_BYTES: u64 = 512;
/// And each record that came from a run so many more: an eighth of a microsecond for choosing it
/// among the others.
const RECORD_BYTES: u64 = 48;
/// A visit pays less, and records nothing, where more than so many bytes would be written for each
/// that buffers hold.
const WRITTEN_MAX: u64 = 16;
const VISIT_BYTES_THEN: u64 = 64;
/// And one to a block that must be read first so many more: forty.
const READ_BYTES: u64 = 5 << 10;
/// Where ranges are taken to go on, each visit and each record counts as so many.
const GO_ON: u64 = 4;
/// And each read, where they wait for the device.
const GO_ON_WAITING: u64 = 8;
/// Ranges wait for the device where a read comes for this many of them, or for fewer.
const RANGES_A_READ: u64 = 2;
/// Fewer deletes that a range went over at once, or less than so many for each record, are not
/// worth taking note of.
const PASSED_NOTED: u64 = 64;
const PASSED_A_RECORD: u64 = 4;
/// Ranges that went over so many have paid for merging what lies there: that took them some fifty
/// milliseconds.
const PASSED_MAX: u64 = 1 << 20;

/// What ranges did since the last compaction.
#[derive(Clone, Copy, Default)]
struct Ranges {
    /// Runs that they visited.
    runs: u64,
    /// Records that they fetched.
    records: u64,
    /// What they read from the device.
    reads: u64,
    outlook: Outlook,
}

/// What is expected of ranges, by what came since the last look.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nothing: they are a part of what comes.
    #[default]
    Mixed,
    /// That they go on: mostly they are what is asked for.
    GoOn,
    /// That they go on, and wait for the device.
    Wait,
}

impl Ranges {
    /// What they paid for a compaction, in bytes that could have been merged meanwhile. Of what was
    /// fetched and read, the runs' share is as theirs of all bytes.
    fn paid(self, to_do: ToCompact) -> u64 {
        let of_runs = |all: u64| {
            u128::from(all) * u128::from(to_do.buffered_bytes)
                / u128::from(to_do.merged_bytes.max(1))
        };
        let (for_visits, for_reads) = match self.outlook {
            Outlook::Mixed => (1, 1),
            Outlook::GoOn => (GO_ON, 1),
            Outlook::Wait => (GO_ON, GO_ON_WAITING),
        };
        let runs = u128::from(self.runs);
        let visited = match to_do.merged_bytes / WRITTEN_MAX > to_do.buffered_bytes {
            true => runs * u128::from(VISIT_BYTES_THEN),
            false => {
                let chosen = of_runs(self.records) * u128::from(RECORD_BYTES);
                (runs * u128::from(VISIT_BYTES) + chosen) * u128::from(for_visits)
            }
        };
        let read = of_runs(self.reads) * u128::from(READ_BYTES);
        u64::try_from(visited + read * u128::from(for_reads)).unwrap_or(u64::MAX)
    }
}

impl Core {
    /// A range over a keyspace, as a view has it, began in so many runs besides a leaf. In a tree
    /// that is not the keyspace's any more no compaction makes them fewer: they do not pay, and
    /// what was read there pays for nothing either.
    #[inline]
    pub fn range_visited(&self, keyspace: &KeyspaceState, runs: u64) {
        if runs == 0 {
            return;
        }
        if self.has_that_tree(keyspace) || mutant::active("old-view-pays-for-compaction") {
            keyspace
                .shared
                .visits
                .runs
                .fetch_add(runs, Ordering::Relaxed);
        }
        let before = self.compactions.runs.fetch_add(runs, Ordering::Relaxed);
        let next = self.compactions.next_look.load(Ordering::Relaxed);
        if before < next && next <= before + runs {
            self.store.reclaim_signal().notify();
        }
    }

    /// Whether a keyspace still has the tree that a view shows.
    #[inline]
    fn has_that_tree(&self, keyspace: &KeyspaceState) -> bool {
        let state = self.state.load();
        let current = state.keyspaces.get(keyspace.id);
        current.is_some_and(|now| Arc::ptr_eq(&now.version, &keyspace.version))
    }

    /// A range over a keyspace, as a view has it, went over so many deletes in its tree for so many
    /// records, in a span of keys: once ranges have paid for it, that is compacted. A tree that is
    /// not the keyspace's any more stays as it is.
    #[inline]
    pub fn range_passed(
        &self,
        keyspace: &KeyspaceState,
        passed: u64,
        records: usize,
        span: impl FnOnce() -> KeySpan,
    ) {
        if passed >= PASSED_NOTED && passed >= PASSED_A_RECORD * records as u64 {
            self.note_passed(keyspace, passed, span);
        }
    }

    #[cold]
    fn note_passed(&self, keyspace: &KeyspaceState, passed: u64, span: impl FnOnce() -> KeySpan) {
        if !self.settings.range_compaction || !self.has_that_tree(keyspace) {
            return;
        }
        let visits = &keyspace.shared.visits;
        let before = visits.passed.fetch_add(passed, Ordering::Relaxed);
        if before.saturating_add(passed) < PASSED_MAX || self.schedule.space_is_short() {
            return;
        }
        let stretches = Stretches {
            keyspace: keyspace.id,
            span: span(),
        };
        if self.compactions.ask(stretches) {
            visits.forget_passed();
            self.schedule.work().notify();
        }
    }
}

/// Looks at what ranges paid, and asks for compactions.
pub(crate) struct Compactor {
    core: Arc<Core>,
    /// What is being compacted.
    compacting: Option<KeyspaceId>,
    /// What had been done when the last compaction ended, and which runs had been visited.
    compacted: Done,
    runs: u64,
    /// What had been done at the last look.
    looked: Done,
}

/// What users did so far, and what their ranges fetched and read.
#[derive(Clone, Copy, Default)]
struct Done {
    operations: Operations,
    records: u64,
    reads: u64,
}

impl Done {
    fn of(core: &Core) -> Self {
        Done {
            operations: core.operations(),
            records: core.counters.scanned_records.get(),
            reads: core.store.scan_reads(),
        }
    }

    /// What came since then.
    fn since(self, then: Done) -> Done {
        Done {
            operations: self.operations.since(then.operations),
            records: self.records.saturating_sub(then.records),
            reads: self.reads.saturating_sub(then.reads),
        }
    }

    /// What is to be expected, if this is what came lately.
    fn outlook(self) -> Outlook {
        if !self.operations.is_mostly_ranges() {
            Outlook::Mixed
        } else if self.reads.saturating_mul(RANGES_A_READ) < self.operations.ranges {
            Outlook::GoOn
        } else {
            Outlook::Wait
        }
    }
}

impl Compactor {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Compactor::new(core))
    }

    fn new(core: &Arc<Core>) -> Self {
        Compactor {
            core: core.clone(),
            compacting: None,
            compacted: Done::default(),
            runs: 0,
            looked: Done::default(),
        }
    }

    /// Asks for a compaction if one was paid for; about how many runs must be visited before
    /// another look is likely to find one. Visits that give hundreds of records, or read more than
    /// once, pay more than is reckoned with here: they have theirs [`LOOK_RUNS_MAX`] runs later at
    /// most.
    fn look(&mut self) -> Result<u64> {
        let core = self.core.clone();
        let now = Done::of(&core);
        let outlook = now
            .since(std::mem::replace(&mut self.looked, now))
            .outlook();
        if core.compactions.is_any_asked() || core.schedule.space_is_short() {
            return Ok(BUSY_RUNS);
        }
        let state = core.observe()?.state.clone();
        if let Some(compacted) = self.compacting.take() {
            // What was visited meanwhile paid for what is done.
            if let Some(keyspace) = state.keyspaces.get(compacted) {
                keyspace.shared.visits.runs.store(0, Ordering::Relaxed);
            }
            self.compacted = now;
            self.runs = core.compactions.runs.load(Ordering::Relaxed);
        }
        let mut least = u64::MAX;
        for keyspace in state.keyspaces.iter() {
            match self.left_to_pay(keyspace, now.since(self.compacted), outlook) {
                Ok(Some(0)) => {
                    let all = Stretches {
                        keyspace: keyspace.id,
                        span: KeySpan::default(),
                    };
                    if core.compactions.ask(all) {
                        self.compacting = Some(keyspace.id);
                        core.schedule.work().notify();
                    }
                    return Ok(BUSY_RUNS);
                }
                Ok(Some(left)) => least = least.min(left),
                // Where a node cannot be read, a range that comes there reports it; the other trees
                // are looked at all the same.
                Ok(None) | Err(_) => {}
            }
        }
        let dearest = VISIT_BYTES * GO_ON + READ_BYTES * GO_ON_WAITING;
        Ok((least / dearest).min(LOOK_RUNS_MAX))
    }

    /// Bytes that ranges have yet to pay for, after what all ranges did since the last compaction;
    /// none where there is nothing to compact, or nobody visited it.
    fn left_to_pay(
        &self,
        keyspace: &KeyspaceState,
        done: Done,
        outlook: Outlook,
    ) -> Result<Option<u64>> {
        let runs = keyspace.shared.visits.runs.load(Ordering::Relaxed);
        if runs == 0 {
            return Ok(None);
        }
        // Of what all ranges fetched and read, as much as of the runs that they visited.
        let all_runs = self.core.compactions.runs.load(Ordering::Relaxed);
        let all_runs = all_runs.saturating_sub(self.runs).max(runs);
        let part = |all: u64| {
            let part = u128::from(all) * u128::from(runs) / u128::from(all_runs);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let ranges = Ranges {
            runs,
            records: part(done.records),
            reads: part(done.reads),
            outlook,
        };
        let to_do = keyspace.version.to_compact()?;
        let left = to_do.merged_bytes.saturating_sub(ranges.paid(to_do));
        Ok((to_do.merged_bytes > 0).then_some(left))
    }
}

impl Job for Compactor {
    fn name(&self) -> &'static str {
        "compactor"
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() {
            return Step::Done;
        }
        if core.compactions.is_look_due() {
            let runs = core.compactions.runs.load(Ordering::Relaxed);
            let pause = self.look().unwrap_or(runs);
            let next = runs.saturating_add(pause.max(LOOK_RUNS));
            core.compactions.next_look.store(next, Ordering::Relaxed);
        }
        let signal = core.store.reclaim_signal().clone();
        Step::Pending(Condition::new(&signal, move || {
            core.schedule.is_stopping() || core.compactions.is_look_due()
        }))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::testing::unreadable::make_unreadable;

    /// One keyspace with a damaged node kept the trees of all others as they were.
    #[test]
    fn a_tree_is_compacted_though_another_cannot_be_read() {
        let (database, sim) = Options::small().open_simulated();
        let keyspace = database.keyspace("paid for").unwrap();
        for number in 0..10_000u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            keyspace.put(key, [0; 100]).unwrap();
        }
        database.checkpoint().unwrap();
        sim.settle();
        sim.set_breathing(false);
        let core = database.core();
        make_unreadable(core, KeyspaceId::DEFAULT);
        for keyspace in core.state.load().keyspaces.iter() {
            let paid = u64::MAX / VISIT_BYTES;
            keyspace.shared.visits.runs.store(paid, Ordering::Relaxed);
        }
        let mut compactor = Compactor::new(core);
        compactor.look().unwrap();
        let asked = core.compactions.asked().map(|stretches| stretches.keyspace);
        assert_eq!(asked, Some(keyspace.id()));
    }

    #[test]
    fn a_compaction_that_finds_nothing_to_do_commits_nothing() {
        let (database, sim) = Options::small().open_simulated();
        database.default_keyspace().put("a", "1").unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        sim.set_breathing(false);
        let core = database.core();
        let before = core.counters.checkpoints.get();
        let all = Stretches {
            keyspace: KeyspaceId::DEFAULT,
            span: KeySpan::default(),
        };
        assert!(core.compactions.ask(all.clone()));
        assert!(!core.compactions.ask(all), "one at a time");
        core.schedule.work().notify();
        sim.settle();
        assert!(!core.compactions.is_any_asked());
        assert_eq!(core.counters.checkpoints.get(), before);
        database.close().unwrap();
    }

    const TO_DO: ToCompact = ToCompact {
        merged_bytes: 4000,
        buffered_bytes: 1000,
    };
    const VISITING: Ranges = Ranges {
        runs: 1000,
        records: 0,
        reads: 0,
        outlook: Outlook::Mixed,
    };

    #[test]
    fn what_is_read_pays_more_than_what_is_visited_and_less_beside_writes() {
        let paid = |reads, outlook| {
            let ranges = Ranges {
                reads,
                outlook,
                ..VISITING
            };
            ranges.paid(TO_DO)
        };
        let visited = 1000 * VISIT_BYTES;
        assert_eq!(paid(0, Outlook::Mixed), visited);
        let read = 200 * READ_BYTES;
        assert_eq!(paid(800, Outlook::Mixed), visited + read, "a quarter of it");
        assert_eq!(paid(800, Outlook::GoOn), visited * GO_ON + read);
        let waiting = visited * GO_ON + read * GO_ON_WAITING;
        assert_eq!(paid(800, Outlook::Wait), waiting);
        assert_eq!(Ranges::default().paid(ToCompact::default()), 0);
        let much = Ranges {
            runs: u64::MAX,
            records: u64::MAX,
            reads: u64::MAX,
            outlook: Outlook::Wait,
        };
        assert_eq!(much.paid(TO_DO), u64::MAX);
    }

    #[test]
    fn records_of_runs_pay_besides_the_visit() {
        let ranges = Ranges {
            records: 4000,
            ..VISITING
        };
        let paid = 1000 * VISIT_BYTES + 1000 * RECORD_BYTES;
        assert_eq!(ranges.paid(TO_DO), paid, "a quarter of them");
    }

    #[test]
    fn what_lies_in_memory_pays_less_where_buffers_hold_little() {
        let ranges = Ranges {
            records: 4000,
            outlook: Outlook::Wait,
            ..VISITING
        };
        let little = ToCompact {
            buffered_bytes: 249,
            ..TO_DO
        };
        assert_eq!(ranges.paid(little), 1000 * VISIT_BYTES_THEN);
    }

    #[test]
    fn ranges_go_on_where_they_are_most_of_what_came() {
        let outlook = |ranges: u64, writes: u64, reads| {
            let operations = |ranges, writes| Operations {
                gets: 0,
                ranges,
                writes,
            };
            let loaded = Done {
                operations: operations(0, 1_000_000),
                ..Done::default()
            };
            let now = Done {
                operations: operations(ranges, 1_000_000 + writes),
                records: 50 * ranges,
                reads,
            };
            now.since(loaded).outlook()
        };
        assert_eq!(outlook(400, 100, 200), Outlook::Wait);
        assert_eq!(outlook(399, 100, 200), Outlook::Mixed);
        assert_eq!(outlook(400, 100, 199), Outlook::GoOn);
    }
}
