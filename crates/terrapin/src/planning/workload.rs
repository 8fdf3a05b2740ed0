//! [`Workload`]: the one classifier of what users do. Other files ask it and compare no counts
//! themselves:
//!
//! - [`Operations::mix_since`] compares reads with writes, from the operations between two seals.
//! - [`ReadKind`] says whether most reads are gets or ranges. Gets want cached records; ranges want
//!   cached blocks. It is judged from the reads since the last judgement. Without writes there are
//!   no seals, and a hundred million old gets must not hide new ranges.
//! - [`Operations::is_mostly_ranges`] says whether more ranges are expected, from the operations
//!   between two looks of the compactor.
//! - [`OverwriteShare`] says whether a keyspace's writes are new or replace records. A checkpoint
//!   looks up some keys of each memtable in the tree that the memtable is merged into. The tree
//!   itself learns of a replaced record only when the new one reaches a leaf. Until then, an
//!   overwritten store looks like a growing one (decision 0014).
//!
//! Everything here is counts and thresholds: no clock, and no lock that is held while anything
//! waits.

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};

/// Fewer operations do not show the workload.
const TELLING_OPERATIONS: u64 = 4096;
/// Users count as reading at all if there is one read for this many writes.
const WRITES_A_READ: u64 = 16;
/// Users count as reading often if there is one read for this many writes. Cheaper reads are then
/// worth more writing.
const WRITES_AN_OFTEN_READ: u64 = 4;
/// With this many gets per write, users will soon get what they write now.
const GETS_A_WRITE: u64 = 4;
/// With this many ranges per write, more ranges are expected.
const RANGES_A_WRITE: u64 = 4;
/// A range counts as this many gets: it reads several blocks.
pub(crate) const GETS_A_RANGE: u64 = 4;

/// Operations of users since the database was opened, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations {
    pub gets: u64,
    pub ranges: u64,
    pub writes: u64,
}

/// The most frequent kind of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadKind {
    /// Gets, which cached records serve best.
    #[default]
    Gets,
    /// Ranges, which need cached blocks.
    Ranges,
}

/// The ratio of reads to writes, and the most frequent kind of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    /// Whether there is a read for every 16 writes.
    pub is_read: bool,
    /// Whether there is a read for every 4 writes.
    pub is_often_read: bool,
    /// Whether there are 4 gets for every write. Users then get what they wrote last, and would
    /// have to read it from the device after its merge.
    pub is_mostly_got: bool,
    /// The most frequent kind of reads.
    pub reads: ReadKind,
}

impl Default for Mix {
    /// The mix before anything is known: users read, but not often.
    fn default() -> Self {
        Mix {
            is_read: true,
            is_often_read: false,
            is_mostly_got: false,
            reads: ReadKind::Gets,
        }
    }
}

impl Operations {
    /// The operations since an earlier count.
    pub fn since(self, earlier: Operations) -> Operations {
        Operations {
            gets: self.gets.saturating_sub(earlier.gets),
            ranges: self.ranges.saturating_sub(earlier.ranges),
            writes: self.writes.saturating_sub(earlier.writes),
        }
    }

    /// Whether most operations are ranges, compared with writes.
    pub fn is_mostly_ranges(self) -> bool {
        self.ranges >= self.writes.saturating_mul(RANGES_A_WRITE)
    }

    fn reads(self) -> u64 {
        self.gets.saturating_add(self.ranges)
    }

    /// The mix of these operations, with the given kind of reads.
    fn mix(self, reads: ReadKind) -> Mix {
        let is_read_at = |writes_a_read| self.reads().saturating_mul(writes_a_read) >= self.writes;
        Mix {
            is_read: is_read_at(WRITES_A_READ),
            is_often_read: is_read_at(WRITES_AN_OFTEN_READ),
            is_mostly_got: self.gets >= self.writes.saturating_mul(GETS_A_WRITE),
            reads,
        }
    }

    fn ranges_as_gets(self) -> u64 {
        self.ranges.saturating_mul(GETS_A_RANGE)
    }

    /// The most frequent kind of these reads.
    fn read_kind(self) -> ReadKind {
        match self.ranges_as_gets() > self.gets / 2 {
            true => ReadKind::Ranges,
            false => ReadKind::Gets,
        }
    }
}

/// The mix of a database's operations, kept up to date by the jobs and writers that look.
#[derive(Default)]
pub(crate) struct Workload(Mutex<Judged>);

#[derive(Default)]
struct Judged {
    mix: Mix,
    /// The counts at the last seal.
    at_seal: Operations,
    /// The counts when the kind of reads was last judged.
    at_kind: Operations,
}

impl Workload {
    /// The mix as last judged.
    pub fn mix(&self) -> Mix {
        self.0.lock().mix
    }

    /// Judges the operations since the last seal, however few, because a memtable was sealed.
    pub fn sealed(&self, now: Operations) {
        let mut judged = self.0.lock();
        judged.judge_kind(now);
        judged.mix = now.since(judged.at_seal).mix(judged.mix.reads);
        judged.at_seal = now;
    }

    /// Judges between two seals, if enough came since the last one. The kind of reads is judged in
    /// any case; reads beside writes only if `and_writes`. Returns the mix.
    pub fn look(&self, now: Operations, and_writes: bool) -> Mix {
        let mut judged = self.0.lock();
        judged.judge_kind(now);
        let since = now.since(judged.at_seal);
        if and_writes && since.reads().saturating_add(since.writes) >= TELLING_OPERATIONS {
            judged.mix = since.mix(judged.mix.reads);
        }
        judged.mix
    }

    /// Judges the kind of reads by those since the caller's last look, however few they were, and
    /// returns it. For a caller that has seen thousands of misses since: a few long ranges may have
    /// caused them.
    pub fn look_at_reads(&self, now: Operations, last: Operations) -> ReadKind {
        let mut judged = self.0.lock();
        let since = now.since(last);
        if since.reads() > 0 {
            judged.mix.reads = since.read_kind();
            judged.at_kind = now;
        }
        judged.mix.reads
    }
}

impl Judged {
    /// Judges the kind of reads, if there were enough since the last time.
    fn judge_kind(&mut self, now: Operations) {
        let since = now.since(self.at_kind);
        if since.gets.saturating_add(since.ranges_as_gets()) >= TELLING_OPERATIONS {
            self.mix.reads = since.read_kind();
            self.at_kind = now;
        }
    }
}

/// Fewer lookups do not show the share of overwrites.
const TELLING_LOOKUPS: u64 = 8;
/// Above this many lookups, older ones count half.
const LOOKUPS_REMEMBERED: u64 = 64;
/// From this share on, in thousandths, a keyspace counts as overwritten.
const OVERWRITTEN_PERMILLE: u64 = 250;

/// The share of a keyspace's writes that replace a record of its tree.
pub(crate) struct OverwriteShare {
    /// The share in thousandths, or `u64::MAX` until it is known.
    permille: AtomicU64,
    lookups: Mutex<Lookups>,
}

/// Number of memtable keys looked up in the tree, and how many of them the tree held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lookups {
    pub asked: u64,
    pub found: u64,
}

impl Default for OverwriteShare {
    fn default() -> Self {
        OverwriteShare {
            permille: AtomicU64::new(u64::MAX),
            lookups: Mutex::default(),
        }
    }
}

impl OverwriteShare {
    /// Adds the lookups of one memtable.
    pub fn note(&self, lookups: Lookups) {
        let mut sum = self.lookups.lock();
        if sum.asked + lookups.asked > LOOKUPS_REMEMBERED {
            sum.asked /= 2;
            sum.found /= 2;
        }
        sum.asked += lookups.asked;
        sum.found += lookups.found;
        if sum.asked >= TELLING_LOOKUPS {
            let permille = sum.found.saturating_mul(1000) / sum.asked;
            self.permille.store(permille, Ordering::Relaxed);
        }
    }

    /// The share in thousandths. None until there were enough lookups.
    pub fn permille(&self) -> Option<u16> {
        u16::try_from(self.permille.load(Ordering::Relaxed)).ok()
    }

    /// Whether most writes are known to add records.
    pub fn is_growing(&self) -> bool {
        self.permille.load(Ordering::Relaxed) < OVERWRITTEN_PERMILLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations(gets: u64, ranges: u64, writes: u64) -> Operations {
        Operations {
            gets,
            ranges,
            writes,
        }
    }

    #[test]
    fn users_read_until_writes_come_without_reads() {
        let workload = Workload::default();
        assert!(workload.mix().is_read);
        workload.sealed(operations(0, 0, 1000));
        assert!(!workload.mix().is_read, "nothing but writes");
        workload.sealed(operations(40, 30, 2000));
        assert!(workload.mix().is_read, "one read for 16 writes");
        workload.sealed(operations(60, 70, 3000));
        assert!(!workload.mix().is_read, "one read for 17 writes");
    }

    #[test]
    fn users_mostly_get_with_four_gets_for_a_write_and_ranges_do_not_count() {
        let workload = Workload::default();
        assert!(!workload.mix().is_mostly_got);
        workload.sealed(operations(4000, 0, 1000));
        assert!(workload.mix().is_mostly_got);
        workload.sealed(operations(7999, 9000, 2000));
        assert!(!workload.mix().is_mostly_got);
    }

    #[test]
    fn ranges_are_most_reads_with_more_than_one_for_eight_gets() {
        let workload = Workload::default();
        let kind = || workload.mix().reads;
        workload.sealed(operations(8000, 1000, 0));
        assert_eq!(kind(), ReadKind::Gets);
        workload.sealed(operations(16_000, 2001, 0));
        assert_eq!(kind(), ReadKind::Ranges);
        workload.sealed(operations(16_100, 2001, 9000));
        assert_eq!(kind(), ReadKind::Ranges, "too few reads to judge");
        workload.look(operations(60_000, 2002, 9000), true);
        assert_eq!(kind(), ReadKind::Gets);
        workload.look(operations(60_000, 2003, 9000), true);
        assert_eq!(kind(), ReadKind::Gets, "one range is not enough");
        let last = operations(60_000, 2002, 9000);
        let look = |ranges| workload.look_at_reads(operations(60_000, ranges, 9000), last);
        assert_eq!(look(2003), ReadKind::Ranges, "but after many misses");
        assert_eq!(look(2002), ReadKind::Ranges, "no reads since");
    }

    /// All reads since the last seal used to count, and without writes there is no seal.
    #[test]
    fn a_hundred_million_gets_do_not_hide_the_ranges_after_them() {
        let workload = Workload::default();
        workload.sealed(operations(1000, 0, 1000));
        workload.look(operations(100_000_000, 0, 1000), true);
        assert_eq!(workload.mix().reads, ReadKind::Gets);
        let ranges = TELLING_OPERATIONS / GETS_A_RANGE;
        let mix = workload.look(operations(100_000_000, ranges, 1000), false);
        assert_eq!(mix.reads, ReadKind::Ranges);
    }

    #[test]
    fn the_mix_changes_between_seals_once_there_were_enough_operations() {
        let workload = Workload::default();
        let is_read = |gets, writes, and_writes| {
            let mix = workload.look(operations(gets, 0, writes), and_writes);
            mix.is_read
        };
        assert!(is_read(0, TELLING_OPERATIONS - 1, true), "too few to judge");
        assert!(is_read(0, TELLING_OPERATIONS, false), "not asked for");
        assert!(!is_read(0, TELLING_OPERATIONS, true));
        assert!(is_read(900, 9000, true), "since the last seal");
        workload.sealed(operations(900, 0, 9000));
        assert!(!is_read(900, 20_000, true), "since this one");
    }

    #[test]
    fn ranges_go_on_with_four_of_them_for_a_write() {
        assert!(operations(0, 400, 100).is_mostly_ranges());
        assert!(!operations(0, 399, 100).is_mostly_ranges());
        let since = operations(0, 500, 1100).since(operations(0, 100, 1000));
        assert!(since.is_mostly_ranges());
    }

    #[test]
    fn counts_of_any_size_are_judged() {
        let workload = Workload::default();
        let most = operations(u64::MAX, u64::MAX, u64::MAX);
        workload.sealed(most);
        let mix = workload.mix();
        assert_eq!(workload.look(operations(0, 0, 0), true), mix);
        assert!(most.is_mostly_ranges());
    }

    #[test]
    fn one_memtable_shows_overwriting_and_two_show_a_load_again() {
        let share = OverwriteShare::default();
        let note = |asked, found| share.note(Lookups { asked, found });
        note(7, 0);
        assert!(!share.is_growing() && share.permille().is_none());
        note(25, 1);
        assert!(share.is_growing());
        note(32, 0);
        note(32, 32);
        assert!(!share.is_growing());
        note(32, 32);
        note(32, 32);
        assert!(share.permille() > Some(800), "{:?}", share.permille());
        note(32, 0);
        assert!(!share.is_growing());
        note(32, 0);
        assert!(share.is_growing());
    }
}
