//! Random operations beside an oracle, the same operations under different options, what space they
//! leave in use, and what they cost.

mod costs;
mod metamorphic;
mod random;
mod space;

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![
        random::layer(),
        metamorphic::layer(),
        space::layer(),
        costs::layer(),
    ]
}
