//! [`Measure`]: the room on the disk at one moment, and what memtables need of it (D10).
//!
//! The free space of the file system is read once, by one system call. Each need costs a walk over
//! the written keyspaces, so the caller asks only for those that decide.

use std::sync::Arc;

use terrapin_base::sync::Ordering;

use crate::engine::core::Core;
use crate::engine::state::{KeyspaceState, State};
use crate::planning::disk_state::{Need, Room};

/// Memtables that need room at any time while the same keyspaces are written: the sealed one, the
/// active one, what the next one may hold, and what the merge of the first has written.
const LASTING_MEMTABLES: u64 = 4;

/// How large memtables are.
#[derive(Clone, Copy)]
enum MemtableSize {
    /// As large as χ and memory allow.
    Ample,
    /// One unit of L bytes.
    Small,
}

/// The room on the disk at one moment.
pub(super) struct Measure<'a> {
    core: &'a Core,
    state: Arc<State>,
    /// Free bytes of the file system. `u64::MAX` if it does not say: it then has room until it
    /// refuses some.
    on_disk_bytes: u64,
}

impl<'a> Measure<'a> {
    /// Reads the room and the state. One system call.
    pub fn new(core: &'a Core) -> Self {
        Measure {
            core,
            state: core.state.load_full(),
            on_disk_bytes: core.disk.free_bytes().unwrap_or(u64::MAX),
        }
    }

    /// What can still be allocated, and whether the log can go on.
    pub fn room(&self) -> Room {
        let core = self.core;
        let has_spare = core.log.as_ref().is_none_or(|log| log.spares() > 0);
        Room {
            bytes: self.on_disk_bytes.saturating_add(in_file_bytes(core)),
            can_log_grow: has_spare || self.on_disk_bytes >= core.settings.segment_bytes,
        }
    }

    /// Bytes that must be free for a need: for the memtables themselves, their merges, the log's
    /// next files, and the reserve. O(written keyspaces).
    pub fn needed_bytes(&self, need: Need) -> u64 {
        let memtable_bytes = match need {
            Need::BegunAmple => self.begun_bytes(MemtableSize::Ample),
            Need::LastingAmple => self.lasting_bytes(MemtableSize::Ample, 0),
            Need::BegunSmall => self.begun_bytes(MemtableSize::Small),
            Need::LastingSmall => {
                let refused_bytes = self.core.refusal.lock().memtable_bytes;
                self.lasting_bytes(MemtableSize::Small, refused_bytes)
            }
        };
        self.with_merges_and_log(memtable_bytes)
    }

    /// Bytes of one small memtable for each written keyspace.
    pub fn small_memtables_bytes(&self) -> u64 {
        self.written_limits(MemtableSize::Small)
    }

    /// Bytes that memtables hold now, plus those that they may add before the next measure. The
    /// memory budget bounds the sum.
    fn begun_bytes(&self, size: MemtableSize) -> u64 {
        let held = self.core.memtable_live_bytes(&self.state);
        let more = self.written_limits(size);
        held.max((held.saturating_add(more)).min(self.core.memtable_memory_max()))
    }

    /// Bytes of memtables that need room at any time while the written keyspaces go on. Counts at
    /// least one memtable of that size, and at least `writing_bytes` for all active ones.
    fn lasting_bytes(&self, size: MemtableSize, writing_bytes: u64) -> u64 {
        let one = match size {
            MemtableSize::Ample => self.core.limit_of_new(),
            MemtableSize::Small => self.core.settings.merge.group_bytes,
        };
        let active = self.written_limits(size).max(one).max(writing_bytes);
        let active = active.min(self.core.memtable_memory_max() / (LASTING_MEMTABLES - 1));
        self.begun_bytes(size).max(LASTING_MEMTABLES * active)
    }

    /// The limits of the active memtables of all written keyspaces.
    fn written_limits(&self, size: MemtableSize) -> u64 {
        let limit = |keyspace: &&Arc<KeyspaceState>| match size {
            MemtableSize::Ample => keyspace.shared.ample_memtable_bytes.load(Ordering::Relaxed),
            MemtableSize::Small => self.core.settings.merge.group_bytes,
        };
        self.core
            .written
            .written_of(&self.state)
            .iter()
            .map(limit)
            .sum()
    }

    /// Bytes that must be free for memtables of this many bytes. A merge rewrites several times
    /// what comes in before it frees old pages: eight times as much, but no more than the trees.
    /// The log needs three files more.
    fn with_merges_and_log(&self, memtable_bytes: u64) -> u64 {
        let core = self.core;
        let merges = (memtable_bytes * 8).min(memtable_bytes * 3 + core.store.live_bytes());
        let spares = core.log.as_ref().map_or(0, |log| log.spares() as u64);
        let log = core.settings.segment_bytes * 3u64.saturating_sub(spares);
        core.store.reserve_wanted_bytes() + merges + log
    }
}

/// Bytes that the data file holds and does not use.
pub(super) fn in_file_bytes(core: &Core) -> u64 {
    let holes = core.store.hole_bytes();
    let used = (core.store.live_bytes() + core.store.retired_bytes())
        .saturating_sub(holes.0.saturating_add(holes.1));
    let allocated = core.store.allocated_bytes().unwrap_or(0);
    allocated.saturating_sub(used)
}
