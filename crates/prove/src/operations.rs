//! Random operations beside an oracle, and the same operations under different options.

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    Vec::new()
}
