//! Runs a workload beside the oracle, and stops at places where it may die.

use terrapin_disk::SimDisk;
use terrapin_model::{Answer, Oracle, Simulated, Subject, Survives};

use super::places::{Place, Taking};
use super::survive::Scene;
use super::workload::Course;
use crate::Find;
use crate::protocol::Protocol;

/// Runs a workload, watched by the protocol's checker, and calls `visit` with places in it and what holds there: with every place, or one in so many.
pub(super) fn walk(
    course: &Course,
    seed: u64,
    one_in: u64,
    visit: &mut dyn FnMut(Place, &Scene<'_>) -> Result<(), Find>,
) -> Result<(), Find> {
    let disk = SimDisk::new(seed);
    let protocol = Protocol::watch(&disk);
    let taking = Taking::begin(&disk, seed, one_in);
    let configuration = course.configuration.clone();
    let mut oracle = Oracle::new().with_default(configuration.durability);
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
    for operation in &course.operations {
        let before = oracle.in_flight();
        scene.line = operation.to_string();
        scene.oracle = oracle.clone();
        let expected = oracle.apply(operation);
        if matches!(expected, Answer::Broken(_)) {
            // It names a snapshot or a range that is not there.
            continue;
        }
        if operation.is_write() {
            // While it is under way, what it changes may be there or not.
            scene.oracle = oracle.clone();
            scene.oracle.last_was_in_flight(before);
        }
        let answer = subject.apply(operation);
        if !answer.agrees(&expected) {
            return Err(Find(format!(
                "workload {}: {operation}: {}",
                course.name,
                answer.difference(&expected)
            )));
        }
        for place in taking.take() {
            visit(place, &scene)?;
        }
    }
    scene.line = "# the end".to_owned();
    scene.oracle = oracle;
    visit(Place::here(&disk, "the end", seed), &scene)?;
    protocol.check().map(drop)
}
