//! Fuzz targets: hostile bytes never cause a panic, a hang, or allocations beyond twice their size
//! (D8).
//!
//! A target is a function of any bytes ([`Target::run`]). Layer `fuzz` gives the binaries of
//! `fuzz/` to libFuzzer. Layer `fuzz-replay` tries the committed corpus, past finds, and changes of
//! both by number; CI runs it. [`repair`] and [`repair_log`] fix checksums before the engine sees
//! the bytes, so the engine reads what they protect. `exercise.rs` then uses accepted bytes in
//! every way.

pub mod archive;
mod campaign;
mod exercise;
pub mod large;
pub mod mutate;
pub mod ranges;
pub mod repair;
pub mod repair_log;
pub mod replay;
pub mod seeds;
pub mod targets;
pub mod template;
pub mod values;

use crate::{Layer, Units};
use terrapin_model::Random;

/// A way to give hostile bytes to the engine.
pub struct Target {
    /// Its name, and that of its folders and its binary.
    pub name: &'static str,
    /// Takes bytes and panics on a breach. Returns whether nothing was wrong with the bytes.
    pub run: fn(&[u8]) -> bool,
    /// Changes an input in a way that suits the target.
    pub change: fn(&mut Vec<u8>, &mut Random, usize),
    /// The longest useful input.
    pub bytes_max: usize,
}

/// Every target.
pub const TARGETS: [Target; 17] = [
    Target {
        name: "superblock",
        run: targets::superblock,
        change: mutate::bytes,
        bytes_max: 1025,
    },
    Target {
        name: "catalog",
        run: targets::catalog,
        change: mutate::parts,
        bytes_max: 4096,
    },
    Target {
        name: "node",
        run: targets::node,
        change: mutate::parts,
        bytes_max: 16 << 10,
    },
    Target {
        name: "tiered",
        run: targets::tiered,
        change: mutate::parts,
        bytes_max: 16 << 10,
    },
    Target {
        name: "map",
        run: targets::map,
        change: mutate::parts,
        bytes_max: 16 << 10,
    },
    Target {
        name: "trie",
        run: targets::trie,
        change: mutate::parts,
        bytes_max: 16 << 10,
    },
    Target {
        name: "group",
        run: targets::group,
        change: mutate::bytes,
        bytes_max: 16 << 10,
    },
    Target {
        name: "block",
        run: targets::block,
        change: mutate::bytes,
        bytes_max: 16 << 10,
    },
    Target {
        name: "filter",
        run: targets::filter,
        change: mutate::bytes,
        bytes_max: 65 + 256,
    },
    Target {
        name: "maplet",
        run: targets::maplet,
        change: mutate::bytes,
        bytes_max: 68 + 4096,
    },
    Target {
        name: "log",
        run: targets::log,
        change: mutate::files,
        bytes_max: 64 << 10,
    },
    Target {
        name: "directory",
        run: targets::directory,
        change: mutate::files,
        bytes_max: 64 << 10,
    },
    Target {
        name: "ranges",
        run: ranges::ranges,
        change: mutate::bytes,
        bytes_max: 2 + 400 * ranges::OPERATION_BYTES,
    },
    Target {
        name: "handle",
        run: values::handle,
        change: mutate::parts,
        bytes_max: 32 << 10,
    },
    Target {
        name: "value",
        run: values::value,
        change: mutate::parts,
        bytes_max: 32 << 10,
    },
    Target {
        name: "table",
        run: values::table,
        change: mutate::parts,
        bytes_max: 32 << 10,
    },
    Target {
        name: "put-large",
        run: large::put_large,
        change: mutate::parts,
        bytes_max: 48 << 10,
    },
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Rounds of changed inputs in CI.
const ROUNDS: u64 = 20;

/// The layers of this module.
#[must_use]
pub fn layers() -> Vec<Layer> {
    let targets = TARGETS.len() as u64;
    vec![
        Layer {
            name: "fuzz-replay",
            counts: "inputs",
            ci: ROUNDS * targets * replay::CHANGED,
            full: ROUNDS * targets * replay::CHANGED,
            units: Units::Seeds,
            alone: false,
            unit: replay::unit,
        },
        Layer {
            name: "fuzz",
            counts: "seconds",
            ci: 0,
            full: targets * 600,
            units: Units::Seeds,
            alone: true,
            unit: campaign::unit,
        },
    ]
}
