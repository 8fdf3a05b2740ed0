//! Runs a workload beside the oracle, and stops at places where it may die. The protocol's checker
//! watches every write (D1, D2, D3).

use terrapin::ErrorKind;
use terrapin_disk::SimDisk;
use terrapin_model::{Answer, Operation, Oracle, Simulated, Subject, Survives};

use super::places::{CrashPoint, Taking};
use super::survive::Scene;
use super::workload::{Course, Step};
use crate::Find;
use crate::protocol::Protocol;

/// A disk that is large enough for every workload.
pub(super) const ROOMY_BYTES: u64 = 64 << 30;

/// What is done at a place.
type Visit<'v> = dyn FnMut(CrashPoint, &Scene<'_>) -> Result<(), Find> + 'v;

/// Runs a workload and calls `visit` with places in it and what is true there: with every place, or
/// one in this many.
pub(super) fn walk(
    course: &Course,
    seed: u64,
    one_in: u64,
    visit: &mut Visit<'_>,
) -> Result<(), Find> {
    walk_on(&SimDisk::new(seed), course, seed, one_in, visit)
}

/// [`walk`] on that disk, which is empty.
fn walk_on(
    disk: &SimDisk,
    course: &Course,
    seed: u64,
    one_in: u64,
    visit: &mut Visit<'_>,
) -> Result<(), Find> {
    let protocol = Protocol::watch(disk);
    let taking = Taking::begin(disk, seed, one_in);
    let configuration = course.configuration.clone();
    let mut oracle = Oracle::new()
        .with_default(configuration.durability)
        .with_structures(configuration.structures);
    let mut subject = Simulated::closed(course.name.clone(), seed, configuration, disk.clone());
    let mut scene = Scene {
        course,
        line: "# the store is created".to_owned(),
        oracle: oracle.clone(),
        survives: Survives::Acknowledged,
        created: false,
    };
    subject.open()?;
    for place in taking.take() {
        visit(place, &scene)?;
    }
    scene.created = true;
    let mut roomy = true;
    for step in &course.steps {
        let operation = match step {
            Step::Disk(bytes) => {
                disk.set_capacity(*bytes);
                roomy = *bytes >= ROOMY_BYTES;
                continue;
            }
            Step::Do(operation) => operation,
        };
        let earlier = oracle.clone();
        let expected = oracle.apply(operation);
        if matches!(expected, Answer::Broken(_)) {
            // The operation names a snapshot or range that does not exist.
            continue;
        }
        scene.line = operation.to_string();
        scene.oracle = earlier.clone();
        if operation.is_write() {
            // While the operation is in progress, its changes may be there or not.
            scene.oracle = oracle.clone();
            scene.oracle.last_was_in_flight(earlier.in_flight());
        }
        let answer = subject.apply(operation);
        if !roomy && is_refused(operation, &answer) {
            oracle = earlier;
        } else if !answer.agrees(&expected) {
            return Err(told(course, operation, &answer.difference(&expected)));
        }
        for place in taking.take() {
            visit(place, &scene)?;
        }
        protocol
            .check()
            .map_err(|find| told(course, operation, &find.0))?;
    }
    scene.line = "# the end".to_owned();
    scene.oracle = oracle;
    visit(CrashPoint::here(disk, "the end", seed), &scene)?;
    scene.line = "# dropped".to_owned();
    drop(subject);
    for place in taking.take() {
        visit(place, &scene)?;
    }
    protocol.check().map(drop)
}

fn told(course: &Course, operation: &Operation, what: &str) -> Find {
    Find(format!("workload {}: {operation}: {what}", course.name))
}

/// Whether a full disk may answer so. Nothing is changed then, and deletes pass (D10).
fn is_refused(operation: &Operation, answer: &Answer) -> bool {
    let may = matches!(
        operation,
        Operation::Put { .. } | Operation::Checkpoint | Operation::Flush
    );
    may && matches!(answer, Answer::Failed(ErrorKind::NoSpace, _))
}

#[cfg(test)]
mod tests {
    use super::super::survive::survive;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use terrapin_disk::sim::{Moment, Op};

    use super::super::workload::Workload;
    use super::super::workloads;
    use super::*;

    fn course() -> Course {
        let workload = Workload {
            name: "a test's",
            options: |_| {},
            script: "put a 1 sync\ndelete b",
        };
        workload.read().unwrap_or_else(|find| panic!("{find}"))
    }

    /// Every death at the end of the course, with the oracle changed by `change`.
    fn deaths(change: impl Fn(&mut Oracle)) -> (usize, Vec<Find>) {
        let (mut tried, mut finds) = (0, Vec::new());
        let course = course();
        let walked = walk(&course, 1, u64::MAX, &mut |place, scene| {
            for death in place.deaths() {
                let mut oracle = scene.oracle.clone();
                change(&mut oracle);
                let scene = Scene {
                    course: scene.course,
                    line: scene.line.clone(),
                    oracle,
                    survives: scene.survives,
                    created: scene.created,
                };
                tried += 1;
                finds.extend(survive(death, &scene).err());
            }
            Ok(())
        });
        assert!(walked.is_ok(), "{walked:?}");
        (tried, finds)
    }

    #[test]
    fn a_missing_synced_write_is_found_after_every_death() {
        let (tried, finds) = deaths(|_| {});
        assert!(tried >= 5);
        assert!(finds.is_empty(), "{finds:?}");
        let missing = Step::of("put c 1 sync");
        let (tried, finds) = deaths(|oracle| drop(oracle.apply(&missing)));
        assert_eq!(finds.len(), tried, "{finds:?}");
        assert!(finds[0].0.contains("had to survive"), "{}", finds[0]);
    }

    #[test]
    fn every_changing_call_and_ring_store_of_every_workload_is_a_place() {
        for (number, workload) in (1..).zip(workloads::all()) {
            let course = workload.read().unwrap_or_else(|find| panic!("{find}"));
            let disk = SimDisk::new(number);
            let [unchanging, refused] = [(), ()].map(|()| Arc::new(AtomicU64::new(0)));
            let counts = [unchanging.clone(), refused.clone()];
            let watching = disk.watch(Box::new(move |_, call| {
                let count = match call.moment {
                    Moment::Before if !call.changes() => &counts[0],
                    Moment::After { failed: true } if call.op == Op::Allocate => &counts[1],
                    _ => return,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }));
            let (mut calls, mut stores, mut ends) = (0, 0, 0);
            let walked = walk_on(&disk, &course, number, 1, &mut |place, _| {
                let of = match place.call.as_str() {
                    "the end" => &mut ends,
                    call if call.contains(": RingWrite") => &mut stores,
                    _ => &mut calls,
                };
                *of += 1;
                let deaths = place.deaths();
                assert!(deaths.iter().any(|death| death.power.is_none()));
                assert!(deaths.iter().filter(|death| death.power.is_some()).count() >= 4);
                Ok(())
            });
            assert!(walked.is_ok(), "{}: {walked:?}", course.name);
            drop(watching);
            let unchanging = unchanging.load(Ordering::Relaxed);
            assert_eq!(calls + unchanging, disk.io_count(), "{}", course.name);
            assert_eq!(stores, disk.ring_writes(), "{}", course.name);
            assert_eq!(ends, 1);
            let full = course.steps.iter().any(|s| matches!(s, Step::Disk(_)));
            let refused = refused.load(Ordering::Relaxed);
            assert_eq!(refused > 0, full, "{}", course.name);
        }
    }

    #[test]
    fn an_invented_write_is_found() {
        let mut other = Oracle::new();
        other.apply(&Step::of("put z 1 sync"));
        let (tried, finds) = deaths(|oracle| *oracle = other.clone());
        assert_eq!(finds.len(), tried, "{finds:?}");
    }

    impl Step {
        fn of(line: &str) -> Operation {
            let script = terrapin_model::Script::parse("a test's", line);
            let steps = script.map(|s| s.steps).unwrap_or_default();
            steps
                .into_iter()
                .next()
                .map(|s| s.operation)
                .unwrap_or(Operation::Keyspaces)
        }
    }
}
