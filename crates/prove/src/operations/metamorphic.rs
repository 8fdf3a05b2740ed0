//! Layer `metamorphic`: the same operations under different options, χ, structures and thread
//! counts give equal answers. A unit does the operations of one seed on four stores at once. Two
//! are simulated. Real threads do the background work of the other two, on a simulated disk and in
//! a directory. Every answer is compared with the oracle's, and so with the others'.

use std::path::Path;

use terrapin_model::{
    Configuration, Random, Simulated, Structures, random_operations, replay_beside,
};

use crate::{Find, Layer, Units};

/// Operations of a unit.
const OPERATIONS: usize = 1500;

pub(super) fn layer() -> Layer {
    Layer {
        name: "metamorphic",
        counts: "operations",
        ci: 60_000,
        full: 600_000,
        units: Units::Seeds,
        alone: false,
        unit,
    }
}

fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
    // Other seeds than those of layer `operations`, whose first store would be the same.
    let seed = !unit;
    let (base, operations) = random_operations(seed, OPERATIONS);
    let base = base.without_refusals();
    let mut random = Random::new(unit);
    let mut structures = Random::new(!unit);
    // Two stores with the plain structure, all or in part, and two without, on average.
    let mut draw = || Structures::random(&mut structures).without_refusals();
    // Reopens vary options again. The varied options must hold the memory and the writes of the
    // operations.
    let mut other = |threads: usize| {
        Configuration {
            threads,
            memory_bytes: base.memory_bytes,
            ring_bytes: base.ring_bytes,
            structures: draw(),
            ..base.varied(random.bits())
        }
        .fitted()
    };
    // Each has another number of merge threads than the one before, and no two take the same turns.
    let first = 1 + (unit % 3) as usize;
    let next = |threads: usize| threads % 3 + 1;
    let subjects = vec![
        Simulated::new("simulated", seed, base.clone())?,
        Simulated::new("simulated otherwise", unit, other(next(base.threads)))?,
        Simulated::threaded("threads, simulated disk", other(first), None)?,
        Simulated::threaded(
            "threads, directory",
            other(next(first)),
            Some(scratch.join("db")),
        )?,
    ];
    replay_beside(
        &format!("operations of seed {seed} on several stores"),
        subjects,
        operations,
    )
    .map_err(Find::from)
}
