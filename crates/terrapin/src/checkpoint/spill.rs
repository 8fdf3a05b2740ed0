//! A checkpoint's last work before its catalog: the runs of its memtables, for views that are going
//! to be held.
//!
//! Its place is behind the merges, so that snapshots which were taken meanwhile are served too, and
//! before the commit, so that the memtable's memory goes when the checkpoint is over, whoever holds
//! views: writers, who are held to a pace at which their next memtable lasts until then, wait a
//! little longer for each of their writes, and for nothing else.
//!
//! A memtable gets a run where one of its views is older than a second, or memtable memory is
//! short. Then it is for all views of the memtable, however young. What cannot be written, for want
//! of room on the disk as a rule, is not in the way of the checkpoint: the fold job tries it again.
//! A checkpoint that merges slices on a full disk writes no runs.

use std::sync::Arc;

use terrapin_base::ErrorKind;

use super::held::{AGE_NS, Finished, Holders};
use super::outcome::Checkpoint;
use crate::checkpoint::run_writer::RunWriter;
use crate::engine::core::Core;
use crate::engine::running_merge::guarded;

/// The runs of a checkpoint, one after the other.
pub(super) struct Spilling {
    holders: Holders,
    /// The part of the checkpoint that is next, or whose run is being written.
    at: usize,
    writer: Option<RunWriter>,
}

impl Spilling {
    /// For a checkpoint whose parts are merged; none where no view holds a memtable.
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

    /// Goes on; whether it is over.
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
            // A view of later sees all of it, and so does every other.
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
                tracing::warn!(%error, "what snapshots need of a memtable could not be written; it will be tried again");
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
