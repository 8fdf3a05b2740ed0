//! Room on the disk (D10). A put that was acknowledged must be merged one day, and on a full disk
//! it could not be: so puts are refused while there is still room to merge everything that
//! memtables hold, and a memtable more, beside the log and the reserve; and new keyspaces and
//! options, which take room in the log. Large memtables need much room: where that becomes
//! *scarce*, memtables are small first, of one unit each, and puts are refused only when there is
//! not enough for those: then space is *short*. Either state is left once there is room for the
//! memtables that come then, full and one of them being merged. Deletes, clears and drops are
//! accepted all the time; merging them, deletes once they have come together
//! (`checkpoint::gather`), makes room again, and the log goes on in the files that it has
//! (`let_the_log_be_trimmed`). Only when somebody else fills the disk does a merge find no space;
//! then it takes the reserve (see `checkpoint::job`).

use terrapin_base::sync::Ordering;
use terrapin_base::{Error, ErrorKind, mutant};

use crate::engine::compactions::STRETCH_GROUPS;
use crate::engine::core::Core;
use crate::engine::state::{KeyspaceState, State};

/// What a compaction of a stretch takes at most before it lets anything go, in stretches: its
/// leaves, what buffers hold for them and for the others of the pivots that it flushes, and its
/// nodes.
const STRETCH_ROOM: u64 = 4;
/// A memtable that is sealed, the active one, what the next may hold, and what the merge of the
/// first has written.
const LASTING_MEMTABLES: u64 = 4;

/// How large memtables are.
#[derive(Clone, Copy)]
enum MemtableSize {
    /// As χ and memory have them.
    Ample,
    /// One unit.
    Small,
}

impl Core {
    /// Bytes that can still be allocated: on the disk, and in what the data file holds and does not
    /// use.
    pub fn room(&self) -> u64 {
        // A file system that does not say has room until it refuses some.
        let Ok(on_disk) = self.disk.free_bytes() else {
            return u64::MAX;
        };
        on_disk.saturating_add(self.room_in_file())
    }

    /// Bytes that the data file holds and does not use.
    fn room_in_file(&self) -> u64 {
        let used = self.store.live_bytes() + self.store.retired_bytes();
        let allocated = self.store.allocated_bytes().unwrap_or(0);
        allocated.saturating_sub(used)
    }

    /// Bytes that memtables of a state hold, and may come to hold before anybody looks again.
    /// Memory bounds that.
    fn begun(&self, state: &State, size: MemtableSize) -> u64 {
        let held = self.memtable_live_bytes(state);
        let more = self.written_limits(state, size);
        held.max(held.saturating_add(more).min(self.memtable_memory_max()))
    }

    /// Bytes of memtables that room is needed for at any time while all go on that write, `writing`
    /// bytes of limits or those of the state; one more of the usual size, where none does.
    fn lasting(&self, state: &State, size: MemtableSize, writing: u64) -> u64 {
        let another = match size {
            MemtableSize::Ample => self.limit_of_new(),
            MemtableSize::Small => self.settings.merge.group_bytes,
        };
        let each = self.written_limits(state, size).max(another).max(writing);
        let each = each.min(self.memtable_memory_max() / (LASTING_MEMTABLES - 1));
        self.begun(state, size).max(LASTING_MEMTABLES * each)
    }

    fn written_limits(&self, state: &State, size: MemtableSize) -> u64 {
        let written = self.written.written_of(state);
        written.iter().map(|k| self.limit(k, size)).sum()
    }

    /// Bytes at which a keyspace's active memtable of that size is sealed.
    fn limit(&self, keyspace: &KeyspaceState, size: MemtableSize) -> u64 {
        match size {
            MemtableSize::Ample => keyspace.shared.ample_memtable_bytes.load(Ordering::Relaxed),
            MemtableSize::Small => self.settings.merge.group_bytes,
        }
    }

    /// Bytes that must stay free for memtables of so many bytes, for what was, and what is about to
    /// be, acknowledged: eight times as much, for a merge rewrites several times what comes in
    /// before it can let go of the old pages, but never more than the trees; and files for the log.
    fn room_needed_for(&self, memtables: u64) -> u64 {
        let merges = (memtables * 8).min(memtables * 3 + self.store.live_bytes());
        let spares = self.log.as_ref().map_or(0, |log| log.spares() as u64);
        let log = self.settings.segment_bytes * 3u64.saturating_sub(spares);
        self.settings.reserve_bytes + merges + log
    }

    /// Whether there is room to compact a stretch of a tree beside what memtables will need once
    /// they are full, one among them that is not begun: nobody's put is refused for what nobody
    /// asked for. A system call.
    pub fn has_room_for_stretch(&self) -> bool {
        let state = self.state.load();
        let needed = self.room_needed_for(self.lasting(&state, MemtableSize::Ample, 0));
        let stretch = STRETCH_GROUPS * self.settings.merge.group_bytes;
        self.room() >= needed.saturating_add(STRETCH_ROOM * stretch)
            || mutant::active("compaction-ignores-room")
    }

    /// Whether there is room for all that was, and what is about to be, acknowledged: a few system
    /// calls.
    pub fn has_room(&self) -> bool {
        self.has_room_for(self.begun(&self.state.load(), MemtableSize::Ample))
    }

    /// Whether there is room for memtables of so many bytes, and for the log to go on.
    fn has_room_for(&self, memtables: u64) -> bool {
        self.room() >= self.room_needed_for(memtables) && self.log_can_grow()
    }

    /// As much, and an eighth more, so that it does not go to and fro.
    fn has_room_again_for(&self, memtables: u64) -> bool {
        self.room() >= with_an_eighth(self.room_needed_for(memtables)) && self.log_can_grow()
    }

    /// Makes memtables small where room for large ones is scarce, and refuses puts from now on if
    /// it is short, though the log give up what it has put aside. Called when memtables are sealed
    /// and as the log grows: a few system calls.
    pub fn watch_room(&self) {
        if self.log.is_none() || self.schedule.space_is_short() {
            return;
        }
        let state = self.state.load_full();
        if self.schedule.space_is_scarce() {
            if self.has_room_again_for(self.lasting(&state, MemtableSize::Ample, 0)) {
                self.set_space_is_scarce(false);
                self.plan_memory(&self.install.lock());
                // Who waits with a memtable that was full for its size may go on.
                self.schedule.released();
                return;
            }
        } else {
            if self.has_room_for(self.begun(&state, MemtableSize::Ample)) {
                return;
            }
            self.set_space_is_scarce(true);
            let mut install = self.install.lock();
            self.plan_memory(&install);
            self.seal(&mut install, KeyspaceState::is_due);
        }
        let state = self.state.load_full();
        if !self.has_room_for(self.begun(&state, MemtableSize::Small)) {
            tracing::warn!("the disk is nearly full: puts are refused until there is room");
            self.set_space_is_short(&state);
        }
    }

    /// An allocation found the disk full, or a quota met: puts are refused until there is room.
    pub fn run_short(&self, cause: &Error) {
        self.meets_quota.store(cause.is_quota(), Ordering::Relaxed);
        self.set_space_is_scarce(true);
        self.set_space_is_short(&self.state.load());
    }

    fn set_space_is_scarce(&self, scarce: bool) {
        if let Some(log) = &self.log {
            log.set_space_is_scarce(scarce);
        }
        self.schedule.set_space_is_scarce(scarce);
    }

    fn set_space_is_short(&self, state: &State) {
        let writing = self.written_limits(state, MemtableSize::Small);
        self.refused_memtable_bytes
            .store(writing, Ordering::Relaxed);
        self.refused_room_bytes
            .store(self.room(), Ordering::Relaxed);
        self.schedule.set_space_is_short(true);
        self.plan_memory(&self.install.lock());
    }

    /// Whether the log has a file to go on with, or can get one. The room within the data file is
    /// no use to it.
    fn log_can_grow(&self) -> bool {
        let free = || self.disk.free_bytes().unwrap_or(u64::MAX);
        let spares = self.log.as_ref().is_none_or(|log| log.spares() > 0);
        spares || free() >= self.settings.segment_bytes
    }

    /// Bytes of memtables that there must be room for before puts are accepted again: small ones of
    /// all that wrote.
    fn accepted_again(&self) -> u64 {
        let writing = self.refused_memtable_bytes.load(Ordering::Relaxed);
        self.lasting(&self.state.load(), MemtableSize::Small, writing)
    }

    /// Accepts puts again if there is room.
    pub fn see_whether_room_is_back(&self) {
        if self.schedule.space_is_short() && self.has_room_again_for(self.accepted_again()) {
            self.schedule.set_space_is_short(false);
            self.meets_quota.store(false, Ordering::Relaxed);
            self.plan_memory(&self.install.lock());
            self.watch_room();
        }
    }

    /// Whether puts are accepted again, for a put that is about to be refused: it need not wait for
    /// the coordinator's next look. The coordinator alone tries again a disk that refuses space and
    /// reports the same room as before: puts would have it try one failing checkpoint after the
    /// other. A few system calls.
    pub fn room_came_back(&self) -> bool {
        let refused = self.refused_room_bytes.load(Ordering::Relaxed);
        if self.room() <= with_an_eighth(refused) {
            return false;
        }
        self.see_whether_room_is_back();
        let is_back = !self.schedule.space_is_short();
        if is_back {
            // A checkpoint that failed for lack of room rests for up to ten seconds; memory may not
            // last so long.
            self.schedule.end_rest();
        }
        is_back
    }

    /// What there is no room for more in.
    pub fn what_is_full(&self) -> &'static str {
        match self.meets_quota.load(Ordering::Relaxed) {
            true => "a quota of the file system is met",
            false => "the disk is full",
        }
    }

    /// Why a put is refused.
    pub fn no_room(&self) -> Error {
        if self.meets_quota.load(Ordering::Relaxed) {
            // What is free on the disk says nothing, and what the quota leaves only the system
            // knows.
            let log = self.log.as_ref().map_or(0, |log| log.metrics().disk_bytes);
            return Error::new(
                ErrorKind::NoSpace,
                "a quota of the file system is met: raise it, or delete records; deletes are still accepted",
            )
            .with("bytes of the data file", self.store.allocated_bytes().unwrap_or(0))
            .with("bytes of the log", log)
            .with("bytes free in the data file", self.room_in_file());
        }
        let needed = with_an_eighth(self.room_needed_for(self.accepted_again()));
        let error = Error::new(
            ErrorKind::NoSpace,
            "the disk is full; deletes are still accepted",
        )
        .with("bytes free", self.room())
        .with("bytes needed", needed);
        match self.log_can_grow() {
            true => error,
            false => error.with("bytes of a log file", self.settings.segment_bytes),
        }
    }
}

fn with_an_eighth(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 8)
}
