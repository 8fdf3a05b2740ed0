//! The memory budget: one limit for all memory, and how much of it each purpose uses.

use crate::mutant;
use crate::sync::{Arc, AtomicU64, Ordering};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Purpose {
    /// Arenas of memtables: active, sealed, and not released yet.
    Memtable,
    /// Cached data blocks.
    Blocks,
    /// Cached indexes, filters and nodes.
    Metadata,
    /// Cached records.
    Records,
    /// Buffers of a running checkpoint: page groups that are built, and read-ahead of merges.
    Merge,
    /// The log's ring.
    Log,
    /// The map of separated values.
    Locations,
    /// What each keyspace takes, used or not.
    Keyspaces,
    /// What open transactions have read and written.
    Transactions,
}

impl Purpose {
    /// Every purpose, in the order of its number.
    pub const ALL: [Purpose; 9] = [
        Purpose::Memtable,
        Purpose::Blocks,
        Purpose::Metadata,
        Purpose::Records,
        Purpose::Merge,
        Purpose::Log,
        Purpose::Locations,
        Purpose::Keyspaces,
        Purpose::Transactions,
    ];
}

/// The memory budget: a limit, and what is charged to it. A charge never fails; callers check for
/// room first.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: [AtomicU64; Purpose::ALL.len()],
}

impl Budget {
    /// A budget of `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Budget {
            limit: AtomicU64::new(limit_bytes),
            used: Default::default(),
        })
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Holders of memory above the new limit release it as soon as they can.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Charges bytes to a purpose.
    pub fn take(&self, purpose: Purpose, bytes: u64) {
        self.used[purpose as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases bytes that were charged to a purpose.
    pub fn give(&self, purpose: Purpose, bytes: u64) {
        let before = self.used[purpose as usize].fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "gave back more than was taken");
    }

    /// Charges bytes until the returned guard is dropped.
    #[must_use]
    pub fn charge(self: &Arc<Self>, purpose: Purpose, bytes: u64) -> Charge {
        self.take(purpose, bytes);
        Charge {
            budget: self.clone(),
            purpose,
            bytes,
        }
    }

    /// Bytes charged to one purpose.
    #[must_use]
    pub fn used(&self, purpose: Purpose) -> u64 {
        self.used[purpose as usize].load(Ordering::Relaxed)
    }

    /// Bytes charged to all purposes.
    #[must_use]
    pub fn used_total(&self) -> u64 {
        Purpose::ALL.iter().map(|&p| self.used(p)).sum()
    }

    /// Bytes that memtables, merges and the log leave to the caches.
    #[must_use]
    pub fn room_beside_writes(&self) -> u64 {
        let writes =
            self.used(Purpose::Memtable) + self.used(Purpose::Merge) + self.used(Purpose::Log);
        let fixed = self.used(Purpose::Keyspaces) + self.used(Purpose::Transactions);
        self.limit().saturating_sub(writes + fixed)
    }

    /// Bytes for data in the caches, as records and as blocks: what writes and metadata leave, but
    /// at least half of what writes leave. So cached records do not displace the metadata that
    /// every read of a block needs.
    #[must_use]
    pub fn room_for_data(&self) -> u64 {
        let room = self
            .room_beside_writes()
            .saturating_sub(self.used(Purpose::Locations));
        room.saturating_sub(self.used(Purpose::Metadata))
            .max(room / 2)
    }

    /// Bytes for the page cache: what all other purposes leave.
    #[must_use]
    pub fn room_for_caches(&self) -> u64 {
        self.room_beside_writes()
            .saturating_sub(self.used(Purpose::Records))
            .saturating_sub(self.used(Purpose::Locations))
    }
}

/// Bytes that are charged to a [`Budget`] until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    purpose: Purpose,
    bytes: u64,
}

impl Charge {
    /// Changes the number of charged bytes.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.take(self.purpose, bytes - self.bytes);
        } else {
            self.budget.give(self.purpose, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if mutant::active("merge-memory-never-returned") && self.purpose == Purpose::Merge {
            return;
        }
        self.budget.give(self.purpose, self.bytes);
    }
}
