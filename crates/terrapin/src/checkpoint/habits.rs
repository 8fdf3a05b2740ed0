//! What users do with each keyspace between its merges. A keyspace with tiered buffers keeps fewer
//! sorted runs while it is read as often as it is written, and it has maplets over them while gets
//! are not rare.

use std::collections::BTreeMap;

use terrapin_base::KeyspaceId;

use crate::engine::state::KeyspaceState;
use crate::metrics::KeyspaceMetrics;

/// Fewer reads do not show that a keyspace is read.
const TELLING_READS: u64 = 4096;
/// Sorted runs of a keyspace that is read.
const RUNS_OF_READ: u32 = 8;
/// A maplet costs each record some 45 ns and one read of its block, and saves a get up to 400 ns
/// and several reads. So maplets are worth while from one get in this many writes on.
const WRITES_OF_GET: u64 = 8;

/// What the habits of a keyspace's users ask of its next merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Sorted runs. `None`: as many as the structure wants. Nothing flaps: either number is a
    /// bound that merges approach within an allowance.
    pub(super) runs: Option<u32>,
    /// Maplets over runs.
    pub(super) maplets: bool,
}

/// Reads and writes since the database was opened.
#[derive(Clone, Copy, Default)]
struct Done {
    gets: u64,
    scans: u64,
    writes: u64,
}

/// What users had done to each keyspace at its last merge.
#[derive(Default)]
pub(super) struct Habits(BTreeMap<KeyspaceId, Done>);

impl Habits {
    /// What the merge that begins should do.
    pub fn of(&mut self, keyspace: &KeyspaceState) -> Wanted {
        let read = keyspace.shared.counters.read("", keyspace.id, 0);
        self.after(keyspace.id, &read.unwrap_or_default())
    }

    fn after(&mut self, id: KeyspaceId, read: &KeyspaceMetrics) -> Wanted {
        let now = Done {
            gets: read.gets,
            scans: read.scans,
            writes: read.puts.saturating_add(read.deletes),
        };
        let then = self.0.insert(id, now).unwrap_or_default();
        let gets = now.gets.saturating_sub(then.gets);
        let reads = gets.saturating_add(now.scans.saturating_sub(then.scans));
        let writes = now.writes.saturating_sub(then.writes);
        let is_read = reads >= TELLING_READS && reads >= writes;
        Wanted {
            runs: is_read.then_some(RUNS_OF_READ),
            maplets: gets > 0 && gets >= writes / WRITES_OF_GET,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_that_is_read_keeps_fewer_runs_and_maplets_over_them() {
        let mut habits = Habits::default();
        let mut read = KeyspaceMetrics::default();
        let id = KeyspaceId(1);
        read.puts = 1_000_000;
        let mut after = |read: &KeyspaceMetrics| {
            let Wanted { runs, maplets } = habits.after(id, read);
            (runs, maplets)
        };
        assert_eq!(after(&read), (None, false));
        read.gets = 4000;
        assert_eq!(after(&read), (None, true), "too few for fewer runs");
        (read.gets, read.puts) = (104_000, 1_100_000);
        assert_eq!(after(&read), (Some(RUNS_OF_READ), true));
        (read.gets, read.puts) = (154_000, 1_500_000);
        assert_eq!(after(&read), (None, true), "written eight times as often");
        (read.gets, read.puts) = (204_000, 2_500_000);
        assert_eq!(after(&read), (None, false));
        (read.scans, read.deletes) = (50_000, 100_000);
        assert_eq!(after(&read), (None, false), "ranges ask no maplet");
    }
}
