//! The beginning of a checkpoint: whether there is work, which memtables are sealed, and which
//! parts the checkpoint merges.

use terrapin_base::{KeyspaceId, Lsn, mutant};
use terrapin_pages::Changes;

use super::Coordinator;
use crate::checkpoint::gather::Gathering;
use crate::checkpoint::outcome::{Checkpoint, Part};
use crate::disk_space::room;
use crate::engine::core::Core;
use crate::engine::state::{SealedMemtable, State};

impl Coordinator {
    /// Whether a checkpoint has work. `gathers`: whether deletes still gather.
    pub(super) fn has_work(core: &Core, gathers: bool) -> bool {
        let schedule = &core.schedule;
        schedule.sealed_count() > 0
            || schedule.asked_through() > schedule.durable_through()
            || schedule.log_is_long()
            || Self::replay_is_long(core)
            || schedule.has_trees_to_give_up()
            || core.ingests.is_any_ready()
            || (!schedule.disk_is_full() && core.compactions.is_any_asked())
            || (Self::merges_deletes(core, gathers) && Gathering::has_some(core))
    }

    /// Whether the next open would replay more than half of what it may, and no checkpoint has
    /// tried to shorten that.
    fn replay_is_long(core: &Core) -> bool {
        let durable = core.schedule.durable_through();
        let is_due = core.replay_bound.is_due(core.replay_bytes(), durable);
        is_due && !core.schedule.disk_is_full() && !mutant::active("recovery-target-asks-nobody")
    }

    /// Whether the disk is full and it is time to merge deletes, which may make room.
    pub(super) fn merges_deletes(core: &Core, gathers: bool) -> bool {
        core.schedule.disk_is_full() && !(gathers && Gathering::log_has_room(core))
    }

    /// Whether a compaction was asked for and finds room for its next stretch. Gives up a
    /// compaction that finds no room.
    pub(super) fn may_compact(&self) -> bool {
        let core = &self.core;
        if !core.compactions.is_any_asked() {
            return false;
        }
        let has_room = room::has_room_for_stretch(core);
        if !has_room {
            tracing::info!(
                "the disk is nearly full: a compaction for ranges is given up, and its tree stays as it is"
            );
            core.compactions.went_on(None);
        }
        has_room
    }

    /// Seals the memtables that are asked for or that keep the log long, and freezes the state.
    pub(super) fn freeze(&mut self, may_compact: bool, gathers: bool) -> Checkpoint {
        let core = self.core.clone();
        let replay_is_long = Self::replay_is_long(&core);
        let long = core.schedule.log_is_long() || replay_is_long;
        let short = core.schedule.disk_is_full();
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
        let (parts, changes) = match self.begin_graft(&seal.state) {
            Some((part, changes)) => {
                self.compacting = false;
                self.draining = false;
                self.is_whole = false;
                (vec![part], changes)
            }
            None => {
                let parts = self.choose_parts(&seal.state, short, may_compact);
                self.aside.tried(&parts);
                (parts, Changes::default())
            }
        };
        // A checkpoint that merges a memtable may leave one that got its first record meanwhile.
        // Then the next one goes on.
        if replay_is_long && parts.iter().all(|part| part.sealed.is_none()) {
            core.replay_bound.tried(core.schedule.durable_through());
        }
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
            changes,
            orphans: core.orphans.now(),
            unread: Vec::new(),
            spilled: Vec::new(),
            failed: None,
            trees_let_go,
            shortens_log: long,
            sliced: self.slicing && self.graft.is_none(),
            takes: core.plan_now().caches_merged_records,
            adds_only: false,
        }
    }
    /// Chooses the parts that the checkpoint merges: every sealed memtable; or, when merges find no
    /// space, one memtable or a tree to empty; or, without a sealed memtable, a tree to compact.
    /// `short`: whether the disk is full. `may_compact`: whether a compaction has room.
    fn choose_parts(&mut self, state: &State, short: bool, may_compact: bool) -> Vec<Part> {
        let core = self.core.clone();
        self.slices.retain(|(id, seal_at, _)| {
            let sealed = state.keyspaces.get(*id).and_then(|k| k.sealed.as_ref());
            sealed.is_some_and(|s| s.seal == *seal_at)
        });
        let mut parts: Vec<Part> = core
            .written
            .noted_of(state)
            .into_iter()
            .filter_map(|keyspace| Some(Part::new(keyspace, Some(keyspace.sealed.clone()?))))
            .collect();
        self.seals = core.schedule.seals();
        self.aside
            .arrange(&mut parts, core.env.now_ns(), self.asked);
        let all = parts.len();
        parts.retain(|part| may_merge(&core, part.keyspace.id));
        self.held = all - parts.len();
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
        if drains
            && let Some(keyspace) = self.drain.next(state)
            && may_merge(&core, keyspace.id)
        {
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
            match state.keyspaces.get(stretches.keyspace) {
                Some(keyspace) if may_merge(&core, keyspace.id) => {
                    self.compacting = true;
                    parts.push(Part::new(keyspace, None));
                }
                _ => core.compactions.went_on(None),
            }
        }
        parts
    }
}

/// Whether no ingest holds a keyspace. Its tree then counts as changing.
fn may_merge(core: &Core, id: KeyspaceId) -> bool {
    core.ingests.may_merge(id) || mutant::active("checkpoint-merges-beneath-ingest")
}
