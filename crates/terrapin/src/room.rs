//! Room on the disk (D10). A put that was acknowledged must be merged one day, and on a full disk it could not be: so puts are refused
//! while there is still room to merge everything that windows hold, and a window more, beside the log and the reserve; and new keyspaces and
//! options, which take room in the log. Deletes, clears and drops are accepted all the time; merging them makes room again, and the log goes
//! on in the files that it has (`let_the_log_be_trimmed`). Only when somebody else fills the disk does a merge find no space; then it takes the
//! reserve (see `checkpoint::job`).

use std::sync::Arc;

use terrapin_base::mutant;
use terrapin_base::sync::Ordering;

use crate::compaction::STRETCH_GROUPS;
use crate::core::Core;
use crate::cut::{is_written, window_live_bytes};
use crate::state::KeyspaceState;

/// What a compaction of a stretch takes at most before it lets anything go, in stretches: its leaves, what buffers hold for them and for the others
/// of the pivots that it flushes, and its nodes.
const STRETCH_ROOM: u64 = 4;

impl Core {
    /// Bytes that can still be allocated: on the disk, and in what the data file holds and does not use.
    fn room(&self) -> u64 {
        // A file system that does not say has room until it refuses some.
        let Ok(on_disk) = self.disk.free_bytes() else {
            return u64::MAX;
        };
        let used = self.store.live_bytes() + self.store.retired_bytes();
        let in_file = self
            .store
            .allocated_bytes()
            .unwrap_or(0)
            .saturating_sub(used);
        on_disk.saturating_add(in_file)
    }

    /// Bytes that must stay free for what was, and what is about to be, acknowledged: eight times what windows hold and may hold, for a
    /// merge rewrites several times what comes in before it can let go of the old pages, but never more than the trees; and files for the log.
    fn room_needed(&self) -> u64 {
        let state = self.state.load();
        let writing = state.keyspaces.iter().filter(|k| is_written(k));
        let limits: u64 = writing.map(window_limit).sum();
        self.room_needed_for(window_live_bytes(&state) + limits)
    }

    /// As much, for windows of so many bytes.
    fn room_needed_for(&self, windows: u64) -> u64 {
        let merges = (windows * 8).min(windows * 3 + self.store.live_bytes());
        let spares = self.log.as_ref().map_or(0, |log| log.spares() as u64);
        let log = self.settings.segment_bytes * 3u64.saturating_sub(spares);
        self.settings.reserve_bytes + merges + log
    }

    /// Whether there is room to compact a stretch of a tree beside what windows will need once they are full, one among them that is not begun:
    /// nobody's put is refused for what nobody asked for. A system call.
    pub fn has_room_for_stretch(&self) -> bool {
        let state = self.state.load();
        let (writing, resting): (Vec<_>, Vec<_>) =
            state.keyspaces.iter().partition(|k| is_written(k));
        let limits: u64 = writing.into_iter().map(window_limit).sum();
        let begun = resting.into_iter().map(window_limit).max();
        // A sealed one, an active one, and what the next may hold.
        let needed = self.room_needed_for(3 * (limits + begun.unwrap_or(0)));
        let stretch = STRETCH_GROUPS * self.settings.merge.group_bytes;
        self.room() >= needed.saturating_add(STRETCH_ROOM * stretch) || mutant::active(78)
    }

    /// Whether there is room for all that was, and what is about to be, acknowledged: a few system calls.
    pub fn has_room(&self) -> bool {
        self.room() >= self.room_needed() && self.log_can_grow()
    }

    /// Refuses puts from now on if room is short, though the log give up what it has put aside. Called when windows are cut and as the
    /// log grows: a few system calls.
    pub fn watch_room(&self) {
        let Some(log) = &self.log else { return };
        if self.schedule.space_is_short() {
            return;
        }
        let (room, needed) = (self.room(), self.room_needed());
        if room >= needed && self.log_can_grow() {
            if room >= needed.saturating_add(needed / 8) {
                log.set_space_is_scarce(false);
            }
            return;
        }
        log.set_space_is_scarce(true);
        if !self.has_room() {
            tracing::warn!("the disk is nearly full: puts are refused until there is room");
            self.schedule.set_space_is_short(true);
            self.rebalance(&self.install.lock());
        }
    }

    /// An allocation found the disk full: puts are refused until there is room.
    pub fn run_short(&self) {
        if let Some(log) = &self.log {
            log.set_space_is_scarce(true);
        }
        self.schedule.set_space_is_short(true);
    }

    /// Whether the log has a file to go on with, or can get one. The room within the data file is no use to it.
    fn log_can_grow(&self) -> bool {
        let free = || self.disk.free_bytes().unwrap_or(u64::MAX);
        let spares = self.log.as_ref().is_none_or(|log| log.spares() > 0);
        spares || free() >= self.settings.segment_bytes
    }

    /// Accepts puts again if there is room, and an eighth more, so that it does not go to and fro.
    pub fn see_whether_room_is_back(&self) {
        let needed = self.room_needed();
        if self.schedule.space_is_short()
            && self.room() >= needed.saturating_add(needed / 8)
            && self.log_can_grow()
        {
            if let Some(log) = &self.log {
                log.set_space_is_scarce(false);
            }
            self.schedule.set_space_is_short(false);
            self.rebalance(&self.install.lock());
        }
    }
}

/// Bytes at which a keyspace's active window is cut.
fn window_limit(keyspace: &Arc<KeyspaceState>) -> u64 {
    keyspace.shared.window_bytes.load(Ordering::Relaxed)
}
