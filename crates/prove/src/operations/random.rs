//! Layer `operations`: every answer is the oracle's, under any options. A unit is a run of
//! [`random_run_on`] with its number as the seed. Most are short, since each new store has new
//! options. Some are long, since only those have tall trees and many lives.

use std::path::Path;

use terrapin_disk::SimDisk;
use terrapin_model::{minimize, random_operations, random_run_on, replay};

use crate::protocol::Protocol;
use crate::{Find, Layer, Units};

/// The most replays to reduce a failing run.
const REPLAYS_MAX: usize = 400;
/// In one run of this many, the order of the writes is checked too; that takes as long again as the
/// run, or twice.
const WATCHED_ONE_IN: u64 = 4;

pub(super) fn layer() -> Layer {
    Layer {
        name: "operations",
        counts: "operations",
        ci: 2_000_000,
        full: 20_000_000,
        units: Units::Seeds,
        alone: false,
        unit,
    }
}

/// Operations of a unit.
fn length(unit: u64) -> usize {
    match unit % 32 {
        0 => 40_000,
        1..4 => 12_000,
        _ => 3000,
    }
}

fn unit(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    let disk = SimDisk::new(unit);
    let protocol = unit
        .is_multiple_of(WATCHED_ONE_IN)
        .then(|| Protocol::watch(&disk));
    match random_run_on(unit, length(unit), disk) {
        Ok(outcome) => match protocol.map(|protocol| protocol.check()) {
            Some(Err(breach)) => Err(breach),
            _ => Ok(outcome.operations),
        },
        Err(failure) => Err(Find(format!("{failure}{}", shortest(unit)))),
    }
}

/// A failing run, reduced to the operations that matter, as a script.
fn shortest(unit: u64) -> String {
    let (configuration, all) = random_operations(unit, length(unit));
    let replays = std::cell::Cell::new(0);
    let least = minimize(all, |fewer| {
        replays.set(replays.get() + 1);
        replays.get() <= REPLAYS_MAX
            && replay("shrunk", unit, &configuration, fewer.iter().cloned()).is_err()
    });
    let lines: Vec<String> = least.iter().map(|o| format!("\n  {o}")).collect();
    format!("cut down to {} operations:{}", lines.len(), lines.concat())
}
