//! One number for all memory: who took how much of it.

use crate::mutant;
use crate::sync::{Arc, AtomicU64, Ordering};

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Purpose {
    /// Arenas of active, sealed and not yet released memtables.
    Memtable,
    /// Cached data blocks.
    Blocks,
    /// Cached indexes, filters and nodes.
    Metadata,
    /// Cached records.
    Records,
    /// Buffers of a checkpoint under way: groups being built, read-ahead of merges.
    Merge,
    /// The log's ring.
    Log,
    /// The map of separated values.
    Locations,
    /// What each keyspace takes, used or not.
    Keyspaces,
}

impl Purpose {
    /// Every purpose, in the order of its number.
    pub const ALL: [Purpose; 8] = [
        Purpose::Memtable,
        Purpose::Blocks,
        Purpose::Metadata,
        Purpose::Records,
        Purpose::Merge,
        Purpose::Log,
        Purpose::Locations,
        Purpose::Keyspaces,
    ];
}

/// The memory budget: a limit, and what is charged to it. Charging never fails; who charges first
/// asks whether there is room.
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

    /// Moves the limit; who holds more than the new one gives back as soon as it can.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Counts bytes as taken.
    pub fn take(&self, purpose: Purpose, bytes: u64) {
        self.used[purpose as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes as given back.
    pub fn give(&self, purpose: Purpose, bytes: u64) {
        let before = self.used[purpose as usize].fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "gave back more than was taken");
    }

    /// Takes bytes until the returned guard is dropped.
    #[must_use]
    pub fn charge(self: &Arc<Self>, purpose: Purpose, bytes: u64) -> Charge {
        self.take(purpose, bytes);
        Charge {
            budget: self.clone(),
            purpose,
            bytes,
        }
    }

    /// Bytes held for one purpose.
    #[must_use]
    pub fn used(&self, purpose: Purpose) -> u64 {
        self.used[purpose as usize].load(Ordering::Relaxed)
    }

    /// Bytes held in all.
    #[must_use]
    pub fn used_total(&self) -> u64 {
        Purpose::ALL.iter().map(|&p| self.used(p)).sum()
    }

    /// What memtables, merges and the log leave to the caches.
    #[must_use]
    pub fn room_beside_writes(&self) -> u64 {
        let writes =
            self.used(Purpose::Memtable) + self.used(Purpose::Merge) + self.used(Purpose::Log);
        self.limit()
            .saturating_sub(writes + self.used(Purpose::Keyspaces))
    }

    /// What is left for data in the caches, as records and as blocks: all that writes and metadata
    /// leave, and half of what writes leave at least. So cached records do not take the room of
    /// what every read of a block needs.
    #[must_use]
    pub fn room_for_data(&self) -> u64 {
        let room = self.room_beside_writes();
        room.saturating_sub(self.used(Purpose::Metadata))
            .saturating_sub(self.used(Purpose::Locations))
            .max(room / 2)
    }

    /// What the page cache may take: what is left once everything else is counted.
    #[must_use]
    pub fn room_for_caches(&self) -> u64 {
        self.room_beside_writes()
            .saturating_sub(self.used(Purpose::Records))
            .saturating_sub(self.used(Purpose::Locations))
    }
}

/// Bytes charged to a [`Budget`] for as long as this lives.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    purpose: Purpose,
    bytes: u64,
}

impl Charge {
    /// Changes how many bytes are charged.
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
