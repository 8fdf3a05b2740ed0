//! The real kernel: killed processes, power cuts of real file systems, full disks, limits of the
//! system, bad sectors.
//!
//! A child process (this binary again, see [`child`]) writes and reports what was acknowledged; it
//! is killed, or its file system is shut down under it, and what the next open finds is judged.
//! When it dies is up to the scheduler, so a seed repeats what was written and the chosen moment,
//! but not the very call at which it hits; a find therefore keeps the directory.

mod child;
mod file_system;
mod judge;
mod kills;
mod life;
mod plan;
mod power;
mod report;
mod sectors;
mod system;

use crate::{Layer, Units};

pub use child::child;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![
        Layer {
            name: "kills",
            counts: "kills",
            ci: 40,
            full: 100,
            units: Units::Seeds,
            alone: false,
            unit: kills::unit,
        },
        Layer {
            name: "power-ext4",
            counts: "power cuts",
            ci: 12,
            full: 50,
            units: Units::Seeds,
            alone: false,
            unit: power::ext4,
        },
        Layer {
            name: "power-xfs",
            counts: "power cuts",
            ci: 6,
            full: 20,
            units: Units::Seeds,
            alone: false,
            unit: power::xfs,
        },
        Layer {
            name: "system",
            counts: "cases",
            // All cases and a share of the mutilated files of each store, of which the number
            // differs.
            ci: 130,
            full: 300,
            units: Units::Fixed(system::UNITS),
            alone: false,
            unit: system::unit,
        },
        Layer {
            name: "bad-sectors",
            counts: "flips",
            ci: 1000,
            full: 15_000,
            units: Units::Fixed(sectors::UNITS),
            alone: false,
            unit: sectors::unit,
        },
    ]
}
