//! The spill: a checkpoint writes runs of its memtables, just before its catalog, for views that
//! may be held long.
//!
//! The spill comes after the merges, so that it serves snapshots taken meanwhile. It comes before
//! the commit, so that the memtable's memory is free when the checkpoint ends, whatever views
//! exist. Writers keep a pace at which their next memtable lasts until then, so each of their
//! writes takes a little longer.
//!
//! A memtable gets a run if one of its views is older than a second, or if memtable memory is
//! short. The run is then for all views of the memtable, of any age. A run that cannot be written,
//! mostly because the disk is full, does not stop the checkpoint: the fold job retries. A
//! checkpoint that merges slices on a full disk writes no runs.

use std::sync::Arc;

use terrapin_base::ErrorKind;

use super::held::{AGE_NS, Finished, Holders};
use super::outcome::Checkpoint;
use crate::checkpoint::run_writer::RunWriter;
use crate::engine::core::Core;
use crate::engine::running_merge::guarded;

/// The runs of a checkpoint, one after another.
pub(super) struct Spilling {
    holders: Holders,
    /// Index of the part whose run is next or is being written.
    at: usize,
    writer: Option<RunWriter>,
}

impl Spilling {
    /// For a checkpoint whose parts are merged. None if no view holds a memtable.
    pub fn of(core: &Core, checkpoint: &Checkpoint) -> Option<Self> {
        if checkpoint.sliced || core.views.len() == 0 {
            return None;
        }
        let holders = Holders::of(&core.views.all());
        (!holders.is_empty()).then_some(Spilling {
            holders,
            at: 0,
            writer: None,
        })
    }

    /// Does one step. Returns whether the spill is over.
    pub fn step(&mut self, core: &Arc<Core>, checkpoint: &mut Checkpoint) -> bool {
        let Some(part) = checkpoint.parts.get(self.at) else {
            return true;
        };
        let (id, sealed) = (part.keyspace.id, part.sealed.as_ref());
        let Some(sealed) = sealed.filter(|_| part.rest_from.is_none()) else {
            self.at += 1;
            return false;
        };
        let Some(writer) = &mut self.writer else {
            let mut wanted = self.holders.want(id, &sealed.records);
            // A later view sees the whole memtable, and so does every view after it.
            for moment in &mut wanted.moments {
                *moment = sealed.seal.min(*moment);
            }
            wanted.moments.dedup();
            let is_old = || {
                let now_ns = core.env.now_ns();
                now_ns >= wanted.oldest_ns.saturating_add(AGE_NS) || core.memtables_are_large()
            };
            match !wanted.moments.is_empty() && is_old() {
                true => {
                    let memtable = sealed.records.clone();
                    self.writer = Some(RunWriter::new(core, id, memtable, wanted.moments));
                }
                false => self.at += 1,
            }
            return false;
        };
        match guarded(|| writer.step()) {
            Ok(None) => return false,
            Ok(Some(run)) => {
                let finished = Finished::written(writer, run, sealed.seal);
                checkpoint.spilled.push(finished);
                self.at += 1;
            }
            Err(error) => {
                writer.abandon();
                tracing::warn!(%error, "a memtable that snapshots or iterators hold could not be written out; the engine retries in the background");
                self.at = match error.kind() {
                    ErrorKind::NoSpace => checkpoint.parts.len(),
                    _ => self.at + 1,
                };
            }
        }
        self.writer = None;
        false
    }
}
