//! The report of a close.

use terrapin_base::Error;

/// The report of [`Database::close`](crate::Database::close). All acknowledged writes are on stable
/// storage in any case.
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
    /// Bytes of log that the next open replays. 0 unless the disk was too full to merge all
    /// memtables.
    pub replay_bytes: u64,
    /// The reason why they were not merged, an error of kind
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace). None if `replay_bytes` is 0.
    pub cause: Option<Error>,
}
