//! The failure of a checkpoint or of one part: which callers get the error, what the coordinator
//! tries instead, and how long it rests.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, KeyspaceId, Lsn, Result, Step};

use super::{Coordinator, Phase, REST_NS_MAX, SPACE_POLL_NS};
use crate::checkpoint::outcome::Checkpoint;
use crate::checkpoint::rest::Rest;
use crate::disk_space::room;
use crate::engine::core::Core;
use crate::engine::ingests::Grafted;
use crate::engine::state::{KeyspaceState, State};

impl Coordinator {
    /// Tells the schedule which memtables free no memory.
    pub(super) fn tell_aside(&self, state: &State) {
        let mut keyspaces: BTreeSet<KeyspaceId> = self.aside.keyspaces().collect();
        let is_sealed =
            |id: &KeyspaceId| state.keyspaces.get(*id).is_some_and(|k| k.sealed.is_some());
        // The memtables of a keyspace that an ingest holds wait for the ingest.
        keyspaces.extend(self.core.ingests.held().into_iter().filter(is_sealed));
        let count = keyspaces.len();
        let held = |keyspace: &Arc<KeyspaceState>| {
            let sealed = keyspace.sealed.as_ref();
            let sealed = sealed.map_or(0, |s| s.records.memtable.arena_bytes());
            keyspace.active.memtable.arena_bytes() + sealed
        };
        let states = keyspaces
            .into_iter()
            .filter_map(|id| state.keyspaces.get(id));
        self.core.schedule.set_aside(count, states.map(held).sum());
    }

    /// Handles a part that could not be merged and whose pages were freed. A fault of its tree
    /// alone must not keep other memtables from being merged.
    pub(super) fn part_failed(
        &mut self,
        mut checkpoint: Box<Checkpoint>,
        error: Error,
    ) -> Result<Step> {
        let is_of_all = matches!(
            error.kind(),
            ErrorKind::NoSpace | ErrorKind::Closed | ErrorKind::Poisoned
        );
        let failed = checkpoint.parts.get(checkpoint.at).and_then(|part| {
            let seal = part.sealed.as_ref()?.seal;
            Some((part.keyspace.clone(), seal))
        });
        let Some((keyspace, seal)) = failed.filter(|_| !is_of_all) else {
            self.core
                .store
                .abandon(std::mem::take(&mut checkpoint.changes));
            return Err(error);
        };
        if !self.has_still(&keyspace, seal) {
            // A clear or a drop removed the memtable meanwhile. No caller waits for it, and there
            // is no retry.
            let error = error.with("keyspace", &keyspace.shared.name);
            match error.kind() {
                ErrorKind::Internal => self.core.health.report(&error),
                _ => {
                    tracing::warn!(%error, "the merge of a keyspace failed that was cleared or dropped meanwhile")
                }
            }
            checkpoint.parts.remove(checkpoint.at);
            return self.next_part(checkpoint);
        }
        let error = error.with("keyspace", &keyspace.shared.name);
        let goes_around = error.is_of_data()
            && keyspace.structure.merges_around_damage()
            && !checkpoint.sliced
            && !checkpoint.adds_only;
        if goes_around {
            if self.damage.note(keyspace.id, &error) {
                let advice =
                    "restore the damaged data from a backup; the engine goes on without it";
                self.core
                    .health
                    .report(&error.clone().with("advice", advice));
            }
            // The same part again.
            checkpoint.adds_only = true;
            return self.next_part(checkpoint);
        }
        checkpoint.adds_only = false;
        self.aside.add(keyspace.id, seal);
        self.tell_aside(&self.core.state.load());
        checkpoint.parts.remove(checkpoint.at);
        if checkpoint.parts.is_empty() {
            self.core
                .store
                .abandon(std::mem::take(&mut checkpoint.changes));
            return Ok(self.left_out(error));
        }
        checkpoint.failed.get_or_insert(error);
        self.next_part(checkpoint)
    }

    /// Whether a keyspace still has the memtable with this seal, over the tree that it had.
    fn has_still(&self, keyspace: &KeyspaceState, seal: Lsn) -> bool {
        let state = self.core.state.load();
        state.keyspaces.get(keyspace.id).is_some_and(|now| {
            let sealed = now.sealed.as_ref();
            Arc::ptr_eq(&now.version, &keyspace.version) && sealed.is_some_and(|s| s.seal == seal)
        })
    }

    /// Handles a checkpoint that failed and whose pages were freed.
    pub(super) fn failed(&mut self, error: Error) -> Step {
        let core = self.core.clone();
        core.schedule.offer(None);
        // A database that is left ends its log before its jobs. The last checkpoint of a close
        // still finds the log.
        let is_left = error.kind() == ErrorKind::Closed && !core.health.is_open();
        if is_left || core.schedule.is_stopping() {
            return Step::Done;
        }
        self.forecast_anew();
        let of_log = core.log.as_ref().and_then(|l| l.failed());
        let is_poisoned = of_log.is_some();
        let of_graft = of_log.unwrap_or_else(|| error.clone());
        if self.end_graft(Grafted::Failed(of_graft)) && !is_poisoned {
            // The caller of the ingest has the error. Nothing else waits for this checkpoint.
            self.phase = Phase::Idle;
            return Step::Again;
        }
        if error.kind() == ErrorKind::NoSpace && room::revoke_readers(&core) {
            tracing::warn!(%error, "readers in other processes are revoked, and the checkpoint is tried again");
            self.draining = false;
            self.compacting = false;
            self.phase = Phase::Idle;
            return Step::Again;
        }
        if std::mem::take(&mut self.draining) && !is_poisoned {
            core.schedule.tried_tight_checkpoint();
            match error.kind() {
                ErrorKind::NoSpace => self.drain.found_no_room(room::room_bytes(&core)),
                _ => {
                    self.drain.went_on(None);
                    let error = error.with("while", "emptying buffers on a full disk");
                    core.health.report(&error);
                }
            }
            self.phase = Phase::Idle;
            return Step::Again;
        }
        if std::mem::take(&mut self.compacting) {
            core.compactions.went_on(None);
            if !is_poisoned {
                // No caller waits for a compaction. Callers wait for the next checkpoint.
                match error.kind() {
                    ErrorKind::NoSpace => {
                        tracing::warn!(%error, "no space to compact a tree or to collect values; the tree stays as it is");
                    }
                    _ => core
                        .health
                        .report(&error.with("while", "compacting a tree or collecting values")),
                }
                self.phase = Phase::Idle;
                return Step::Again;
            }
        }
        if error.kind() == ErrorKind::NoSpace {
            room::run_short(&core, &error);
            if !self.slicing {
                tracing::warn!(%error, "merging from the reserve");
                self.slicing = true;
                self.phase = Phase::Idle;
                return Step::Again;
            }
            core.schedule.tried_tight_checkpoint();
            if self.is_whole {
                // Merging through buffers may take less room.
                self.slicing = false;
            } else if self.portion.found_no_room() {
                self.phase = Phase::Idle;
                return Step::Again;
            }
        }
        self.phase = Phase::Rest(self.tell_and_rest(&error));
        Step::Again
    }

    /// Handles a checkpoint that left out some parts and committed the others.
    pub(super) fn left_out(&mut self, error: Error) -> Step {
        if self.core.schedule.is_stopping() {
            return Step::Done;
        }
        self.forecast_anew();
        let rest = self.tell_and_rest(&error);
        self.phase = Phase::Rest(self.aside.after(rest, self.seals, self.held));
        Step::Again
    }

    fn tell_and_rest(&mut self, error: &Error) -> Rest {
        let core = &self.core;
        core.health.report(error);
        core.counters.checkpoints_failed.add(1);
        core.schedule.checkpoint_failed(error, self.asked);
        let until_ns = core.env.now_ns().saturating_add(self.rest_ns);
        self.rest_ns = (self.rest_ns * 2).min(REST_NS_MAX);
        Rest {
            until_ns,
            asked: self.asked,
            aside: None,
        }
    }

    /// Restarts the forecasts: sealed memtables wait for another checkpoint from its beginning.
    fn forecast_anew(&self) {
        let now_ns = self.core.env.now_ns();
        let state = self.core.state.load();
        for keyspace in (self.core.written.noted_of(&state).iter()).filter(|k| k.sealed.is_some()) {
            keyspace.shared.forecast.sealed(now_ns);
        }
    }

    pub(super) fn rest(&mut self, rest: Rest) -> Step {
        let core = self.core.clone();
        self.merges_ended();
        let schedule = core.schedule.clone();
        if core.log.as_ref().is_some_and(|l| l.failed().is_some()) {
            // The database is poisoned: it writes nothing durable any more.
            self.phase = Phase::Rest(rest);
            return Step::Pending(Condition::new(core.schedule.work(), move || {
                schedule.is_stopping()
            }));
        }
        // Only the memtables that were left out rest.
        let others_go_on = rest.aside.is_some();
        let now_ns = core.env.now_ns();
        let mut until_ns = rest.until_ns;
        if others_go_on && schedule.disk_is_full() {
            room::see_whether_room_is_back(&core);
            until_ns = until_ns.min(now_ns + SPACE_POLL_NS);
        }
        let work = core.schedule.work().clone();
        // Checkpoints of slices compact no tree.
        let compacts = !self.slicing;
        let gathers = self.gathering.go_on(&core);
        let is_over = move || {
            rest.is_broken(&schedule)
                || (others_go_on && Self::have_others_work(&core, compacts, gathers))
        };
        if now_ns >= rest.until_ns || is_over() {
            self.phase = Phase::Idle;
            return Step::Again;
        }
        self.phase = Phase::Rest(rest);
        let schedule = self.core.schedule.clone();
        let condition = Condition::new(&work, move || schedule.is_stopping() || is_over());
        Step::Pending(condition.until(until_ns))
    }

    /// Whether there is work although all sealed memtables rest after failed merges: pages of trees
    /// to free, deletes whose merge may make room on a full disk, or a compaction.
    fn have_others_work(core: &Core, compacts: bool, gathers: bool) -> bool {
        if core.schedule.has_trees_to_give_up() || core.schedule.is_seal_asked() {
            return true;
        }
        match core.schedule.disk_is_full() {
            true => {
                let has_deletes = || {
                    let state = core.state.load();
                    let noted = core.written.noted_of(&state);
                    noted
                        .iter()
                        .any(|k| k.sealed.is_none() && !k.active.memtable.is_empty())
                };
                Self::merges_deletes(core, gathers) && has_deletes()
            }
            false => compacts && core.compactions.is_any_asked(),
        }
    }
}
