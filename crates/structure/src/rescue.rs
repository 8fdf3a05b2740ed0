//! What a damaged version still holds.

use terrapin_base::{Error, Message, Result};

/// The receiver of what [`crate::Version::rescue`] finds.
pub trait Rescued {
    /// A message from a sound block. The messages of one key come oldest first. `is_certain` is
    /// false if a damaged place, newer than the message, may have had a message of the key.
    fn message(&mut self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()>;
    /// A place is damaged that may have had messages of keys from `from` on, and below `to`. `None`
    /// is the end of all keys.
    fn lost(&mut self, from: &[u8], to: Option<&[u8]>, cause: &Error) -> Result<()>;
}
