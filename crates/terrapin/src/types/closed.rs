//! What a close reports.

use terrapin_base::Error;

/// What [`Database::close`](crate::Database::close) did. Everything acknowledged is on stable
/// storage either way.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-closed-{}", std::process::id()));
/// let database = terrapin::Database::open(&directory)?;
/// database.default_keyspace().put("a", "1")?;
/// let closed = database.close()?;
/// assert_eq!(closed.replay_bytes, 0);
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Closed {
    /// Bytes of log that the next open replays: 0, unless the disk was too full to merge what
    /// memory held.
    pub replay_bytes: u64,
    /// Why they were not merged: an error of kind
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace). None where `replay_bytes` is 0.
    pub cause: Option<Error>,
}
