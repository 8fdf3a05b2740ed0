//! The coordinator: the job that runs one checkpoint after another, in steps.
//!
//! ```text
//! idle ─ freeze ─ settle ─┬─ (prepare ─ merge)* ─ spill ─ catalog ─ commit ─ install ─ idle
//!                         └─ on an error: free the pages, rest, freeze again
//! ```
//!
//! The beginning of a checkpoint is in [`freeze`], and its merges are in [`merging`]. The end of a
//! checkpoint is in [`install`], and the end of a failed one in [`failure`]. The trees of sorted
//! ingests become visible by checkpoints of their own ([`graft`]).
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

mod collecting;
mod failure;
mod freeze;
pub(crate) mod graft;
mod install;
mod merging;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, KeyspaceId, Lsn, Result, Step, mutant};
use terrapin_pages::Superblock;

use super::commit::{Commit, Progress};
use super::damage::Damage;
use super::drain::Drain;
use super::gather::Gathering;
use super::habits::Habits;
use super::input::Preparation;
use super::outcome::Checkpoint;
use super::portion::Portion;
use super::rest::{Aside, Rest};
use super::spill::Spilling;
use crate::disk_space::room;
use crate::engine::core::Core;
use crate::engine::ingests::Grafted;
use crate::engine::running_merge::RunningMerge;
use crate::engine::schedule::Asked;
use crate::keyspaces::catalog::format::Life;
use crate::keyspaces::catalog::{Catalog, Following};
use collecting::Garbage;
use graft::Graft;

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
    /// Memtables that could not be merged, and the number of seals that the current checkpoint saw
    /// (`Schedule::seals`).
    aside: Aside,
    /// Damage that merges stay away from.
    damage: Damage,
    /// What users did to each keyspace until its last merge.
    habits: Habits,
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
    /// The graft of an ingest's tree, if the current checkpoint is one.
    graft: Option<Graft>,
    /// Number of sealed memtables that the current checkpoint leaves to ingests.
    held: usize,
    /// Keyspaces whose dead values take too much space, for times without writes.
    garbage: Garbage,
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
            damage: Damage::default(),
            habits: Habits::default(),
            seals: 0,
            asked: Asked::default(),
            portion: Portion::new(core.settings.merge.group_bytes),
            slices: Vec::new(),
            drain: Drain::new(core.settings.merge.group_bytes),
            draining: false,
            gathering: Gathering::default(),
            graft: None,
            held: 0,
            garbage: Garbage::found(core),
        })
    }

    /// Begins a checkpoint if there is work.
    fn idle(&mut self) -> Step {
        let core = self.core.clone();
        self.merges_ended();
        // Other programs may free disk space, without notice to the engine.
        room::see_whether_room_is_back(&core);
        if core.schedule.take_up_seal() {
            core.seal_asked();
        }
        let gathers = self.gathering.go_on(&core);
        if !Self::has_work(&core, gathers) {
            self.garbage.ask(&core);
        }
        let may_compact = self.may_compact();
        if Self::has_work(&core, gathers) {
            self.phase = Phase::Settle(Box::new(self.freeze(may_compact, gathers)));
            return Step::Again;
        }
        let is_short = core.schedule.disk_is_full();
        let look_ns = is_short.then(|| core.env.now_ns() + SPACE_POLL_NS);
        let look_ns = [look_ns, self.garbage.due_ns()].into_iter().flatten().min();
        let condition = Condition::new(self.core.schedule.work(), move || {
            core.schedule.is_stopping()
                || Self::has_work(&core, gathers)
                || core.schedule.is_seal_asked()
                || core.schedule.disk_is_full() != is_short
        });
        Step::Pending(match look_ns {
            Some(until_ns) => condition.until(until_ns),
            None => condition,
        })
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

    /// Writes the catalog that names the new trees.
    fn catalog(&mut self, mut checkpoint: Box<Checkpoint>) -> Result<Step> {
        let core = self.core.clone();
        checkpoint.release_large(&core.store);
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
            through: checkpoint.through,
            life: Life {
                incarnation: core.log()?.incarnation(),
                branch: self.superblock.branch,
            },
            last_now_ms: match mutant::active("catalog-forgets-now") {
                true => 0,
                false => core.clock.now(&core.env),
            },
            reserve_groups: core.reserve_groups(),
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

    /// Takes one step of the commit protocol (D2), and installs the checkpoint after the last.
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
                self.phase = match (self.aside.is_empty(), self.held) {
                    (true, 0) => Phase::Idle,
                    (true, held) => {
                        let until_ns = core.env.now_ns().saturating_add(REST_NS_MAX);
                        Phase::Rest(Rest::of_held(until_ns, self.asked, (held, self.seals)))
                    }
                    (false, held) => Phase::Rest(self.aside.rest(self.seals, held)),
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

    /// Lets ingests take hold of keyspaces again.
    fn merges_ended(&self) {
        if self.core.ingests.merges_ended() {
            self.core.schedule.progress().notify();
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
        self.end_graft(Grafted::Failed(error.clone()));
        self.core.schedule.failed(&error);
    }
}
