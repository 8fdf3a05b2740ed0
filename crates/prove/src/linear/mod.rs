//! Histories of concurrent clients, kills included, are linearizable: whatever several threads did
//! with a few keys, there is one order of it that a map could have had, and that agrees with who
//! was done before whom began.
//!
//! The judge is not ours: a small Go program (`crates/prove/linearize`) around the module
//! porcupine. Threads are real, so a number gives the same clients, options and kills but not the
//! same interleaving; a find therefore shows the shortest part of its history that is wrong, and
//! keeps the whole.
//!
//! A write that was under way when its process died happened before the death or never: what it did
//! must not appear later.

mod clients;
mod history;
mod judge;
mod killed;
mod living;

use std::path::Path;

use crate::{Find, Layer, Units};

pub use history::{History, Kind, Operation};
pub use judge::judge;
pub use killed::child;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![Layer {
        name: "histories",
        counts: "histories",
        ci: 400,
        full: 6000,
        units: Units::Seeds,
        alone: false,
        unit,
    }]
}

fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
    match unit % 3 {
        0 => killed::unit(unit, scratch),
        1 => living::unit(unit, scratch, living::Place::Directory),
        _ => living::unit(unit, scratch, living::Place::Simulated),
    }
}
