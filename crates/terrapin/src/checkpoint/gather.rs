//! Deletes that come together on a full disk (D10, decision 0029).
//!
//! A leaf that loses one record of twenty is written anew hardly shorter, with all that buffers
//! hold for it, while the segments that held that stay. So scattered deletes take room before they
//! give any, the less the more of them a leaf gets at once. While puts are refused they are not
//! merged as they come: they wait in memtables until no more have come for a while, the log writes
//! its last file, a memtable is full, or somebody asks for a checkpoint.

use crate::engine::core::Core;

/// No more have come for so long, or they wait for so long, in nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;
const LONG_NS: u64 = 10_000_000_000;

/// What deletes wait for, and since when.
#[derive(Default)]
pub(super) struct Gathering {
    /// Deletes that there had been at the last look, and since when there were no more.
    deletes: u64,
    quiet_since_ns: u64,
    /// Since when some wait.
    since_ns: Option<u64>,
}

impl Gathering {
    /// Whether deletes go on to wait, as far as time decides. To be asked every second while the
    /// disk is full. A look at each keyspace.
    pub fn go_on(&mut self, core: &Core) -> bool {
        if !core.schedule.space_is_short() || !Self::has_some(core) {
            self.since_ns = None;
            return true;
        }
        let (now_ns, deletes) = (core.env.now_ns(), core.counters.deletes.get());
        if self.since_ns.is_none() || deletes != self.deletes {
            (self.deletes, self.quiet_since_ns) = (deletes, now_ns);
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let quiet = now_ns.saturating_sub(self.quiet_since_ns);
        let waited = now_ns.saturating_sub(since_ns);
        quiet < QUIET_NS && waited < LONG_NS
    }

    /// Whether a memtable has something that could be merged.
    pub fn has_some(core: &Core) -> bool {
        let state = core.state.load();
        let noted = core.written.noted_of(&state);
        noted.iter().any(|k| !k.active.memtable.is_empty())
    }

    /// Whether the log has a file to go on with after the one that it writes.
    pub fn log_has_room(core: &Core) -> bool {
        core.log.as_ref().is_some_and(|log| log.spares() > 0)
    }
}
