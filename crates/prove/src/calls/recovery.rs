//! Recoveries in which one call fails. The open reports the error or copes. The next open finds
//! everything, even if the process is killed or the power cut in between.

use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, Op};
use terrapin_model::{Operation, Oracle, Pattern, Simulated, Subject, Survives};

use super::run::{Failing, Tally, beginning, verified, verified_after_close};
use super::workloads::Workload;
use crate::Find;

/// The seed of the workload's run.
const SEED: u64 = 23;

/// A moment of a workload at which its process was killed.
struct Killed {
    disk: SimDisk,
    oracle: Oracle,
}

/// Fails every call, in every way, of the recoveries from kills in the middle and at the end of a
/// workload.
pub(super) fn every_call(
    workload: &Workload,
    operations: &[Operation],
    tally: &mut Tally,
) -> Result<(), Find> {
    for after in [operations.len() / 2, operations.len()] {
        let killed = killed(workload, operations, after)?;
        let probe = killed.disk.fork();
        probe.record_trace(true);
        let mut subject = on(workload, &probe);
        subject.open()?;
        let mut calls = probe.take_trace();
        calls.retain(|event| event.op != Op::RingWrite);
        drop(subject);
        let place = format!(
            "recovery of workload \"{}\", killed after {after} operations",
            workload.name
        );
        tally.try_each(&place, &calls, |failing| one(workload, &killed, failing));
    }
    Ok(())
}

fn killed(workload: &Workload, operations: &[Operation], after: usize) -> Result<Killed, Find> {
    let disk = SimDisk::new(SEED);
    let (mut subject, mut oracle) = beginning(workload, &disk);
    subject.open()?;
    for operation in &operations[..after] {
        let expected = oracle.apply(operation);
        let answer = subject.apply(operation);
        if !answer.agrees(&expected) {
            return Err(Find(format!(
                "{operation}: {}",
                answer.difference(&expected)
            )));
        }
    }
    subject.crash(None);
    Ok(Killed { disk, oracle })
}

fn on(workload: &Workload, disk: &SimDisk) -> Simulated {
    beginning(workload, disk).0
}

fn one(workload: &Workload, killed: &Killed, failing: Failing) -> Result<(), String> {
    let disk = killed.disk.fork();
    let mut oracle = killed.oracle.clone();
    let mut subject = on(workload, &disk);
    let calls = disk.io_count();
    disk.inject(failing.fault());
    let mut survives = Survives::Acknowledged;
    match subject.open() {
        Err(error) => failing.explains_error(&error)?,
        Ok(()) => match subject.state() {
            Ok(state) => {
                oracle.recovered(&state, survives)?;
                survives = Survives::Durable;
            }
            Err(error) => failing.explains_error(&error)?,
        },
    }
    if disk.io_count() < calls + failing.call {
        return Err("the call that was to fail was never made".to_owned());
    }
    disk.clear_faults();
    subject.sim().kill();
    match failing.call % 4 {
        0 => subject.let_go(),
        1 => subject.crash(None),
        2 => {
            subject.crash(Some(CrashMode::LoseUnsynced));
            survives = Survives::Durable;
        }
        _ => {
            let mode = CrashMode::ALL[failing.call as usize / 4 % CrashMode::ALL.len()];
            subject.crash(Some(mode));
            survives = Survives::Durable;
        }
    }
    verified(&mut subject, survives)?;
    let opened = subject.open().and_then(|()| subject.state());
    let state = opened.map_err(|error| format!("the next open: {error}"))?;
    oracle.recovered(&state, survives)?;
    let write = Operation::Put {
        keyspace: "default".to_owned(),
        key: Pattern::literal("after"),
        value: Pattern::literal("all"),
        durability: Some(terrapin::Durability::Sync),
    };
    let expected = oracle.apply(&write);
    let answer = subject.apply(&write);
    if !answer.agrees(&expected) {
        return Err(format!(
            "after the next open: {}",
            answer.difference(&expected)
        ));
    }
    subject.crash(Some(CrashMode::LoseUnsynced));
    let opened = subject.open().and_then(|()| subject.state());
    let state = opened.map_err(|error| format!("the open after a power cut: {error}"))?;
    oracle.recovered(&state, Survives::Durable)?;
    verified_after_close(&mut subject)
}
