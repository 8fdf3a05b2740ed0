//! Crash runs: random operations during which the process dies or the power fails, also during the
//! recovery from a crash.

use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;

use crate::life::Life;
use crate::run::{Failure, Outcome, crash_life};

/// Runs this many random operations with crashes between and inside them.
pub fn crash_run(seed: u64, operations: usize) -> Result<Outcome, Failure> {
    crash_run_on(seed, operations, SimDisk::new(seed))
}

/// Does what [`crash_run`] does on a new disk of the caller, which may watch it.
pub fn crash_run_on(seed: u64, operations: usize, disk: SimDisk) -> Result<Outcome, Failure> {
    let mut life = crash_life(seed, disk)?;
    for _ in 0..operations {
        operate(&mut life)?;
    }
    life.disarm();
    if !life.subject().disk().is_alive() {
        recover(&mut life)?;
    }
    life.finish()
}

/// One operation or a death, and the recovery from it.
fn operate(life: &mut Life) -> Result<(), Failure> {
    match life.random.below(200) {
        0 => {
            let call = life.random.scaled(120);
            life.dies_at_call(call);
        }
        1 => {
            let write = life.random.scaled(20);
            life.dies_at_ring_write(write);
        }
        2 => {
            life.note("# dies here".to_owned());
            return recover(life);
        }
        _ => {}
    }
    if life.operate(1)? {
        Ok(())
    } else {
        recover(life)
    }
}

/// Kills the process, perhaps cuts the power, and opens the store again. The open may be killed
/// too.
fn recover(life: &mut Life) -> Result<(), Failure> {
    let state = loop {
        let power = life
            .random
            .one_in(2)
            .then(|| *life.random.pick(&CrashMode::ALL));
        life.die(power);
        if life.random.one_in(4) {
            life.verify(true)?;
        }
        if life.random.one_in(3) {
            let call = life.random.scaled(100);
            life.dies_at_call(call);
        }
        if let Some(state) = life.open()? {
            break state;
        }
    };
    life.recovered(&state)?;
    if life.random.one_in(3) {
        life.recover_again(&state, Some(CrashMode::LoseUnsynced))?;
    }
    Ok(())
}
