//! The scripts that must notice a mutant: cases that a sound engine passes. Most are the first
//! seeds of the general tests.

use std::path::Path;

use terrapin_disk::SimDisk;
use terrapin_model::{
    Configuration, SCRIPTS, Simulated, conformance, crash_run, crash_run_on, random_run,
};

use crate::protocol::Protocol;

/// A sequence of cases, of which one must fail.
pub enum Script {
    /// Random runs of the model beside its oracle, seeds from 1.
    Random {
        /// Number of runs.
        seeds: u64,
        /// Operations of each run.
        operations: usize,
    },
    /// Crash runs of the model, seeds from 1.
    Crash {
        /// Number of runs.
        seeds: u64,
        /// Operations of each run.
        operations: usize,
    },
    /// Crash runs of the model on a disk that [`Protocol`] watches, seeds from 1.
    Watched {
        /// Number of runs.
        seeds: u64,
        /// Operations of each run.
        operations: usize,
    },
    /// Every conformance script, under each configuration of the matrix.
    Conformance,
    /// Units of another layer, from 0.
    Layer {
        /// Name of the layer.
        name: &'static str,
        /// Number of units.
        units: u64,
    },
    /// A check of `checks.rs`: its name and its function.
    Check(&'static str, fn(&Path) -> Result<(), String>),
}

impl Script {
    /// Number of cases.
    #[must_use]
    pub fn cases(&self) -> u64 {
        match self {
            Script::Random { seeds, .. }
            | Script::Crash { seeds, .. }
            | Script::Watched { seeds, .. } => *seeds,
            Script::Conformance => Configuration::matrix().len() as u64,
            Script::Layer { units, .. } => *units,
            Script::Check(..) => 1,
        }
    }

    /// The name of a case.
    #[must_use]
    pub fn name(&self, case: u64) -> String {
        match self {
            Script::Random { operations, .. } => {
                format!("the random run of seed {} over {operations}", case + 1)
            }
            Script::Crash { operations, .. } => {
                format!("the crash run of seed {} over {operations}", case + 1)
            }
            Script::Watched { operations, .. } => {
                format!(
                    "the watched crash run of seed {} over {operations}",
                    case + 1
                )
            }
            Script::Conformance => {
                let matrix = Configuration::matrix();
                let name = matrix.get(case as usize).map_or("?", |(name, _)| name);
                format!("the {} conformance scripts, {name}", SCRIPTS.len())
            }
            Script::Layer { name, .. } => format!("unit {case} of layer {name}"),
            Script::Check(name, _) => format!("the check \"{name}\""),
        }
    }

    /// Runs a case, which may put files into the directory. An error says what the engine did
    /// wrong.
    pub fn run(&self, case: u64, scratch: &Path) -> Result<(), String> {
        match self {
            Script::Random { operations, .. } => random_run(case + 1, *operations)
                .map(drop)
                .map_err(|e| e.message),
            Script::Crash { operations, .. } => crash_run(case + 1, *operations)
                .map(drop)
                .map_err(|e| e.message),
            Script::Watched { operations, .. } => watched(case + 1, *operations),
            Script::Conformance => conform(case),
            Script::Layer { name, .. } => {
                let layers = crate::layers();
                let layer = layers.iter().find(|layer| layer.name == *name);
                let layer = layer.ok_or_else(|| format!("there is no layer {name}"))?;
                (layer.unit)(case, scratch).map(drop).map_err(|find| find.0)
            }
            Script::Check(_, check) => check(scratch),
        }
    }
}

fn watched(seed: u64, operations: usize) -> Result<(), String> {
    let disk = SimDisk::new(seed);
    let protocol = Protocol::watch(&disk);
    let run = crash_run_on(seed, operations, disk);
    protocol.check().map_err(|find| find.0)?;
    run.map(drop).map_err(|e| e.message)
}

fn conform(case: u64) -> Result<(), String> {
    let matrix = Configuration::matrix();
    let Some((name, configuration)) = matrix.get(case as usize) else {
        return Err(format!("there is no configuration {case}"));
    };
    let fresh = |script: &str| {
        Simulated::new(format!("{script}, {name}"), 1, configuration.clone())
            .unwrap_or_else(|error| panic!("a new database cannot be opened: {error}"))
    };
    conformance(fresh).map(drop).map_err(|e| e.message)
}
