//! The commit protocol (D2): how the pages that a checkpoint wrote become the database.
//!
//! [`PROTOCOL`] is the whole of it. The checkpoint job writes the pages, the catalog's included,
//! before it makes a [`Commit`]. It frees and trims space only after [`Progress::Durable`].
//!
//! A failure before the first slot leaves the last checkpoint in force, and the job gives the new
//! pages back. From the first slot on, a reopen may find either checkpoint. A failed sync may have
//! lost writes that a second sync does not report. Both failures therefore poison the log.

use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result};
use terrapin_pages::Superblock;
use terrapin_wal::Log;

use super::commit_mutants::steps;
use crate::engine::core::Core;

/// A step of the commit protocol.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Syncs the data file: pages and slots.
    Sync,
    /// Asks the log to sync through what the checkpoint relies on.
    AskForLog,
    /// Goes on once the log is synced that far.
    AwaitLog,
    /// Writes the new superblock {generation, catalog root, CRC} into the slot of this number.
    WriteSlot(usize),
}

/// The commit protocol. Each step comes before the next, for the reason beside it.
pub(super) const PROTOCOL: &[Step] = &[
    Step::Sync,         // D2: pages are durable before a slot leads to them.
    Step::AskForLog,    // D3: no durable applied LSN exceeds what the log has synced, so
    Step::AwaitLog,     //     the log is synced through the seal before a slot is written.
    Step::WriteSlot(0), // D2: the other slot holds the last checkpoint meanwhile.
    Step::Sync,         // D2: one whole slot is durable before the other is overwritten.
    Step::WriteSlot(1), // D2: damage of one slot loses no checkpoint.
    Step::Sync,         // D5: no durable slot leads to old pages when they are freed.
];

/// A checkpoint whose pages, catalog included, are written.
pub(crate) struct Commit {
    superblock: Superblock,
    /// The log is synced through this LSN before a slot is written: the seal, or a later clear or
    /// drop that discarded writes below the seal.
    through: Lsn,
    steps: &'static [Step],
    /// The index of the next step.
    next: usize,
}

/// The result of one step.
pub(crate) enum Progress {
    /// Another step follows at once.
    Again,
    /// Another step follows when this condition holds: the log is being synced.
    Pending(Condition),
    /// Both slots durably hold the new generation.
    Durable,
}

impl Commit {
    /// A commit of the catalog that `superblock` leads to, after a sync of the log through
    /// `through`.
    pub fn new(superblock: Superblock, through: Lsn) -> Self {
        let (steps, next) = (steps(), 0);
        Commit {
            superblock,
            through,
            steps,
            next,
        }
    }

    /// Whether a slot may hold the new superblock. The caller must not give its pages back then.
    pub fn may_be_durable(&self) -> bool {
        let begun = &self.steps[..self.next];
        begun.iter().any(|step| matches!(step, Step::WriteSlot(_)))
    }

    /// Does the next step of [`PROTOCOL`]. After an error the caller ends the commit.
    pub fn step(&mut self, core: &Core) -> Result<Progress> {
        let log = core.log()?;
        let Some(step) = self.steps.get(self.next).copied() else {
            return Ok(Progress::Durable);
        };
        self.next += 1; // Before a slot is written: a failed write may reach the disk too.
        match step {
            Step::Sync => core.store.sync().map_err(|e| poison(core, e))?,
            Step::AskForLog => return Ok(Progress::Pending(log.request_sync(self.through))),
            Step::AwaitLog if log_is_synced(log, self.through)? => {}
            Step::AwaitLog => self.next -= 2, // To `AskForLog`.
            Step::WriteSlot(slot) => {
                let written = core.store.write_superblock(slot, &self.superblock);
                written.map_err(|e| poison(core, e))?;
            }
        }
        Ok(Progress::Again)
    }
}

/// Whether the log is synced through `through` after a request. False when a shortage of space
/// ended the request and is over. The caller then asks again.
fn log_is_synced(log: &Log, through: Lsn) -> Result<bool> {
    if let Some(error) = log.failed() {
        return Err(error);
    }
    if log.synced() >= through {
        return Ok(true);
    }
    if let Some(error) = log.shortage() {
        return Err(error);
    }
    if log.has_ended() || log.synced() >= log.tail() {
        let message = "the log ended before a checkpoint could be committed";
        return Err(Error::new(ErrorKind::Closed, message));
    }
    Ok(false)
}

/// Makes the log refuse later writes, and so later checkpoints, with this error.
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

    /// The wait for the log ends when the log finds no space. The log may find space again before
    /// the commit looks at it; the commit must then ask again, and not report the log's end.
    #[test]
    fn a_past_shortage_of_log_space_does_not_end_a_checkpoint() {
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
        assert!(matches!(commit.steps[commit.next], Step::WriteSlot(0)));
        drop(keyspace);
        database.close().unwrap();
    }
}
