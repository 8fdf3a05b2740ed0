//! Media faults: flipped, lost, stale and misdirected writes are noticed and never change an answer (D8).

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    Vec::new()
}
