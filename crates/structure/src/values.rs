//! What a merge asks and tells about values that are stored outside of the structure.

use std::fmt::Debug;

use terrapin_base::{Result, Slice};

/// The values that a structure's handles name. A structure stores handles as they come, and tells
/// here which of them a merge ends.
pub trait Values: Send + Sync + Debug {
    /// The value of a handle of `key`: a merge applies operands to it.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if it cannot be found or is damaged; those of reads.
    fn value(&self, key: &[u8], handle: &[u8]) -> Result<Slice>;
    /// A merge ended the version of this handle, whatever ended it. Each version is reported once.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] for bytes that are no handle.
    fn dropped(&self, handle: &[u8]) -> Result<()>;
}
