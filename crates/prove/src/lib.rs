//! Looks for breaches of Terrapin's promises (docs/DURABILITY.md), in layers from the simulated
//! disk to the real kernel.
//!
//! A [`Layer`] tries numbered units, and each can be repeated by its number. [`run`] goes through
//! them. The [`Ledger`] records what was tried, at which commit, and what was found.
//! docs/TESTING.md explains each layer.

#![forbid(unsafe_code)]

mod build;
pub mod calls;
pub mod crash;
pub mod fuzz;
pub mod interleave;
pub mod kernel;
mod layer;
mod ledger;
pub mod linear;
pub mod media;
pub mod mutants;
pub mod operations;
mod place;
mod process;
pub mod protocol;
mod run;

pub use layer::{Find, Layer, Units};
pub use ledger::{Entry, Ledger};
pub use run::{Amount, Summary, run};

/// Every layer, cheap and simulated ones first.
#[must_use]
pub fn layers() -> Vec<Layer> {
    [
        operations::layers(),
        crash::layers(),
        calls::layers(),
        media::layers(),
        interleave::layers(),
        linear::layers(),
        kernel::layers(),
        mutants::layers(),
        fuzz::layers(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
