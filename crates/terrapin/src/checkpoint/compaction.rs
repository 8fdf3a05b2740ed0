//! When a tree is compacted for the ranges over it.
//!
//! A range visits every buffer level on its way. With five sorted runs it reads a block or two of
//! each; in a tree whose leaves hold everything it reads one. Each visit of an extra run is a
//! payment. Once ranges have paid the cost of merging all buffers into the leaves, the engine
//! compacts the tree. It does so stretch by stretch, each in a checkpoint of its own
//! (`checkpoint::job`). This is the rule of renting until the rent equals the price, and then
//! buying. It never pays more than twice the least cost in hindsight.
//!
//! Where users mostly ask for ranges, the engine expects more of them, and a quarter of the price
//! is enough:
//!
//! - Of what ranges visited in memory.
//! - Of device reads, if ranges wait for the device. A read of 32 KiB pays nothing, since leaves
//!   need it, too. Records of runs pay the full price then: the time that they take is not what
//!   ranges wait for.
//!
//! Blocks in memory were written lately, and the next memtable brings new ones. While buffers hold
//! little, visits in memory therefore pay less, and ranges must pay the full price. LevelDB counts
//! seeks for the same purpose (its `allowed_seeks`), but there each file pays for itself.
//!
//! Gets pay nothing, since filters keep them from runs without their key. Ranges over snapshots
//! that are older than the tree pay nothing either.
//!
//! A range that passes deletes before it finds a record pays separately, for merging only the span
//! of those deletes (decision 0024). Each `first` of a queue passes all deletes of removed records
//! that still wait in buffers.

use std::sync::Arc;
use terrapin_base::sync::Ordering;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Result, Step, mutant};
use terrapin_structure::ToCompact;

use crate::engine::compactions::{KeySpan, LOOK_RUNS, Stretches, Work};
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;
use crate::planning::workload::Operations;
use crate::read::resolve::ValueReads;

/// Ranges visit at most this many runs between two checks of what they paid.
const LOOK_RUNS_MAX: u64 = 1 << 16;
/// The same limit, while a tree is being compacted.
const BUSY_RUNS: u64 = 1 << 12;
/// Merging this many bytes takes as long as visiting a cached block of a run: a microsecond or two.
const VISIT_BYTES: u64 = 512;
/// Merging this many bytes takes as long as choosing one record of a run among the other runs: an
/// eighth of a microsecond.
const RECORD_BYTES: u64 = 48;
/// A visit pays less, and records pay nothing, if a compaction would write more than this many
/// bytes for each byte in buffers.
const WRITTEN_MAX: u64 = 16;
const VISIT_BYTES_THEN: u64 = 64;
/// Merging this many bytes takes as long as reading a block from the device: forty microseconds.
const READ_BYTES: u64 = 5 << 10;
/// Each visit counts this many times where the engine expects more ranges. So does each read if
/// they wait for the device, and each record if they do not.
const GO_ON: u64 = 4;
/// Ranges wait for the device if there is at least one read for each this many ranges.
const RANGES_A_READ: u64 = 2;
/// A range notes the deletes that it passed only if there were at least this many, and this many
/// per record.
const PASSED_NOTED: u64 = 64;
const PASSED_A_RECORD: u64 = 4;
/// A chunk of a range whose separated values lie in order needs [`NEEDED_READS`] reads, and one
/// more for every [`VALUES_A_READ`] bytes of values.
const NEEDED_READS: u64 = 2;
const VALUES_A_READ: u64 = 32 << 10;
/// What each further read pays for order.
const VALUE_READ_BYTES: u64 = 40 << 10;
/// Ranges that passed this many deletes have paid for merging their span. Passing them took about
/// fifty milliseconds.
const PASSED_MAX: u64 = 1 << 20;

/// What ranges did since the last compaction.
#[derive(Clone, Copy, Default)]
struct Ranges {
    /// Runs that ranges visited.
    runs: u64,
    /// Records that ranges fetched.
    records: u64,
    /// Reads from the device by ranges, long ones in part
    /// ([`terrapin_pages::PageStore::short_scan_reads`]).
    reads: u64,
    outlook: Outlook,
}

/// What the engine expects of ranges, from the operations since the last check.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
enum Outlook {
    /// Ranges are a part of the operations: no expectation.
    #[default]
    Mixed,
    /// Most operations are ranges: more of them are expected.
    GoOn,
    /// More ranges are expected, and they wait for the device.
    Wait,
}

impl Ranges {
    /// What ranges paid for a compaction, in bytes that a merge could have merged in that time.
    /// Runs have the same share of fetched records and of reads as they have of all bytes.
    fn paid(self, to_do: ToCompact) -> u64 {
        let of_runs = |all: u64| {
            u128::from(all) * u128::from(to_do.buffered_bytes)
                / u128::from(to_do.merged_bytes.max(1))
        };
        let (for_visits, for_records, for_reads) = match self.outlook {
            Outlook::Mixed => (1, 1, 1),
            Outlook::GoOn => (GO_ON, GO_ON, 1),
            Outlook::Wait => (GO_ON, 1, GO_ON),
        };
        let runs = u128::from(self.runs);
        let visited = match to_do.merged_bytes / WRITTEN_MAX > to_do.buffered_bytes {
            true => runs * u128::from(VISIT_BYTES_THEN),
            false => {
                let chosen = of_runs(self.records) * u128::from(RECORD_BYTES);
                let visits = runs * u128::from(VISIT_BYTES) * u128::from(for_visits);
                visits + chosen * u128::from(for_records)
            }
        };
        let read = of_runs(self.reads) * u128::from(READ_BYTES);
        u64::try_from(visited + read * u128::from(for_reads)).unwrap_or(u64::MAX)
    }
}

impl Core {
    /// Notes that a range over a keyspace, as a view has it, began and visits `runs` runs besides a
    /// leaf. If the view's tree is not the keyspace's tree any more, no compaction can reduce those
    /// runs. Then neither its visits nor its reads pay.
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

    /// Notes that a range over a keyspace, as a view has it, passed deletes in its tree, for some
    /// records, within a span of keys. Asks for a compaction of the span once ranges have paid for
    /// it. Ignores a tree that is not the keyspace's any more.
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

    /// Notes what the values of a range's chunk cost to read, over a keyspace as a view has it.
    /// Asks for an ordering of the keyspace's values once reads that order would have spared have
    /// paid for it.
    #[cold]
    pub fn range_read_values(&self, keyspace: &KeyspaceState, cost: ValueReads) {
        let needed = NEEDED_READS + cost.bytes / VALUES_A_READ;
        let spared = cost.reads.saturating_sub(needed);
        if spared == 0 || !self.settings.range_compaction || !self.has_that_tree(keyspace) {
            return;
        }
        let visits = &keyspace.shared.visits;
        let before = visits.scattered.fetch_add(spared, Ordering::Relaxed);
        let paid = before
            .saturating_add(spared)
            .saturating_mul(VALUE_READ_BYTES);
        let collects = keyspace.structure.collects();
        let price = collects.map_or(u64::MAX, |c| c.bytes_to_order(&keyspace.version));
        if paid < price || self.schedule.disk_is_full() || mutant::active("order-is-never-paid") {
            return;
        }
        let stretches = Stretches {
            keyspace: keyspace.id,
            span: KeySpan::default(),
            work: Work::Order,
        };
        if self.compactions.ask(stretches) {
            visits.forget_scattered();
            self.schedule.work().notify();
        }
    }

    #[cold]
    fn note_passed(&self, keyspace: &KeyspaceState, passed: u64, span: impl FnOnce() -> KeySpan) {
        let compacts = self.settings.range_compaction && keyspace.structure.compacts().is_some();
        if !compacts || !self.has_that_tree(keyspace) {
            return;
        }
        let visits = &keyspace.shared.visits;
        let before = visits.passed.fetch_add(passed, Ordering::Relaxed);
        if before.saturating_add(passed) < PASSED_MAX || self.schedule.disk_is_full() {
            return;
        }
        let stretches = Stretches {
            keyspace: keyspace.id,
            span: span(),
            work: Work::Buffers,
        };
        if self.compactions.ask(stretches) {
            visits.forget_passed();
            self.schedule.work().notify();
        }
    }
}

/// The job that checks what ranges paid and asks for compactions.
pub(crate) struct Compactor {
    core: Arc<Core>,
    /// The keyspace that is being compacted.
    compacting: Option<KeyspaceId>,
    /// What users had done when the last compaction ended.
    compacted: Done,
    runs: u64,
    /// What users had done at the last check.
    looked: Done,
}

/// What users did so far, and what their ranges fetched and read.
#[derive(Clone, Copy, Default)]
struct Done {
    operations: Operations,
    records: u64,
    reads: u64,
    short_reads: u64,
}

impl Done {
    fn of(core: &Core) -> Self {
        Done {
            operations: core.operations(),
            records: core.counters.scanned_records.get(),
            reads: core.store.scan_reads(),
            short_reads: core.store.short_scan_reads(),
        }
    }

    /// What users did since `then`.
    fn since(self, then: Done) -> Done {
        Done {
            operations: self.operations.since(then.operations),
            records: self.records.saturating_sub(then.records),
            reads: self.reads.saturating_sub(then.reads),
            short_reads: self.short_reads.saturating_sub(then.short_reads),
        }
    }

    /// What to expect, given the operations since the last check.
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
    /// Builds the job for a core.
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

    /// Asks for a compaction if ranges have paid for one. Returns the number of runs after which
    /// the next check is likely to find one. Ranges may pay more than this estimate, with hundreds
    /// of records or several reads for each visit. They wait for the next check by
    /// [`LOOK_RUNS_MAX`] runs at most.
    fn look(&mut self) -> Result<u64> {
        let core = self.core.clone();
        let now = Done::of(&core);
        let outlook = now
            .since(std::mem::replace(&mut self.looked, now))
            .outlook();
        if core.compactions.is_any_asked() || core.schedule.disk_is_full() {
            return Ok(BUSY_RUNS);
        }
        let state = core.observe()?.state.clone();
        if let Some(compacted) = self.compacting.take() {
            // The visits since the compaction began have paid for that compaction.
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
                        work: Work::Buffers,
                    };
                    if core.compactions.ask(all) {
                        self.compacting = Some(keyspace.id);
                        core.schedule.work().notify();
                    }
                    return Ok(BUSY_RUNS);
                }
                Ok(Some(left)) => least = least.min(left),
                // A range that meets the unreadable node reports it. The check goes on with the
                // other trees.
                Ok(None) | Err(_) => {}
            }
        }
        let dearest = (VISIT_BYTES + READ_BYTES) * GO_ON;
        Ok((least / dearest).min(LOOK_RUNS_MAX))
    }

    /// Bytes that ranges have yet to pay, given what all ranges did since the last compaction. None
    /// if there is nothing to compact, or no range visited the tree.
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
        // A keyspace's share of all fetched records and reads equals its share of visited runs.
        let all_runs = self.core.compactions.runs.load(Ordering::Relaxed);
        let all_runs = all_runs.saturating_sub(self.runs).max(runs);
        let part = |all: u64| {
            let part = u128::from(all) * u128::from(runs) / u128::from(all_runs);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let ranges = Ranges {
            runs,
            records: part(done.records),
            reads: part(done.short_reads),
            outlook,
        };
        let Some(compacts) = keyspace.structure.compacts() else {
            return Ok(None);
        };
        let to_do = compacts.to_compact(&keyspace.version)?;
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

    /// A keyspace with a damaged node prevented the compaction of all other trees.
    #[test]
    fn a_tree_is_compacted_even_if_another_is_unreadable() {
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
            work: Work::Buffers,
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
    fn reads_pay_more_than_visits_and_less_beside_writes() {
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
        let waiting = (visited + read) * GO_ON;
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
    fn records_of_runs_pay_in_addition_to_visits() {
        let ranges = Ranges {
            records: 4000,
            ..VISITING
        };
        let paid = |outlook| Ranges { outlook, ..ranges }.paid(TO_DO);
        let (visits, records) = (1000 * VISIT_BYTES, 1000 * RECORD_BYTES);
        assert_eq!(paid(Outlook::Mixed), visits + records, "a quarter of them");
        assert_eq!(paid(Outlook::GoOn), (visits + records) * GO_ON);
        assert_eq!(paid(Outlook::Wait), visits * GO_ON + records);
    }

    #[test]
    fn visits_in_memory_pay_less_while_buffers_hold_little() {
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
    fn more_ranges_are_expected_if_most_operations_were_ranges() {
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
                short_reads: 0,
            };
            now.since(loaded).outlook()
        };
        assert_eq!(outlook(400, 100, 200), Outlook::Wait);
        assert_eq!(outlook(399, 100, 200), Outlook::Mixed);
        assert_eq!(outlook(400, 100, 199), Outlook::GoOn);
    }
}
