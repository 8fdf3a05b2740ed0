//! Random operations beside an oracle, the same operations under different options, the space they
//! leave in use, and their cost.

mod costs;
mod metamorphic;
mod random;
mod space;

use crate::Layer;

/// The layers of this module.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![
        random::layer(),
        metamorphic::layer(),
        space::layer(),
        costs::layer(),
    ]
}
