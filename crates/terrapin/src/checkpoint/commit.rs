//! How a checkpoint becomes durable. This file is D2:
//!
//! write pages → sync → sync the log through what the checkpoint relies on → write one superblock
//! slot {generation, catalog root, CRC} → sync → write the same into the other slot → sync; only
//! now free and trim.
//!
//! That is all below its seal, and a clear or drop above it that a write below came too late for
//! (`job`).
//!
//! The pages are written before a [`Commit`] is made; freeing and trimming is what its caller does
//! once it is [`Progress::Durable`]. A failure before the first slot leaves the last checkpoint in
//! force, and the pages can be given back. From the first slot on nobody knows what a reopened
//! database would find, and a failed sync is told once only: both poison the database.

use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result, mutant};
use terrapin_pages::Superblock;

use crate::engine::core::Core;

/// A checkpoint whose pages, catalog included, are written.
pub(crate) struct Commit {
    superblock: Superblock,
    /// How much of the log is synced first: applied LSNs in the catalog that are above it were so
    /// before, and the log was synced through them then.
    through: Lsn,
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
    /// Of a superblock that leads to the new catalog, which must not be durable before so much of
    /// the log is.
    pub fn new(superblock: Superblock, through: Lsn) -> Self {
        Commit {
            superblock,
            through,
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
            Stage::SyncPages if mutant::active("commit-without-page-sync") => Stage::AskForLog,
            Stage::SyncPages if mutant::active("commit-slot-before-page-sync") => {
                core.store.write_superblock(0, &self.superblock)?;
                core.store.sync()?;
                Stage::AskForLog
            }
            Stage::SyncPages => {
                core.store.sync().map_err(|e| poison(core, e))?;
                Stage::AskForLog
            }
            Stage::AskForLog if mutant::active("commit-without-log-sync") => Stage::WriteFirstSlot,
            Stage::AskForLog => {
                self.next = Stage::SyncLog;
                return Ok(Progress::Pending(log.request_sync(self.through)));
            }
            Stage::SyncLog => {
                if let Some(error) = log.failed() {
                    return Err(error);
                }
                if log.synced() >= self.through {
                    Stage::WriteFirstSlot
                } else if let Some(error) = log.shortage() {
                    return Err(error);
                } else if log.has_ended() || log.synced() >= log.tail() {
                    return Err(Error::new(
                        ErrorKind::Closed,
                        "the log ended before a checkpoint could be committed",
                    ));
                } else {
                    // There was a shortage, and it is over.
                    Stage::AskForLog
                }
            }
            Stage::WriteFirstSlot => {
                self.next = Stage::SyncFirstSlot;
                core.store
                    .write_superblock(0, &self.superblock)
                    .map_err(|e| poison(core, e))?;
                Stage::SyncFirstSlot
            }
            Stage::SyncFirstSlot if mutant::active("commit-without-first-slot-sync") => Stage::WriteSecondSlot,
            Stage::SyncFirstSlot if mutant::active("commit-durable-before-first-slot-sync") => Stage::Durable,
            Stage::SyncFirstSlot => {
                core.store.sync().map_err(|e| poison(core, e))?;
                Stage::WriteSecondSlot
            }
            Stage::WriteSecondSlot if mutant::active("commit-without-second-slot") => Stage::Durable,
            Stage::WriteSecondSlot => {
                core.store
                    .write_superblock(1, &self.superblock)
                    .map_err(|e| poison(core, e))?;
                Stage::SyncSecondSlot
            }
            Stage::SyncSecondSlot if mutant::active("commit-without-second-slot-sync") => Stage::Durable,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CheckpointDistance, Options};
    use terrapin_base::Env;
    use terrapin_disk::SimDisk;
    use terrapin_disk::sim::{Fault, FaultError, Op};

    /// The wait for the log ends when its drain finds no room, and the drain may have found some
    /// before the checkpoint looks: that was taken for the log's end.
    #[test]
    fn a_shortage_of_log_space_that_is_over_does_not_end_a_checkpoint() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let options = Options::new()
            .memory(4 << 20)
            .ring_bytes(64 << 10)
            .log_segment_bytes(64 << 10)
            .log_bytes_max(4 << 20)
            .group_bytes(4 << 10)
            .checkpoint_distance(CheckpointDistance::Fixed(200));
        let database = options.open_on(env, disk.handle()).unwrap();
        sim.settle();
        let core = database.core();
        let log = core.log().unwrap();
        let no_room = Fault::nth(1, FaultError::NoSpace).on(Op::Allocate);
        disk.inject(no_room.of("spare-").lasting());
        let keyspace = database.default_keyspace();
        for number in 0..2000_u32 {
            if log.shortage().is_some() {
                break;
            }
            keyspace.put(number.to_be_bytes(), [7; 200]).unwrap();
            sim.settle();
        }
        assert!(log.shortage().is_some());
        sim.set_breathing(false);
        sim.settle();

        let mut commit = Commit::new(core.store.superblock(), log.tail());
        let condition = loop {
            match commit.step(core).unwrap() {
                Progress::Again => {}
                Progress::Pending(condition) => break condition,
                Progress::Durable => panic!("the log was not synced"),
            }
        };
        sim.settle();
        assert!(condition.holds() && log.synced() < commit.through);
        disk.clear_faults();
        log.trim(Lsn(0)).unwrap(); // has the drain look again
        while log.shortage().is_some() {
            assert!(sim.step());
        }
        assert!(log.synced() < commit.through);
        assert!(matches!(commit.step(core), Ok(Progress::Again)));
        assert!(matches!(commit.step(core), Ok(Progress::Pending(_))));
        sim.settle();
        assert!(log.synced() >= commit.through);
        assert!(matches!(commit.step(core), Ok(Progress::Again)));
        assert!(matches!(commit.next, Stage::WriteFirstSlot));
        drop(keyspace);
        database.close().unwrap();
    }
}
