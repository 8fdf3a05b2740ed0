//! The merges of a checkpoint, one part at a time: a sealed memtable or a slice of one, a stretch
//! that is compacted for ranges, or a stretch that is emptied on a full disk.

use std::sync::Arc;

use terrapin_base::{Condition, Error, Result, Step};
use terrapin_structure::{Around, Compaction, MergeOptions};

use super::{Coordinator, Phase};
use crate::checkpoint::input::{MemtableInput, Preparation};
use crate::checkpoint::outcome::Checkpoint;
use crate::checkpoint::spill::Spilling;
use crate::engine::compactions::{STRETCH_GROUPS, Stretches, Work};
use crate::engine::running_merge::{RunningMerge, guarded};
use crate::engine::state::KeyspaceState;

/// A merge gives up what a range delete hides if that is at least this part (1/n) of L. For less,
/// deletes of single keys write less than the nodes that it would rewrite (decision 0042).
const GIVEN_UP_PART: u64 = 2;

/// Plans a compaction of a keyspace's tree, if its structure compacts.
fn begin_compaction(
    keyspace: &KeyspaceState,
    keys: (&[u8], Option<&[u8]>),
    bytes_max: u64,
    options: &MergeOptions,
) -> Result<Option<Compaction>> {
    let Some(compacts) = keyspace.structure.compacts() else {
        return Ok(None);
    };
    guarded(|| compacts.begin_compaction(&keyspace.version, keys, bytes_max, options))
}

/// Plans the collecting of a keyspace's dead values, if some are due.
fn begin_collecting(
    keyspace: &KeyspaceState,
    bytes_max: u64,
    options: &MergeOptions,
) -> Result<Option<Compaction>> {
    let Some(collects) = keyspace.structure.collects() else {
        return Ok(None);
    };
    let begun = guarded(|| collects.begin_collecting(&keyspace.version, bytes_max, options))?;
    Ok(begun.map(|merge| Compaction { merge, next: None }))
}

/// Plans to bring a stretch of a keyspace's values back into the order of keys.
fn begin_ordering(
    keyspace: &KeyspaceState,
    keys: (&[u8], Option<&[u8]>),
    bytes_max: u64,
    options: &MergeOptions,
) -> Result<Option<Compaction>> {
    let Some(collects) = keyspace.structure.collects() else {
        return Ok(None);
    };
    guarded(|| collects.begin_ordering(&keyspace.version, keys, bytes_max, options))
}

impl Coordinator {
    /// Begins the next part. After the last part, goes on to the runs of views or to the catalog.
    pub(super) fn next_part(&mut self, mut checkpoint: Box<Checkpoint>) -> Result<Step> {
        while let Some(part) = checkpoint.parts.get_mut(checkpoint.at) {
            let Some(sealed) = &part.sealed else {
                if part.merged.is_some() {
                    // A graft.
                    checkpoint.at += 1;
                    continue;
                }
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
            let mut preparation = MemtableInput::prepare(
                memtable.memtable.clone(),
                (memtable.start, sealed.seal),
                &part.keyspace.operator,
            )
            .into_tree(&part.keyspace.version)
            .with_handles(memtable.large.is_any())
            .asking(&part.keyspace);
            preparation = match slice {
                // A slice frees little at a time, so it writes little (D10).
                Some(bytes) => preparation.slice(from, bytes),
                None => preparation.giving_up(self.core.settings.merge.group_bytes / GIVEN_UP_PART),
            };
            // Every later reader finds the keys in this memtable. Cached records of these keys are
            // older.
            let take = checkpoint.takes;
            let has_cached = self.core.records.begin_sweep();
            let locations = self.core.locations.get();
            locations.inspect(|locations| locations.begin_sweep());
            if has_cached || take || locations.is_some() {
                // If the keyspace was cleared meanwhile, no reader looks for them.
                let state = self.core.state.load();
                let current = state.keyspaces.get(part.keyspace.id);
                let is_there = current.is_some_and(|k| k.collection == part.keyspace.collection);
                preparation = preparation.sweep(&self.core, &part.keyspace, take && is_there);
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

    /// Begins to compact a stretch of the tree of the checkpoint's only part.
    fn compact(&mut self, checkpoint: Box<Checkpoint>) -> Result<Step> {
        let core = &self.core;
        if self.draining {
            return self.drain(checkpoint);
        }
        let stretches = core.compactions.asked();
        let bytes_max = STRETCH_GROUPS * core.settings.merge.group_bytes;
        let begun = match (&stretches, checkpoint.parts.get(checkpoint.at)) {
            (Some(stretches), Some(part)) => {
                let mut options = core.merge_of(&part.keyspace.options, false);
                options.around.pages = self.damage.of(part.keyspace.id);
                let Stretches { span, work, .. } = stretches;
                let keys = (&span.0[..], span.1.as_deref());
                match work {
                    Work::Garbage => begin_collecting(&part.keyspace, bytes_max, &options)?,
                    Work::Order => begin_ordering(&part.keyspace, keys, bytes_max, &options)?,
                    Work::Buffers => begin_compaction(&part.keyspace, keys, bytes_max, &options)?,
                    Work::Expired(permille) => {
                        options.expired_permille = *permille;
                        begin_compaction(&part.keyspace, keys, bytes_max, &options)?
                    }
                }
            }
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
        let options = core.merge_of(&part.keyspace.options, checkpoint.sliced);
        let (from, bytes) = self.drain.stretch();
        let begun = begin_compaction(&part.keyspace, (from, None), bytes, &options)?;
        if begun.is_none() {
            self.drain.went_on(None);
        }
        // Without new room, a commit still shortens the log if that was asked for, and frees the
        // pages of trees that were let go.
        let is_wanted = checkpoint.shortens_log || self.core.schedule.has_trees_to_give_up();
        Ok(self.merge_stretch(checkpoint, begun, is_wanted))
    }

    /// Prepares the input of a memtable's merge by one step, and begins the merge after the last.
    pub(super) fn prepare(
        &mut self,
        mut checkpoint: Box<Checkpoint>,
        mut preparation: Box<Preparation>,
    ) -> Result<Step> {
        let prepared = match guarded(|| preparation.step()) {
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
        let mut options = core.merge_of(&part.keyspace.options, checkpoint.sliced);
        options.around = Around {
            pages: self.damage.of(part.keyspace.id),
            adds_only: checkpoint.adds_only,
        };
        let habits = self.habits.of(&part.keyspace);
        options.runs = options.runs.or(habits.runs);
        // Outlines in memory answer faster than maplets, where they have room.
        options.maplets |= habits.maplets && !core.store.has_room_for_outlines();
        let KeyspaceState {
            structure, version, ..
        } = &*part.keyspace;
        match guarded(|| structure.begin_merge(version, input, &options)) {
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

    /// Takes part in the merge. Once all workers have left it, takes its result.
    pub(super) fn merge(
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
                checkpoint.adds_only = false;
                self.next_part(checkpoint)
            }
            Err(error) => {
                running.merge().abandon();
                self.part_failed(checkpoint, error)
            }
        }
    }
}
