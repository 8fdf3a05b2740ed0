//! Why writes waited, and how long: a histogram for each cause. Only a write that waits pays for
//! it.

use super::{Histogram, Latency};

/// Waits of writes, by cause. Each wait of a write counts by itself: a write may wait more than
/// once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WriteWaits {
    /// The write kept the pace of the running merge.
    pub pace: Latency,
    /// The writer yielded the processor to an overdue writer.
    pub turn: Latency,
    /// The memtable was full, or memtable memory short, before a merge had ended.
    pub merge: Latency,
    /// The log's ring was full or nearly so, or its disk full.
    pub log: Latency,
    /// The write sealed the memtable that it had filled.
    pub seal: Latency,
}

/// What [`WriteWaits`] is read from.
#[derive(Default)]
pub(crate) struct Waits {
    pub pace: Histogram,
    pub turn: Histogram,
    pub merge: Histogram,
    pub log: Histogram,
    pub seal: Histogram,
}

impl Waits {
    /// The waits so far.
    pub fn read(&self) -> WriteWaits {
        WriteWaits {
            pace: self.pace.latency(),
            turn: self.turn.latency(),
            merge: self.merge.latency(),
            log: self.log.latency(),
            seal: self.seal.latency(),
        }
    }
}
