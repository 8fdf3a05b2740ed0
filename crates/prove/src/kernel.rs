//! The real kernel: killed processes, power cuts of real file systems, full disks, bad sectors.

use crate::Layer;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    Vec::new()
}

/// Does the work of a child process of this layer when the arguments say that this is one.
#[must_use]
pub fn child(_arguments: &[String]) -> Option<std::process::ExitCode> {
    None
}
