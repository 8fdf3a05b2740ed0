//! Deliberate breakages of the engine, each of which a script must notice: the tests test.

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    Vec::new()
}
