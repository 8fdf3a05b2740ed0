//! Random operations beside an oracle, and the same operations under different options.

mod random;

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![random::layer()]
}
