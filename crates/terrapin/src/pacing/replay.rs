//! [`ReplayBound`]: how much log the next open may have to replay, so that the replay takes no
//! longer than [`Options::recovery_target`](crate::Options::recovery_target).
//!
//! The bound B is the target times the rate of replays, in bytes of log. A replay of at least
//! [`MEASURED_BYTES_MIN`] measures the rate; before, [`RATE_ASSUMED`] counts. *Kept* bytes are
//! those from the least applied LSN of all keyspaces, which is durable, to the end of the log.
//! Three things keep them below B:
//!
//! 1. A memtable's limit is 3/8 B, shared by the written keyspaces (`planning::plan`). Writers of
//!    new keys then meet neither of the others, since their pace fills a memtable while the one
//!    before is merged.
//! 2. Above B/2, the coordinator seals the memtables that keep the older half of the kept bytes,
//!    and runs a checkpoint, again and again as long as there is a memtable to merge. So a memtable
//!    that cannot be merged causes no endless row of checkpoints.
//! 3. A write that would keep more than B waits for a checkpoint ([`ReplayBound::holds`]). A margin
//!    of B/16 is for the bytes that threads write between two looks.
//!
//! The bound gives way where only waiting would hold it: on a full disk, after a failed checkpoint,
//! while a sorted ingest holds a keyspace, when no checkpoint can help (a single write of more than
//! half of B, or no memtable to merge), and when a write has waited for the stall limit. No write
//! is refused because of it.

use terrapin_base::Lsn;
use terrapin_base::sync::{AtomicU64, Ordering};

/// Bytes of log that a second of replay is assumed to read until a replay has shown it.
pub(crate) const RATE_ASSUMED: u64 = 64 << 20;
/// A replay of fewer bytes says little about the rate.
pub(crate) const MEASURED_BYTES_MIN: u64 = 1 << 20;
/// The bound is at least this many units of L: memtables cannot be smaller than one.
const UNITS_MIN: u64 = 8;
const NS_PER_S: u128 = 1_000_000_000;

/// The bound of one open database.
pub(crate) struct ReplayBound {
    target_ns: Option<u64>,
    least_bytes: u64,
    log_bytes_max: u64,
    /// Bytes a second.
    rate: AtomicU64,
    /// B. Without a target, and while the log is being replayed, the largest number.
    bytes_max: AtomicU64,
    /// Above this many kept bytes, a write asks for a checkpoint.
    asks_above: AtomicU64,
    /// The durable LSN at which writers last notified the coordinator, and that at which it last
    /// tried to shorten the log, plus one.
    asked: AtomicU64,
    tried: AtomicU64,
}

impl ReplayBound {
    /// The bound before the replay. `log_bytes_max`: a log of more bytes is shortened anyway.
    pub fn new(target_ns: Option<u64>, unit_bytes: u64, log_bytes_max: u64) -> Self {
        ReplayBound {
            target_ns,
            least_bytes: unit_bytes.saturating_mul(UNITS_MIN),
            log_bytes_max,
            rate: AtomicU64::new(RATE_ASSUMED),
            bytes_max: AtomicU64::new(u64::MAX),
            asks_above: AtomicU64::new(log_bytes_max),
            asked: AtomicU64::new(0),
            tried: AtomicU64::new(0),
        }
    }

    /// Begins to bound, after a replay of some bytes that took some time.
    pub fn begin(&self, replayed_bytes: u64, took_ns: u64) {
        if replayed_bytes >= MEASURED_BYTES_MIN && took_ns > 0 {
            let rate = u128::from(replayed_bytes) * NS_PER_S / u128::from(took_ns);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
            self.rate.store(rate, Ordering::Relaxed);
        }
        let Some(target_ns) = self.target_ns else {
            return;
        };
        let bytes = u128::from(self.rate()) * u128::from(target_ns) / NS_PER_S;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX / 2);
        let bytes = bytes.clamp(self.least_bytes, u64::MAX / 2);
        self.bytes_max.store(bytes, Ordering::Relaxed);
        self.asks_above
            .store(self.log_bytes_max.min(bytes / 2), Ordering::Relaxed);
    }

    /// Bytes of log that a second of replay reads.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// B. `None` without a target, and while the log is being replayed.
    pub fn bytes_max(&self) -> Option<u64> {
        let bytes = self.bytes_max.load(Ordering::Relaxed);
        (bytes != u64::MAX).then_some(bytes)
    }

    /// A write that keeps more than this calls [`ReplayBound::asks`], or shortens the log.
    #[inline]
    pub fn asks_above(&self) -> u64 {
        self.asks_above.load(Ordering::Relaxed)
    }

    /// Whether a write may not go on before a checkpoint, if `kept` bytes would then be kept.
    #[inline]
    pub fn holds(&self, kept: u64) -> bool {
        let most = self.bytes_max.load(Ordering::Relaxed);
        kept > most - most / 16
    }

    /// Whether a write that keeps `kept` bytes is to notify the coordinator: once for each durable
    /// LSN.
    pub fn asks(&self, kept: u64, durable: Lsn) -> bool {
        let is_new = || self.asked.swap(durable.0 + 1, Ordering::Relaxed) != durable.0 + 1;
        self.is_half(kept) && is_new()
    }

    /// Whether a checkpoint is to shorten what is kept.
    pub fn is_due(&self, kept: u64, durable: Lsn) -> bool {
        self.is_half(kept) && self.tried.load(Ordering::Relaxed) != durable.0 + 1
    }

    /// Notes that a checkpoint which is to shorten what is kept finds no memtable to merge.
    pub fn tried(&self, durable: Lsn) {
        self.tried.store(durable.0 + 1, Ordering::Relaxed);
    }

    fn is_half(&self, kept: u64) -> bool {
        kept > self.bytes_max.load(Ordering::Relaxed) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_bound_is_the_target_times_the_measured_rate() {
        let bound = ReplayBound::new(Some(SECOND / 2), 4096, 1 << 40);
        // While the log is being replayed there is no bound.
        assert_eq!(bound.bytes_max(), None);
        assert!(!bound.holds(1 << 50) && !bound.is_due(1 << 50, Lsn(0)));
        bound.begin(0, 0);
        assert_eq!(bound.bytes_max(), Some(RATE_ASSUMED / 2));
        // Too little to say anything, and a clock that did not move.
        for (bytes, ns) in [(MEASURED_BYTES_MIN - 1, 1), (MIB, 0)] {
            bound.begin(bytes, ns);
            assert_eq!(bound.rate(), RATE_ASSUMED);
        }
        bound.begin(30 * MIB, 2 * SECOND);
        assert_eq!(bound.rate(), 15 * MIB);
        assert_eq!(bound.bytes_max(), Some(15 * MIB / 2));
        assert!(bound.holds(15 * MIB / 2) && !bound.holds(6 * MIB));
        // Rates and targets of any size give a bound.
        let long = ReplayBound::new(Some(u64::MAX / 4), 4096, 1 << 40);
        long.begin(u64::MAX, 1);
        assert_eq!(long.bytes_max(), Some(u64::MAX / 2));
        let short = ReplayBound::new(Some(1), 4096, 1 << 40);
        short.begin(0, 0);
        assert_eq!(short.bytes_max(), Some(UNITS_MIN * 4096));
    }

    #[test]
    fn each_durable_lsn_asks_and_tries_once() {
        let bound = ReplayBound::new(Some(SECOND), 4096, 1 << 40);
        bound.begin(0, 0);
        let half = RATE_ASSUMED / 2;
        assert_eq!(bound.asks_above(), half);
        assert!(!bound.asks(half, Lsn(0)) && !bound.is_due(half, Lsn(0)));
        for durable in [Lsn(0), Lsn(7)] {
            assert!(bound.asks(half + 1, durable));
            assert!(!bound.asks(half + 2, durable));
            assert!(bound.is_due(half + 1, durable));
            bound.tried(durable);
            assert!(!bound.is_due(half + 2, durable));
        }
    }

    #[test]
    fn a_database_without_a_target_has_no_bound() {
        let bound = ReplayBound::new(None, 4096, 5 * MIB);
        bound.begin(30 * MIB, SECOND);
        assert_eq!((bound.rate(), bound.bytes_max()), (30 * MIB, None));
        assert_eq!(bound.asks_above(), 5 * MIB);
        assert!(!bound.holds(1 << 50) && !bound.asks(1 << 50, Lsn(0)));
    }
}
