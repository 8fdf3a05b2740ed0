//! Layers with the real kernel: killed processes, power cuts of real file systems, full disks,
//! system limits, bad sectors.
//!
//! A child process (this binary, see [`child`]) writes and reports acknowledgements. It is killed,
//! or its file system is shut down, and the next open's content is judged. The scheduler decides
//! the exact moment. So a seed repeats what was written and the planned moment, but not the call
//! that it hits; a find therefore keeps the directory.

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

/// The layers of this module.
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
            // All cases and a share of each store's mutilated files, whose number differs.
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
