//! What users do with each keyspace between its merges. A keyspace with tiered buffers keeps fewer
//! sorted runs while it is read as often as it is written.

use std::collections::BTreeMap;

use terrapin_base::KeyspaceId;

use crate::engine::state::KeyspaceState;
use crate::metrics::KeyspaceMetrics;

/// Fewer reads do not show that a keyspace is read.
const TELLING_READS: u64 = 4096;
/// Sorted runs of a keyspace that is read.
const RUNS_OF_READ: u32 = 8;

/// Reads and writes since the database was opened.
#[derive(Clone, Copy, Default)]
struct Done {
    reads: u64,
    writes: u64,
}

/// What users had done to each keyspace at its last merge.
#[derive(Default)]
pub(super) struct Habits(BTreeMap<KeyspaceId, Done>);

impl Habits {
    /// The number of sorted runs for the merge that begins. `None`: as many as the structure
    /// wants. Nothing flaps: either number is a bound that merges approach within an allowance.
    pub fn runs_of(&mut self, keyspace: &KeyspaceState) -> Option<u32> {
        let read = keyspace.shared.counters.read("", keyspace.id, 0)?;
        self.runs_after(keyspace.id, &read)
    }

    fn runs_after(&mut self, id: KeyspaceId, read: &KeyspaceMetrics) -> Option<u32> {
        let now = Done {
            reads: read.gets.saturating_add(read.scans),
            writes: read.puts.saturating_add(read.deletes),
        };
        let then = self.0.insert(id, now).unwrap_or_default();
        let reads = now.reads.saturating_sub(then.reads);
        let writes = now.writes.saturating_sub(then.writes);
        (reads >= TELLING_READS && reads >= writes).then_some(RUNS_OF_READ)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_that_is_read_keeps_fewer_runs() {
        let mut habits = Habits::default();
        let mut read = KeyspaceMetrics::default();
        let id = KeyspaceId(1);
        read.puts = 1_000_000;
        assert_eq!(habits.runs_after(id, &read), None);
        read.gets = 4000;
        assert_eq!(habits.runs_after(id, &read), None, "too few");
        (read.gets, read.puts) = (104_000, 1_100_000);
        assert_eq!(habits.runs_after(id, &read), Some(RUNS_OF_READ));
        (read.scans, read.deletes) = (50_000, 100_000);
        assert_eq!(habits.runs_after(id, &read), None);
    }
}
