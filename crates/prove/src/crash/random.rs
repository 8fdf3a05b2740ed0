//! Workloads from a seed: any options, any operations.

use terrapin_model::{Configuration, Generator, Operation, Profile, Random, Reopen};

use super::workload::{Course, Step};

/// Operations of a workload.
const OPERATIONS: usize = 150;

/// The workload of a seed.
pub(super) fn course(seed: u64) -> Course {
    let mut random = Random::new(seed);
    let configuration = Configuration::random(&mut random);
    let mut profile = Profile::of(&configuration, &mut random);
    profile.crashes = true;
    let mut steps = Vec::new();
    for operation in Generator::new(random.bits(), profile).take(OPERATIONS) {
        if matches!(operation, Operation::Reopen(Reopen { dropped: true, .. })) {
            // Unlogged writes would be lost.
            steps.push(Step::Do(Operation::Flush));
        }
        steps.push(Step::Do(operation));
    }
    Course {
        name: format!("of seed {seed}"),
        configuration,
        steps,
    }
}
