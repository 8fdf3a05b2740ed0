//! Crash points: the process is killed, or the power fails, at every call on the disk and every
//! store into the log's ring, recoveries included (D1 to D7).
//!
//! The disk is forked at each call, so a workload runs once for all its deaths. After each death
//! the store must survive (`survive.rs`): twice it holds a prefix of the commits with everything
//! that had to survive. It verifies clean, continues to work, and survives again.

mod depths;
mod places;
mod random;
mod survive;
mod walk;
mod workload;
mod workloads;

use std::path::Path;

use terrapin_model::{Random, Structures};

use self::depths::descend;
use self::survive::survive;
use self::walk::walk;
use self::workload::Workload;

use crate::{Find, Layer, Units};

/// The layers of this module.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![
        Layer {
            name: "crash-points",
            counts: "crash points",
            ci: 20_000,
            full: 110_000,
            units: Units::Fixed(workloads::all().count() as u64),
            alone: false,
            unit: points,
        },
        Layer {
            name: "crash-depths",
            counts: "crash points",
            ci: 3_000,
            full: 10_000,
            units: Units::Seeds,
            alone: false,
            unit: depths,
        },
        Layer {
            name: "crash-random",
            counts: "crash points",
            ci: 5_000,
            full: 20_000,
            units: Units::Seeds,
            alone: false,
            unit: random_points,
        },
    ]
}

/// Every death of one workload.
fn points(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    let course = workload_of(unit)?.read()?;
    let mut tried = 0;
    walk(&course, unit, 1, &mut |place, scene| {
        for death in place.deaths() {
            survive(death, scene)?;
            tried += 1;
        }
        Ok(())
    })?;
    Ok(tried)
}

/// A few deaths of one workload, deaths in the recoveries from them, and deaths in the recoveries
/// from those.
fn depths(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    let mut random = Random::new(unit);
    let mut course = workload_of(random.below(workloads::all().count() as u64))?.read()?;
    if course.configuration.structures == Structures::Leveled {
        course.configuration.structures = Structures::random(&mut Random::new(!unit));
    }
    let mut choice = random.fork();
    let mut tried = 0;
    walk(&course, random.bits(), 60, &mut |place, scene| {
        let mut deaths = place.deaths();
        let death = deaths.swap_remove(choice.index(deaths.len()));
        tried += descend(death, scene, 2, &mut choice)?;
        Ok(())
    })?;
    Ok(tried)
}

/// Some deaths of a random workload.
fn random_points(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    let mut tried = 0;
    let mut random = Random::new(unit);
    walk(&random::course(unit), unit, 40, &mut |place, scene| {
        let mut deaths = place.deaths();
        for _ in 0..3 {
            let death = deaths.swap_remove(random.index(deaths.len()));
            survive(death, scene)?;
            tried += 1;
        }
        Ok(())
    })?;
    Ok(tried)
}

fn workload_of(number: u64) -> Result<&'static Workload, Find> {
    workloads::all()
        .nth(usize::try_from(number)?)
        .ok_or_else(|| Find(format!("there is no workload {number}")))
}
