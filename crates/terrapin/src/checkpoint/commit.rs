//! How a checkpoint becomes durable. This file is D2:
//!
//! write pages → sync → sync the log through the cut's LSN → write one superblock slot {generation, catalog root, CRC} →
//! sync → write the same into the other slot → sync; only now free and trim.
//!
//! The pages are written before a [`Commit`] is made; freeing and trimming is what its caller does once it is [`Progress::Durable`].
//! A failure before the first slot leaves the last checkpoint in force, and the pages can be given back. From the first slot on nobody knows
//! what a reopened database would find, and a failed sync is told once only: both poison the database.

use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result, mutant};
use terrapin_pages::Superblock;

use crate::core::Core;

/// A checkpoint whose pages, catalog included, are written.
pub(crate) struct Commit {
    superblock: Superblock,
    /// The round's cut: applied LSNs in the catalog that are above it were so before, and the log was synced through them then.
    cut: Lsn,
    next: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    SyncPages,
    AskForLog,
    SyncLog,
    WriteFirstSlot,
    SyncFirstSlot,
    WriteSecondSlot,
    SyncSecondSlot,
    Durable,
}

/// What a step came to.
pub(crate) enum Progress {
    /// There is another step.
    Again,
    /// The log is being synced.
    Pending(Condition),
    /// Both slots hold the new generation.
    Durable,
}

impl Commit {
    /// Of a superblock that leads to the new catalog.
    pub fn new(superblock: Superblock, cut: Lsn) -> Self {
        Commit {
            superblock,
            cut,
            next: Stage::SyncPages,
        }
    }

    /// Whether the first slot may have been written: then the pages must not be given back.
    pub fn may_be_durable(&self) -> bool {
        !matches!(
            self.next,
            Stage::SyncPages | Stage::AskForLog | Stage::SyncLog | Stage::WriteFirstSlot
        )
    }

    /// Does the next step of D2.
    pub fn step(&mut self, core: &Core) -> Result<Progress> {
        let log = core.log()?;
        self.next = match self.next {
            Stage::SyncPages if mutant::active(11) => Stage::AskForLog,
            Stage::SyncPages if mutant::active(36) => {
                core.store.write_superblock(0, &self.superblock)?;
                core.store.sync()?;
                Stage::AskForLog
            }
            Stage::SyncPages => {
                core.store.sync().map_err(|e| poison(core, e))?;
                Stage::AskForLog
            }
            Stage::AskForLog if mutant::active(12) => Stage::WriteFirstSlot,
            Stage::AskForLog => {
                self.next = Stage::SyncLog;
                return Ok(Progress::Pending(log.request_sync(self.cut)));
            }
            Stage::SyncLog => {
                if let Some(error) = log.failed() {
                    return Err(error);
                }
                if log.synced() < self.cut {
                    let ended = || {
                        Error::new(
                            ErrorKind::Closed,
                            "the log ended before a checkpoint could be committed",
                        )
                    };
                    return Err(log.shortage().unwrap_or_else(ended));
                }
                Stage::WriteFirstSlot
            }
            Stage::WriteFirstSlot => {
                self.next = Stage::SyncFirstSlot;
                core.store
                    .write_superblock(0, &self.superblock)
                    .map_err(|e| poison(core, e))?;
                Stage::SyncFirstSlot
            }
            Stage::SyncFirstSlot if mutant::active(33) => Stage::WriteSecondSlot,
            Stage::SyncFirstSlot if mutant::active(37) => Stage::Durable,
            Stage::SyncFirstSlot => {
                core.store.sync().map_err(|e| poison(core, e))?;
                Stage::WriteSecondSlot
            }
            Stage::WriteSecondSlot if mutant::active(35) => Stage::Durable,
            Stage::WriteSecondSlot => {
                core.store
                    .write_superblock(1, &self.superblock)
                    .map_err(|e| poison(core, e))?;
                Stage::SyncSecondSlot
            }
            Stage::SyncSecondSlot if mutant::active(34) => Stage::Durable,
            Stage::SyncSecondSlot => {
                core.store.sync().map_err(|e| poison(core, e))?;
                Stage::Durable
            }
            Stage::Durable => return Ok(Progress::Durable),
        };
        Ok(Progress::Again)
    }
}

/// Nothing durable is written any more: later writes and checkpoints get this error.
fn poison(core: &Core, error: Error) -> Error {
    if error.kind() != ErrorKind::Closed
        && let Some(log) = &core.log
    {
        log.poison(error.clone());
    }
    error
}
