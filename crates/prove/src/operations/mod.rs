//! Random operations beside an oracle, and the same operations under different options.

mod metamorphic;
mod random;

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![random::layer(), metamorphic::layer()]
}
