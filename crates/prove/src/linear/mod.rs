//! Layer `histories`: histories of concurrent clients, kills included, are linearizable. Some order
//! of all operations on a few keys could have happened on a map, and it agrees with which operation
//! ended before which began.
//!
//! The judge is independent: a small Go program (`crates/prove/linearize`) around the module
//! porcupine. Threads are real. A number repeats the clients, options and kills but not the
//! interleaving, so a find shows the shortest wrong part of its history and keeps the whole.
//!
//! A write in progress when its process died took effect before the death or never: it must not
//! appear later.

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

/// The layers of this module.
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
        1 => living::unit(unit, scratch, living::StoreKind::Directory),
        _ => living::unit(unit, scratch, living::StoreKind::Simulated),
    }
}
