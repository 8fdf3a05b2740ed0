//! What conditional writes answer and ask: [`Conflict`], [`Version`], [`Requirement`].

use std::fmt;

use terrapin_base::{Error, ErrorKind, Lsn, Slice};
use terrapin_recordcache::Collection;
use terrapin_wal::LifeId;

/// Why a conditional write or a transaction did not happen. Nothing was written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Conflict {
    /// The keyspace's name.
    pub keyspace: Box<str>,
    /// The key whose condition does not hold, or that changed. Of a cleared keyspace, some key that
    /// the transaction read or wrote.
    pub key: Box<[u8]>,
    /// What was in the way.
    pub cause: ConflictCause,
}

/// What was in the way of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictCause {
    /// The key has this value, or none, and the condition asks for another.
    Value(Option<Slice>),
    /// The key has a value that is too long to be returned, and the condition asks for another.
    Large,
    /// The key has changed, or may have, since its [`Version`] or the transaction read it.
    Changed,
    /// The keyspace was cleared or dropped since the transaction began.
    Cleared,
    /// Other writers changed the key between each read and the write after it.
    Busy,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.escape_ascii();
        write!(f, "key \"{key}\" of keyspace \"{}\" ", self.keyspace)?;
        match &self.cause {
            ConflictCause::Value(Some(_)) => f.write_str("has another value"),
            ConflictCause::Value(None) => f.write_str("has no value"),
            ConflictCause::Large => f.write_str("has another value, which is large"),
            ConflictCause::Changed => f.write_str("may have changed since it was read"),
            ConflictCause::Cleared => f.write_str("is gone: the keyspace was cleared or dropped"),
            ConflictCause::Busy => f.write_str("was changed by other writers at each attempt"),
        }
    }
}

impl std::error::Error for Conflict {}

impl Conflict {
    /// The error of a call that returns no `Conflict`.
    pub(crate) fn error(self) -> Error {
        let message = "the condition of the write does not hold";
        Error::new(ErrorKind::Conflict, message).with("conflict", self)
    }
}

/// The state of a key when it was read ([`crate::Keyspace::get_versioned`]). It means "unchanged
/// since then", and has no order and no equality.
///
/// A version lasts until the keyspace's memtable is merged into its tree, and not longer than the
/// database is open. After that a write with it is a [`Conflict`]: read the key again.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    pub(crate) life: Option<LifeId>,
    pub(crate) collection: Collection,
    /// The reader saw each record below this LSN.
    pub(crate) before: Lsn,
    /// The deadline of the value, in milliseconds since 1970.
    pub(crate) deadline_ms: Option<u64>,
}

/// A condition of a batch ([`crate::Batch::require`]).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Requirement {
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The key has this value.
    Equals(Box<[u8]>),
    /// The key is unchanged since this version was read from its keyspace.
    Version(Version),
}

impl Requirement {
    /// The key has this value.
    ///
    /// ```
    /// use terrapin::Requirement;
    /// let asks = Requirement::equals("sweet");
    /// assert!(matches!(asks, Requirement::Equals(value) if *value == *b"sweet"));
    /// ```
    pub fn equals(value: impl AsRef<[u8]>) -> Self {
        Requirement::Equals(value.as_ref().into())
    }
}
