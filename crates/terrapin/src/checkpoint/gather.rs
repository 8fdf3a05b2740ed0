//! [`Gathering`]: deletes that wait in memtables on a full disk (D10, decision 0029).
//!
//! A leaf that loses one of twenty records is rewritten hardly shorter, together with all that
//! buffers hold for it. The segments that held those messages stay. Scattered deletes therefore
//! take room before they free any. The more deletes a leaf gets at once, the less room that takes.
//! While the engine refuses puts, it lets deletes wait in memtables. Four events end the wait: no
//! more deletes arrive for a while, the log writes its last file, a memtable is full, or a caller
//! asks for a checkpoint.

use crate::engine::core::Core;

/// Deletes are merged after this time without a new delete, or after waiting this long, in
/// nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;
const LONG_NS: u64 = 10_000_000_000;

/// The deletes that wait, and since when.
#[derive(Default)]
pub(super) struct Gathering {
    /// Number of deletes at the last check, and the time since which that number is the same.
    deletes: u64,
    quiet_since_ns: u64,
    /// The time since which a delete waits.
    since_ns: Option<u64>,
}

impl Gathering {
    /// Whether deletes may wait longer, as far as time decides. The coordinator calls this every
    /// second on a full disk. O(written keyspaces).
    pub fn go_on(&mut self, core: &Core) -> bool {
        if !core.schedule.disk_is_full() || !Self::has_some(core) {
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

    /// Whether a memtable holds something that a checkpoint could merge.
    pub fn has_some(core: &Core) -> bool {
        let state = core.state.load();
        let noted = core.written.noted_of(&state);
        noted.iter().any(|k| !k.active.memtable.is_empty())
    }

    /// Whether the log has another file to use after the current one.
    pub fn log_has_room(core: &Core) -> bool {
        core.log.as_ref().is_some_and(|log| log.spares() > 0)
    }
}
