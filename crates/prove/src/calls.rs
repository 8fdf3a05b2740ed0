//! Fail the n-th call: every call on the disk fails in turn, once or for good, and nothing acknowledged is lost (D10).

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    Vec::new()
}
