//! Fuzz targets: hostile bytes never panic, hang, or make us allocate beyond twice their size (D8).

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    Vec::new()
}
