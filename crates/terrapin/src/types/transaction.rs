//! Options of transactions.

use std::time::Duration;

use terrapin_base::Lsn;

use crate::types::options::Durability;

/// The end of a transaction's record in the log. A [`crate::Snapshot`] has the transaction if its
/// [`crate::Snapshot::lsn`] is not below.
pub type CommitLsn = Lsn;

/// What a transaction is protected from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Transactions have the effect of some order, one after another. A transaction conflicts with
    /// another write of a key that it read or wrote, also of a key that a range would have shown.
    #[default]
    Serializable,
    /// A transaction conflicts with another write of a key that it wrote or read for update
    /// ([`crate::Transaction::get_for_update`]). Two transactions may each read what the other one
    /// writes (*write skew*). Reads are not remembered.
    Snapshot,
}

/// Options of a transaction.
///
/// ```
/// use terrapin::{Durability, Isolation, TransactionOptions};
/// let options = TransactionOptions::new()
///     .isolation(Isolation::Snapshot)
///     .durability(Durability::Sync);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TransactionOptions {
    pub(crate) isolation: Isolation,
    pub(crate) durability: Option<Durability>,
    pub(crate) age_max: Option<Duration>,
    pub(crate) read_bytes_max: usize,
    pub(crate) attempts_max: u32,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        TransactionOptions {
            isolation: Isolation::Serializable,
            durability: None,
            age_max: None,
            read_bytes_max: 16 << 20,
            attempts_max: 100,
        }
    }
}

impl TransactionOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the transaction is protected from. Default: [`Isolation::Serializable`].
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// The durability of the commit. Default: that of the database. A transaction of
    /// [`Durability::None`] is refused: without the log it could not commit as a whole.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// The age from which on the calls of a transaction fail with
    /// [`Conflict`](crate::ErrorKind::Conflict). An open transaction keeps pages and memory, as a
    /// snapshot does. Default: no limit.
    pub fn age_max(mut self, age: Duration) -> Self {
        self.age_max = Some(age);
        self
    }

    /// The most bytes of memory for the keys that a serializable transaction has read. A read above
    /// it fails with [`TooLarge`](crate::ErrorKind::TooLarge). A read key takes 32 bytes and its
    /// length, however often it is read. Default: 16 MiB.
    pub fn read_bytes_max(mut self, bytes: usize) -> Self {
        self.read_bytes_max = bytes;
        self
    }

    /// The attempts of [`crate::Database::transact`], at least one. Default: 100.
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }
}
