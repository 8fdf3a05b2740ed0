//! The end of a durable checkpoint: it installs its trees, frees what they replace, and prepares
//! the next checkpoint.

use std::sync::Arc;

use terrapin_base::{ErrorKind, mutant};
use terrapin_wal::Log;

use super::{Committing, Coordinator, REST_NS_MIN};
use crate::checkpoint::held::hand_over;
use crate::checkpoint::outcome::{Checkpoint, Part};
use crate::disk_space::room;
use crate::engine::compactions::{Stretches, Work};
use crate::engine::core::Core;
use crate::engine::events;
use crate::engine::ingests::Grafted;
use crate::engine::locations::Installed;
use crate::engine::state::{SealedMemtable, State};

impl Coordinator {
    /// Both slots hold the new generation. Installs it and frees what it replaces.
    pub(super) fn install(&mut self, committing: Committing) {
        let core = self.core.clone();
        let Committing {
            checkpoint,
            next,
            superblock,
            ..
        } = committing;
        for part in &checkpoint.parts {
            // If a node cannot be read, the last known size is close enough. A read that needs the
            // node reports the error.
            if let Some(merged) = &part.merged {
                let size = &part.keyspace.shared.tree_size;
                let budget_bytes = core.budget.limit();
                let _ = size.measure_merged(&**merged, part.added, budget_bytes);
            }
        }
        core.orphans.forget(&checkpoint.orphans);
        installing(&core, &checkpoint);
        let mut unsealed = 0;
        let mut is_grafted = false;
        let last = {
            let install = core.install.lock();
            let current = core.state.load_full();
            let mut keyspaces = current.keyspaces.clone();
            for part in &checkpoint.parts {
                let Some(keyspace) = keyspaces.get(part.keyspace.id) else {
                    continue;
                };
                // Neither condition holds if the keyspace was cleared meanwhile.
                let same_tree = Arc::ptr_eq(&keyspace.version, &part.keyspace.version);
                let memtable = |sealed: &SealedMemtable| Arc::as_ptr(&sealed.records);
                let same_memtable = part.sealed.is_none()
                    || keyspace.sealed.as_ref().map(memtable) == part.sealed.as_ref().map(memtable);
                let Some(merged) = part.merged.as_ref().filter(|_| same_tree && same_memtable)
                else {
                    // The tree is empty then, and no other code sets its size. The size was
                    // measured above as if the merge still counted.
                    keyspace.shared.tree_size.cleared();
                    continue;
                };
                let mut changed = (**keyspace).clone();
                changed.version = merged.clone();
                if self.grafts(keyspace.id) {
                    is_grafted = true;
                    // No memtable holds what an ingest changed. Records that were cached before
                    // must not match the new tree, and conditional writes see the change by this.
                    if !mutant::active("ingest-keeps-collection") {
                        changed.collection = core.new_collection();
                    }
                }
                let forecast = &keyspace.shared.forecast;
                match (&part.sealed, &part.rest_from) {
                    // A memtable that was sealed during the compaction is merged by the next
                    // checkpoint.
                    (None, _) => {}
                    (Some(_), None) => {
                        changed.sealed = None;
                        unsealed += 1;
                        forecast.released(core.env.now_ns());
                    }
                    (Some(_), Some(_)) => forecast.sealed(core.env.now_ns()),
                }
                keyspaces.insert(Arc::new(changed));
            }
            let generation = superblock.generation;
            let pin = Some(core.store.pin(generation));
            let next = State {
                generation,
                pin,
                floor: current.floor,
                keyspaces,
            };
            let last = match &core.log {
                // Under the append lock: an append that tests the collection cannot come between.
                Some(log) if is_grafted => log.boundary(|_| core.replace_state(next)).0,
                _ => core.replace_state(next),
            };
            core.schedule.unsealed(unsealed);
            self.seals += unsealed as u64;
            core.written.forget_unwritten(&core.state.load());
            core.plan_memory(&install);
            last
        };
        drop(last);
        // Views that were made during the end of the checkpoint hold its memtables, too.
        hand_over(&core, &checkpoint.spilled);
        self.superblock = superblock;
        self.catalog = next;
        self.changed.clear();
        let durable_through = self.catalog.durable_through();
        let merged = checkpoint.merged();
        self.take_note_of_slices(&checkpoint.parts);
        self.take_note_of_stretch(&checkpoint.parts);
        self.take_note_of_garbage(&checkpoint.parts);
        let Checkpoint {
            changes,
            unread,
            parts,
            frozen,
            spilled,
            trees_let_go,
            sliced,
            ..
        } = *checkpoint;
        let wrote = changes.added.iter().map(|page| page.bytes).sum();
        let merges_slice = sliced && !self.draining;
        let goes_on = parts.iter().any(|part| part.rest_from.is_some());
        // Dropped before the pages are freed, so that the frozen state's pin does not keep them.
        drop((parts, frozen, spilled));
        let age_ns_max = core.settings.reader_age_ns_max;
        let now_ns = core.env.now_ns();
        // D5: readers in other processes are pins before anything is freed.
        let announces = || {
            let generation = superblock.generation;
            core.readers
                .committed(&core.store, generation, now_ns, age_ns_max);
        };
        let is_late = mutant::active("readers-seen-after-the-freeing");
        if !is_late {
            announces();
        }
        core.store.commit(superblock.generation, changes);
        if is_late {
            announces();
        }
        if merges_slice {
            let room = room::room_bytes(&core);
            self.drain.is_left(room);
            if goes_on {
                self.portion.fitted(wrote, room);
            }
        }
        if self.aside.is_empty() {
            let failed = || core.log.as_ref().and_then(|log| log.failed());
            core.health.recovered(failed);
            self.rest_ns = REST_NS_MIN;
        }
        unread.iter().for_each(|error| core.health.report(error));
        if let Some(log) = &core.log
            && !keeps_log(&core, log)
            && let Err(error) = log.trim(durable_through)
            // The database is being left. The next open trims the log.
            && error.kind() != ErrorKind::Closed
        {
            core.health.report(&error);
        }
        core.counters.checkpoints.add(1);
        events::checkpointed(&core, superblock.generation.0, merged);
        // The job that returns space counts checkpoints. Some time after the last one, it frees
        // spare memory.
        core.store.reclaim_signal().notify();
        self.slicing &= self.draining || !self.slices.is_empty();
        self.tried_room &= self.slicing;
        if core.schedule.disk_is_full() {
            room::see_whether_room_is_back(&core);
        } else {
            room::watch(&core);
        }
        core.schedule.gave_trees_up(trees_let_go);
        self.end_graft(match is_grafted {
            true => Grafted::Visible,
            false => Grafted::Overtaken,
        });
        core.schedule.committed(durable_through);
        if sliced {
            core.schedule.tried_tight_checkpoint();
        }
        // Writers may wait with a full memtable, which can be sealed now.
        core.seal_full();
    }

    fn take_note_of_slices(&mut self, parts: &[Part]) {
        if self.draining || self.graft.is_some() {
            return;
        }
        for part in parts {
            self.slices.retain(|(id, _, _)| *id != part.keyspace.id);
            self.tried_room &= part.sealed.is_none() || part.rest_from.is_some();
            if let (Some(from), Some(sealed)) = (&part.rest_from, &part.sealed) {
                self.slices
                    .push((part.keyspace.id, sealed.seal, from.clone()));
            }
        }
    }

    fn take_note_of_stretch(&mut self, parts: &[Part]) {
        if let [part] = parts
            && part.sealed.is_none()
            && self.graft.is_none()
        {
            if self.draining {
                self.drain.went_on(part.next_stretch.clone());
                return;
            }
            let compactions = &self.core.compactions;
            if compactions
                .asked()
                .is_some_and(|asked| asked.work == Work::Garbage)
            {
                compactions.went_on(None);
                return;
            }
            let next = compactions.asked().and_then(|asked| {
                let from = part.next_stretch.clone()?;
                let span = (from, asked.span.1);
                Some(Stretches { span, ..asked })
            });
            match compactions.asked().map(|asked| asked.work) {
                Some(Work::Order) => part.keyspace.shared.visits.forget_scattered(),
                _ => part.keyspace.shared.visits.forget_passed(),
            }
            compactions.went_on(next);
            self.core.counters.compactions.add(1);
        }
    }
}

/// Tells the map of separated values which versions come, before any reader sees them.
fn installing(core: &Core, checkpoint: &Checkpoint) {
    let installed = checkpoint.parts.iter().filter_map(|part| {
        let memtable = part.sealed.as_ref().map(|sealed| &sealed.records.memtable);
        Some(Installed {
            collection: part.keyspace.collection,
            moment: part.merged.as_ref()?.stored_values()?.moment(),
            erases: memtable.is_some_and(|memtable| memtable.fragments().is_some()),
        })
    });
    let installed: Vec<_> = installed.collect();
    if core.locations.get().is_some() || !installed.is_empty() {
        core.located().installing(&installed, &checkpoint.changes);
    }
}

/// Whether a reader in another process copies the log, so that it stays as it is. A reader that
/// would make the log too long is revoked.
fn keeps_log(core: &Core, log: &Log) -> bool {
    if !core.readers.copy_log() || mutant::active("log-trimmed-under-a-reader") {
        return false;
    }
    if log.metrics().disk_bytes <= core.settings.log_bytes_max {
        return true;
    }
    let why = "it has copied the log for too long";
    !core.readers.revoke(&core.store, why, true)
}
