//! The coordinator: the job that runs one checkpoint after another, in steps.
//!
//! ```text
//! idle ─ freeze ─ settle ─┬─ (prepare ─ merge)* ─ spill ─ catalog ─ commit ─ install ─ idle
//!                         └─ on an error: free the pages, rest, freeze again
//! ```
//!
//! The end of a checkpoint is in [`install`], and the end of a failed one in [`failure`].
//!
//! *Freeze* seals the memtables that are due. It takes the state, and an LSN: the checkpoint's
//! seal. *Settle* waits until every record below the seal is in its memtable. The catalog describes
//! the database as of the seal. A change meanwhile, such as a clear, is in the log above the seal,
//! where a power cut may remove it. A late writer finds no memtable once its keyspace is cleared or
//! dropped, although its record is below the seal. Only the clear then explains why the trees lack
//! the record. The commit therefore syncs the log through the clear, too.
//!
//! A checkpoint leaves out a memtable that it cannot merge, for example because a node of the tree
//! is damaged. That memtable stays sealed and the others go on. Only writers of its keyspace wait
//! for its memory. The coordinator retries after a rest, or when a caller asks for a checkpoint.
//! That caller gets the error.
//!
//! A checkpoint without a sealed memtable compacts a stretch of a tree if ranges have paid for it
//! (`compaction`). A memtable that is sealed meanwhile waits as long as merging sixteen page groups
//! takes. A failed compaction fails no caller's checkpoint: the tree stays as it is.
//!
//! When a merge finds no space, the next checkpoint writes from the reserve (D10). It merges only a
//! slice of one memtable, straight into the leaves, as far as the room allows ([`Portion`]). The
//! slice's records stay in the sealed memtable until the last slice is merged. The tree then holds
//! the same records, which does no harm. A batch that is not in the log must not be split, so the
//! engine merges such a memtable in one piece. It does so after all others, or when there is room.
//! Once slices have used some of the reserve, the coordinator empties trees until the reserve is
//! whole again (`drain`). When there is room again, it merges the rest of the memtable as usual.
//! Meanwhile deletes gather (`gather`). The more deletes a leaf gets at once, the less room they
//! take.

mod failure;
mod install;

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Lsn, Result, Step, mutant};
use terrapin_pages::{Changes, Superblock};
use terrapin_structure::{Compaction, MergeOptions};

use super::commit::{Commit, Progress};
use super::drain::Drain;
use super::gather::Gathering;
use super::input::{MemtableInput, Preparation};
use super::outcome::{Checkpoint, Part};
use super::portion::Portion;
use super::rest::{Aside, Rest};
use super::spill::Spilling;
use crate::engine::compactions::{STRETCH_GROUPS, Stretches};
use crate::engine::core::Core;
use crate::engine::running_merge::{RunningMerge, guarded};
use crate::engine::schedule::Asked;
use crate::engine::state::SealedMemtable;
use crate::keyspaces::catalog::{Catalog, Following};

/// The first rest after a failed checkpoint, and the longest one, in nanoseconds.
const REST_NS_MIN: u64 = 50_000_000;
const REST_NS_MAX: u64 = 10_000_000_000;
/// Time between two checks of a full disk, in nanoseconds.
const SPACE_POLL_NS: u64 = 1_000_000_000;

/// The job that runs the checkpoints.
pub(crate) struct Coordinator {
    core: Arc<Core>,
    catalog: Catalog,
    superblock: Superblock,
    phase: Phase,
    rest_ns: u64,
    /// Keyspaces that were created, dropped, cleared or reconfigured since the last catalog
    /// ([`crate::engine::core::Install::changed`]).
    changed: BTreeSet<KeyspaceId>,
    /// Whether the current checkpoint compacts a tree and merges no memtable.
    compacting: bool,
    /// Set when a merge found no space. Memtables are merged in slices until one is done or there
    /// is room.
    slicing: bool,
    /// Whether the file system reported room since a memtable was last done. If a merge fails
    /// nevertheless (because of a quota, for example), the engine does not trust such a report
    /// again.
    tried_room: bool,
    /// Whether the current checkpoint merges a memtable that may not be sliced.
    is_whole: bool,
    /// Memtables that could not be merged, and the value of [`Schedule::seals`] that the current
    /// checkpoint saw.
    aside: Aside,
    seals: u64,
    /// The requests when the current checkpoint began.
    asked: Asked,
    /// The size of the next slice, and how far each sealed memtable is merged.
    portion: Portion,
    slices: Vec<(KeyspaceId, Lsn, Box<[u8]>)>,
    /// The emptying of trees, and whether the current checkpoint does that.
    drain: Drain,
    draining: bool,
    /// Deletes that gather before they are merged.
    gathering: Gathering,
}

enum Phase {
    Idle,
    Settle(Box<Checkpoint>),
    Prepare(Box<Checkpoint>, Box<Preparation>),
    Merge(Box<Checkpoint>, Arc<RunningMerge>),
    Spill(Box<Checkpoint>, Box<Spilling>),
    Catalog(Box<Checkpoint>),
    Commit(Box<Committing>),
    Rest(Rest),
}

struct Committing {
    checkpoint: Box<Checkpoint>,
    next: Catalog,
    superblock: Superblock,
    commit: Commit,
}

impl Coordinator {
    /// Builds the job for a core that was opened with this superblock and catalog.
    pub fn job(core: &Arc<Core>, superblock: Superblock, catalog: Catalog) -> Box<dyn Job> {
        Box::new(Coordinator {
            core: core.clone(),
            catalog,
            superblock,
            phase: Phase::Idle,
            rest_ns: REST_NS_MIN,
            changed: BTreeSet::new(),
            compacting: false,
            slicing: false,
            tried_room: false,
            is_whole: false,
            aside: Aside::default(),
            seals: 0,
            asked: Asked::default(),
            portion: Portion::new(core.settings.merge.group_bytes),
            slices: Vec::new(),
            drain: Drain::new(core.settings.merge.group_bytes),
            draining: false,
            gathering: Gathering::default(),
        })
    }

    fn has_work(core: &Core, gathers: bool) -> bool {
        let schedule = &core.schedule;
        schedule.sealed_count() > 0
            || schedule.asked_through() > schedule.durable_through()
            || schedule.log_is_long()
            || schedule.has_trees_to_give_up()
            || (!schedule.space_is_short() && core.compactions.is_any_asked())
            || (Self::merges_deletes(core, gathers) && Gathering::has_some(core))
    }

    /// Whether the disk is full and it is time to merge deletes, which may make room.
    fn merges_deletes(core: &Core, gathers: bool) -> bool {
        core.schedule.space_is_short() && !(gathers && Gathering::log_has_room(core))
    }

    fn idle(&mut self) -> Step {
        let core = self.core.clone();
        // Other programs may free disk space, without notice to the engine.
        core.see_whether_room_is_back();
        if core.schedule.take_up_seal() {
            core.seal_full();
        }
        let may_compact = self.may_compact();
        let gathers = self.gathering.go_on(&core);
        if Self::has_work(&core, gathers) {
            self.phase = Phase::Settle(Box::new(self.freeze(may_compact, gathers)));
            return Step::Again;
        }
        let is_short = core.schedule.space_is_short();
        let look_ns = is_short.then(|| core.env.now_ns() + SPACE_POLL_NS);
        let condition = Condition::new(self.core.schedule.work(), move || {
            core.schedule.is_stopping()
                || Self::has_work(&core, gathers)
                || core.schedule.is_seal_asked()
                || core.schedule.space_is_short() != is_short
        });
        Step::Pending(match look_ns {
            Some(until_ns) => condition.until(until_ns),
            None => condition,
        })
    }

    /// Whether a compaction was asked for and finds room for its next stretch. Gives up a
    /// compaction that finds no room.
    fn may_compact(&self) -> bool {
        let core = &self.core;
        if !core.compactions.is_any_asked() {
            return false;
        }
        let has_room = core.has_room_for_stretch();
        if !has_room {
            tracing::info!(
                "the disk is nearly full: a compaction for ranges is given up, and its tree stays as it is"
            );
            core.compactions.went_on(None);
        }
        has_room
    }

    /// Seals the memtables that are asked for or that keep the log long, and freezes the state.
    fn freeze(&mut self, may_compact: bool, gathers: bool) -> Checkpoint {
        let core = self.core.clone();
        let long = core.schedule.log_is_long();
        let short = core.schedule.space_is_short();
        let merges_deletes = Self::merges_deletes(&core, gathers);
        core.schedule.log_is_being_shortened();
        let trees_let_go = core.schedule.trees_let_go();
        let asked = core.schedule.asked();
        self.asked = asked;
        let mut install = core.install.lock();
        // Seals the memtables that keep the older half of a log that is too long.
        let oldest = self.catalog.durable_through();
        let end = core.log.as_ref().map_or(oldest, |l| l.tail());
        let middle = Lsn(oldest.0 + end.0.saturating_sub(oldest.0) / 2);
        let applied = |id| self.catalog.applied_of(id).unwrap_or(Lsn(0));
        self.changed.append(&mut install.changed);
        let seal = core.seal(&mut install, |keyspace| {
            let memtable = &keyspace.active;
            // A memtable that was empty at the last checkpoint has an old start and newer records.
            let from = applied(keyspace.id).max(memtable.start);
            let reaches = from < asked.through || (long && from <= middle);
            (reaches || merges_deletes) && !memtable.memtable.is_empty()
        });
        core.plan_memory(&install);
        self.slices.retain(|(id, seal_at, _)| {
            let sealed = seal
                .state
                .keyspaces
                .get(*id)
                .and_then(|k| k.sealed.as_ref());
            sealed.is_some_and(|s| s.seal == *seal_at)
        });
        let mut parts: Vec<Part> = core
            .written
            .noted_of(&seal.state)
            .into_iter()
            .filter_map(|keyspace| Some(Part::new(keyspace, Some(keyspace.sealed.clone()?))))
            .collect();
        self.seals = core.schedule.seals();
        self.aside.arrange(&mut parts, core.env.now_ns(), asked);
        if self.slicing && !self.tried_room && !short && !core.store.space_is_short() {
            // The whole memtable is merged, including the slices that are already in the tree. That
            // costs less than the slices that are left.
            self.slicing = false;
            self.tried_room = true;
        }
        self.compacting = false;
        self.draining = false;
        self.is_whole = false;
        let drains = self.slicing && core.store.space_is_short();
        if drains && let Some(keyspace) = self.drain.next(&seal.state) {
            self.draining = true;
            parts = vec![Part::new(keyspace, None)];
        } else if self.slicing {
            // One memtable at a time, the smallest first: it frees the most memory for the space
            // that it takes. A memtable that may find no room, or that could not be merged before,
            // must not hold up others.
            let bytes = |sealed: &SealedMemtable| sealed.records.memtable.live_bytes();
            let bytes = |p: &Part| p.sealed.as_ref().map_or(0, bytes);
            parts.sort_by_key(|p| (self.aside.has(p), p.is_whole(), bytes(p)));
            // Trees that were let go come first: freeing their pages makes room, and costs two
            // pages of the catalog.
            parts.truncate(usize::from(!core.schedule.has_trees_to_give_up()));
        } else if parts.is_empty()
            && !short
            && may_compact
            && let Some(stretches) = core.compactions.asked()
        {
            match seal.state.keyspaces.get(stretches.keyspace) {
                Some(keyspace) => {
                    self.compacting = true;
                    parts.push(Part::new(keyspace, None));
                }
                None => core.compactions.went_on(None),
            }
        }
        self.aside.tried(&parts);
        self.tell_aside(&seal.state);
        Checkpoint {
            began_ns: core.env.now_ns(),
            frozen: seal.state,
            next_id: install.next_id,
            seal: seal.lsn,
            publish_to: seal.publish_to,
            through: seal.lsn,
            parts,
            at: 0,
            changes: Changes::default(),
            unread: Vec::new(),
            spilled: Vec::new(),
            failed: None,
            trees_let_go,
            shortens_log: long,
            sliced: self.slicing,
            takes: core.plan_now().caches_merged_records,
        }
    }

    /// Waits until every record below the seal is in its memtable.
    fn settle(&mut self, mut checkpoint: Box<Checkpoint>) -> Result<Step> {
        let log = self.core.log()?;
        if self.core.visible() >= checkpoint.publish_to {
            // The clear or drop that removed the memtable of a late write was appended, and was in
            // the state, before that write was published.
            let floor = self.core.state.load().floor;
            if floor > checkpoint.seal && !mutant::active("late-write-left-out-of-log") {
                checkpoint.through = log.tail();
            }
            return self.next_part(checkpoint);
        }
        let seal = terrapin_wal::Boundary {
            lsn: checkpoint.seal,
            publish_to: checkpoint.publish_to,
        };
        let condition = log.boundary_condition(&seal);
        self.phase = Phase::Settle(checkpoint);
        Ok(Step::Pending(condition))
    }

    fn next_part(&mut self, mut checkpoint: Box<Checkpoint>) -> Result<Step> {
        while let Some(part) = checkpoint.parts.get_mut(checkpoint.at) {
            let Some(sealed) = &part.sealed else {
                return self.compact(checkpoint);
            };
            let memtable = &sealed.records;
            if memtable.memtable.is_empty() {
                part.merged = Some(part.keyspace.version.clone());
                checkpoint.at += 1;
                continue;
            }
            let from = self
                .slices
                .iter()
                .find(|(id, seal, _)| *id == part.keyspace.id && *seal == sealed.seal);
            self.is_whole = checkpoint.sliced && part.is_whole();
            let slice = (checkpoint.sliced && !self.is_whole).then(|| self.portion.bytes());
            let from = from.map(|(_, _, key)| key.clone());
            let mut preparation =
                MemtableInput::prepare(memtable.memtable.clone(), memtable.start, sealed.seal);
            preparation = preparation.asking(&part.keyspace);
            if let Some(bytes) = slice {
                preparation = preparation.slice(from, bytes);
            }
            // Every later reader finds the keys in this memtable. Cached records of these keys are
            // older.
            let take = checkpoint.takes;
            if self.core.records.begin_sweep() || take {
                // If the keyspace was cleared meanwhile, no reader looks for them.
                let state = self.core.state.load();
                let current = state.keyspaces.get(part.keyspace.id);
                let is_there = current.is_some_and(|k| k.collection == part.keyspace.collection);
                preparation =
                    preparation.sweep(&self.core, part.keyspace.collection, take && is_there);
            }
            self.phase = Phase::Prepare(checkpoint, Box::new(preparation));
            return Ok(Step::Again);
        }
        self.phase = match Spilling::of(&self.core, &checkpoint) {
            Some(spilling) => Phase::Spill(checkpoint, Box::new(spilling)),
            None => Phase::Catalog(checkpoint),
        };
        Ok(Step::Again)
    }

    /// Writes the runs that views need of the merged memtables.
    fn spill(
        &mut self,
        mut checkpoint: Box<Checkpoint>,
        mut spilling: Box<Spilling>,
    ) -> Result<Step> {
        self.phase = match spilling.step(&self.core, &mut checkpoint) {
            true => Phase::Catalog(checkpoint),
            false => Phase::Spill(checkpoint, spilling),
        };
        Ok(Step::Again)
    }

    /// Begins to compact a stretch of the tree of the checkpoint's only part.
    fn compact(&mut self, checkpoint: Box<Checkpoint>) -> Result<Step> {
        let core = &self.core;
        if self.draining {
            return self.drain(checkpoint);
        }
        let stretches = core.compactions.asked();
        let begun = match (&stretches, checkpoint.parts.get(checkpoint.at)) {
            (Some(Stretches { span, .. }), Some(part)) => guarded(|| {
                core.structure.begin_compaction(
                    &part.keyspace.version,
                    (&span.0, span.1.as_deref()),
                    STRETCH_GROUPS * core.settings.merge.group_bytes,
                    &core.settings.merge,
                )
            })?,
            _ => None,
        };
        if begun.is_none() {
            core.compactions.went_on(None);
        }
        let schedule = &core.schedule;
        let is_wanted = checkpoint.shortens_log
            || schedule.has_trees_to_give_up()
            || schedule.asked_through() > schedule.durable_through();
        Ok(self.merge_stretch(checkpoint, begun, is_wanted))
    }

    /// Merges the stretch that was begun, of the checkpoint's only part. Without a stretch, there
    /// is nothing new to commit, unless another request needs a commit.
    fn merge_stretch(
        &mut self,
        mut checkpoint: Box<Checkpoint>,
        begun: Option<Compaction>,
        is_wanted: bool,
    ) -> Step {
        let at = checkpoint.at;
        self.phase = match begun.zip(checkpoint.parts.get_mut(at)) {
            Some((stretch, part)) => {
                part.next_stretch = stretch.next;
                let now_ns = self.core.env.now_ns();
                let running = RunningMerge::new(stretch.merge, None, now_ns);
                self.core.schedule.offer(Some(running.clone()));
                Phase::Merge(checkpoint, running)
            }
            None => {
                checkpoint.parts.clear();
                match is_wanted {
                    true => Phase::Catalog(checkpoint),
                    false => Phase::Idle,
                }
            }
        };
        Step::Again
    }

    /// Begins to empty a stretch of the tree of the checkpoint's only part into its leaves.
    fn drain(&mut self, checkpoint: Box<Checkpoint>) -> Result<Step> {
        let core = &self.core;
        let Some(part) = checkpoint.parts.get(checkpoint.at) else {
            return Err(Error::internal("a checkpoint without a tree to empty"));
        };
        let options = MergeOptions {
            space_is_short: checkpoint.sliced,
            ..core.settings.merge.clone()
        };
        let (from, bytes) = self.drain.stretch();
        let version = &part.keyspace.version;
        let begun = guarded(|| {
            core.structure
                .begin_compaction(version, (from, None), bytes, &options)
        })?;
        if begun.is_none() {
            self.drain.went_on(None);
        }
        // Without new room, a commit still shortens the log if that was asked for, and frees the
        // pages of trees that were let go.
        let is_wanted = checkpoint.shortens_log || self.core.schedule.has_trees_to_give_up();
        Ok(self.merge_stretch(checkpoint, begun, is_wanted))
    }

    fn prepare(
        &mut self,
        mut checkpoint: Box<Checkpoint>,
        mut preparation: Box<Preparation>,
    ) -> Result<Step> {
        let prepared = match guarded(|| Ok(preparation.step())) {
            Ok(prepared) => prepared,
            Err(error) => return self.part_failed(checkpoint, error),
        };
        // New cached records take memory from the block cache.
        self.core.store.shrink_fully();
        let Some(input) = prepared else {
            self.phase = Phase::Prepare(checkpoint, preparation);
            return Ok(Step::Again);
        };
        let core = &self.core;
        let at = checkpoint.at;
        let part = &mut checkpoint.parts[at];
        part.rest_from = input.slice_end().map(Into::into);
        part.added = input.added();
        let options = MergeOptions {
            space_is_short: checkpoint.sliced,
            ..core.settings.merge.clone()
        };
        let version = &part.keyspace.version;
        match guarded(|| core.structure.begin_merge(version, input, &options)) {
            Ok(merge) => {
                let running =
                    RunningMerge::new(merge, Some(part.keyspace.shared.clone()), core.env.now_ns());
                core.schedule.offer(Some(running.clone()));
                self.phase = Phase::Merge(checkpoint, running);
                Ok(Step::Again)
            }
            Err(error) => self.part_failed(checkpoint, error),
        }
    }

    fn merge(
        &mut self,
        mut checkpoint: Box<Checkpoint>,
        running: Arc<RunningMerge>,
    ) -> Result<Step> {
        let core = self.core.clone();
        if !running.is_over() {
            let step = running.step(&core.env, core.schedule.work());
            self.phase = Phase::Merge(checkpoint, running);
            return Ok(match step {
                Step::Done => Step::Again,
                step => step,
            });
        }
        if !running.is_left() {
            let condition = {
                let (running, work) = (running.clone(), core.schedule.work().clone());
                Condition::new(&work, move || running.is_left())
            };
            self.phase = Phase::Merge(checkpoint, running);
            return Ok(Step::Pending(condition));
        }
        core.schedule.offer(None);
        let finished = match running.failure() {
            Some(error) => Err(error),
            None => guarded(|| running.merge().finish()),
        };
        match finished {
            Ok(merged) => {
                let at = checkpoint.at;
                let part = &mut checkpoint.parts[at];
                if part.sealed.is_some() {
                    let forecast = &part.keyspace.shared.forecast;
                    forecast.merged(core.env.now_ns());
                }
                part.merged = Some(merged.version);
                checkpoint.changes.merge(merged.changes);
                checkpoint.at += 1;
                self.next_part(checkpoint)
            }
            Err(error) => {
                running.merge().abandon();
                self.part_failed(checkpoint, error)
            }
        }
    }

    fn catalog(&mut self, mut checkpoint: Box<Checkpoint>) -> Result<Step> {
        let core = self.core.clone();
        let mut changes = std::mem::take(&mut checkpoint.changes);
        let mut unread = Vec::new();
        let parts = checkpoint.parts_by_id();
        // The checkpoint has settled, so every keyspace with a record below the seal is listed as
        // written.
        let mut changed = self.changed.clone();
        changed.extend(core.written.ids());
        changed.extend(parts.iter().map(|part| part.keyspace.id));
        let following = Following {
            frozen: &checkpoint.frozen,
            next_id: checkpoint.next_id,
            changed: &changed,
            applied: checkpoint.applied(self.catalog.applied),
            outcome: &|id| checkpoint.outcome(&self.catalog, id, &parts),
            class: checkpoint.class(),
        };
        let followed = self
            .catalog
            .follow(&core.store, &following, &mut changes, &mut unread);
        let next = match followed {
            Ok(next) => next,
            Err(error) => {
                core.store.abandon(changes);
                return Err(error);
            }
        };
        (checkpoint.changes, checkpoint.unread) = (changes, unread);
        let mut superblock = self.superblock;
        superblock.generation.0 += 1;
        superblock.catalog = next.root;
        superblock.incarnation = core.log()?.incarnation();
        superblock.log_branch = superblock.branch;
        let commit = Commit::new(superblock, checkpoint.through);
        self.phase = Phase::Commit(Box::new(Committing {
            checkpoint,
            next,
            superblock,
            commit,
        }));
        Ok(Step::Again)
    }

    fn commit(&mut self, mut committing: Box<Committing>) -> Result<Step> {
        let core = self.core.clone();
        match committing.commit.step(&core) {
            Ok(Progress::Again) => {
                self.phase = Phase::Commit(committing);
                Ok(Step::Again)
            }
            Ok(Progress::Pending(condition)) => {
                self.phase = Phase::Commit(committing);
                Ok(Step::Pending(condition))
            }
            Ok(Progress::Durable) => {
                let failed = committing.checkpoint.failed.take();
                self.install(*committing);
                if let Some(error) = failed {
                    return Ok(self.left_out(error));
                }
                self.phase = match self.aside.is_empty() {
                    true => Phase::Idle,
                    false => Phase::Rest(self.aside.rest(self.seals)),
                };
                Ok(Step::Again)
            }
            Err(error) => {
                if !committing.commit.may_be_durable() {
                    core.store
                        .abandon(std::mem::take(&mut committing.checkpoint.changes));
                }
                Err(error)
            }
        }
    }

    /// The database is being closed or left. Pages that were not committed are not part of it.
    fn give_up(&mut self) {
        self.core.schedule.offer(None);
        self.phase = Phase::Idle;
    }
}

impl Job for Coordinator {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn on_thread(&mut self) {
        terrapin_disk::let_wakers_in();
    }

    fn step(&mut self) -> Step {
        if self.core.schedule.is_stopping() {
            self.give_up();
            return Step::Done;
        }
        let stepped = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => return self.idle(),
            Phase::Rest(rest) => return self.rest(rest),
            Phase::Settle(checkpoint) => self.settle(checkpoint),
            Phase::Prepare(checkpoint, preparation) => self.prepare(checkpoint, preparation),
            Phase::Merge(checkpoint, running) => self.merge(checkpoint, running),
            Phase::Spill(checkpoint, spilling) => self.spill(checkpoint, spilling),
            Phase::Catalog(checkpoint) => self.catalog(checkpoint),
            Phase::Commit(committing) => self.commit(committing),
        };
        stepped.unwrap_or_else(|error| self.failed(error))
    }

    fn panicked(&mut self, error: Error) {
        if let Some(log) = &self.core.log {
            log.poison(error.clone());
        }
        self.core.health.job_died(&error);
        self.core.schedule.failed(&error);
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;
    use terrapin_base::sync::{AtomicU64, Ordering};
    use terrapin_disk::SimDisk;
    use terrapin_disk::sim::{Fault, FaultError, Op};
    use terrapin_pages::{DATA_FILE, PAGES_START};

    use super::*;
    use crate::{Durability, Options};

    /// The log ends before the jobs. A checkpoint that met the ended log used to report to every
    /// listener that the log was closed.
    #[test]
    fn leaving_a_database_during_a_checkpoint_reports_no_failure() {
        let mut ended = 0;
        for steps in 0..200 {
            let (database, sim) = Options::small().open_simulated();
            sim.set_breathing(false);
            sim.settle();
            database.default_keyspace().put("a", "1").unwrap();
            let told = Arc::new(AtomicU64::new(0));
            let counts = told.clone();
            database.on_background_error(move |_| {
                counts.fetch_add(1, Ordering::Relaxed);
            });
            let core = database.core();
            let log = core.log().unwrap();
            core.schedule.ask(log.end());
            for _ in 0..steps {
                sim.step();
            }
            // The end of the last handle does this first.
            drop(core.health.close());
            log.stop();
            sim.settle();
            ended += core.counters.checkpoints.get();
            let told = told.load(Ordering::Relaxed);
            assert_eq!(told, 0, "after {steps} steps");
            drop(database);
        }
        assert!((1..200).contains(&ended), "{ended} checkpoints committed");
    }

    /// A close ended with the error of an older checkpoint. Writes that are in no log were lost,
    /// although the next checkpoint would have written them.
    #[test]
    fn a_checkpoint_that_began_earlier_does_not_fail_a_later_request() {
        let mut under_way = 0;
        for steps in 0..80 {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let database = Options::small().open_on(env, disk.handle()).unwrap();
            sim.set_breathing(false);
            sim.settle();
            let keyspace = database.default_keyspace();
            keyspace.put_with("a", "1", Durability::None).unwrap();
            let core = database.core();
            disk.inject(Fault::nth(1, FaultError::Io).on(Op::Write).of(DATA_FILE));
            core.schedule.ask(core.log().unwrap().end());
            for _ in 0..steps {
                sim.step();
            }
            let is_under_way = core.schedule.sealed_count() > 0 && core.schedule.failures() == 0;
            let closed = database.close();
            if is_under_way {
                closed.unwrap_or_else(|e| panic!("after {steps} steps: {e}"));
                under_way += 1;
            }
        }
        assert!((2..80).contains(&under_way), "{under_way}");
    }

    /// A checkpoint call got this error, although nothing of that keyspace was left to merge.
    #[test]
    fn a_failed_merge_of_a_cleared_memtable_is_no_failure() {
        let mut failed = 0;
        for steps in 0..80 {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let database = Options::small().open_on(env, disk.handle()).unwrap();
            let bad = database.keyspace("bad").unwrap();
            for number in 0..20u8 {
                bad.put([number], [1; 60]).unwrap();
            }
            database.checkpoint().unwrap();
            sim.settle();
            let core = database.core();
            core.store.empty_caches();
            let end = disk.content(DATA_FILE).unwrap().len() as u64;
            for offset in (PAGES_START..end).step_by(512) {
                disk.corrupt(DATA_FILE, offset + 100, 0x41);
            }
            sim.set_breathing(false);
            bad.put("new", "1").unwrap();
            core.schedule.ask(core.log().unwrap().end());
            for _ in 0..steps {
                sim.step();
            }
            failed += core.schedule.failures();
            bad.clear().unwrap();
            let checkpointed = database.checkpoint();
            checkpointed.unwrap_or_else(|e| panic!("after {steps} steps: {e}"));
            assert_eq!(bad.get("new").unwrap(), None);
            database.close().unwrap();
        }
        assert!((1..80).contains(&failed), "{failed} failed before");
    }
}
