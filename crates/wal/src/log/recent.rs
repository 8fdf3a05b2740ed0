//! [`Recent`]: what the latest records touched. A conditional write finds here whether another
//! record came between its read and its append.
//!
//! While a [`Watch`] exists, each append adds entries under the append lock, before another
//! thread can know its LSN. So an append that tests the entries under the same lock has seen every
//! earlier record, published or not. Without a watch an append pays one test of a word beside the
//! tail.
//!
//! The entries are a ring. A reader names the entry to go on from, and learns if that one was
//! overwritten. After the last watch, appends go on for one ring of entries, so that a writer of
//! conditions that comes back finds them.
//!
//! The first watch allocates the ring outside the append lock and charges it to the memory budget.

use terrapin_base::sync::{Arc, AtomicBool, Ordering};
use terrapin_base::{Budget, Charge, Env, KeyspaceId, Lsn, Purpose, mutant};

/// Most entries of the ring: 768 KiB.
const ENTRIES: u64 = 16_384;
/// Fewest entries of the ring.
const ENTRIES_MIN: u64 = 1_024;
/// The part of the memory budget that the ring takes within these bounds.
const BUDGET_PART: u64 = 64;
/// Most entries that a conditional append tests under the append lock.
pub(super) const TESTED_MAX: u64 = 64;
/// Most entries that [`Recent::copy`] copies in one hold of the append lock.
pub(super) const COPIED_MAX: u64 = 512;

/// Leading bytes of a key that an entry keeps.
pub const TOUCH_HEAD_BYTES: usize = 24;

/// What a record touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The keyspace. Without meaning for [`Reach::All`].
    pub keyspace: KeyspaceId,
    /// How much of the keyspace.
    pub reach: Reach,
    /// The 64-bit hash of the key.
    pub hash: u64,
    /// The key's first bytes, then zeros.
    pub head: [u8; TOUCH_HEAD_BYTES],
}

/// How much a record touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One key.
    Key,
    /// Any keys of any keyspaces.
    All,
}

impl Touch {
    /// A record that writes one key. `hash` is `checksum::hash64(key)`.
    #[must_use]
    pub fn key(keyspace: KeyspaceId, key: &[u8], hash: u64) -> Self {
        let mut head = [0; TOUCH_HEAD_BYTES];
        let bytes = key.len().min(TOUCH_HEAD_BYTES);
        head[..bytes].copy_from_slice(&key[..bytes]);
        Touch {
            keyspace,
            reach: Reach::Key,
            hash,
            head,
        }
    }

    /// A record that writes no key: a key of no keyspace, which nobody reads.
    pub const NONE: Touch = Touch {
        reach: Reach::Key,
        ..Touch::ALL
    };

    /// A record that may write any keys of any keyspaces.
    pub const ALL: Touch = Touch {
        keyspace: KeyspaceId(u32::MAX),
        reach: Reach::All,
        hash: 0,
        head: [0; TOUCH_HEAD_BYTES],
    };
}

/// What a record touched, and the record's LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The record's LSN.
    pub lsn: Lsn,
    /// What it touched.
    pub touch: Touch,
}

/// The entry to go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The first entry at or above this LSN.
    Lsn(Lsn),
    /// The entry of this number.
    Entry(u64),
}

/// What [`super::Log::touched_since`] copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// All entries there are; go on from here.
    All(From),
    /// There are more; go on from here.
    Some(From),
    /// Entries from there on are missing: no watch existed, or the ring has overwritten them.
    Lost,
}

/// The ring's memory, with its charge.
pub(super) struct Room {
    entries: Box<[Touched]>,
    _charge: Option<Charge>,
}

impl Room {
    /// Allocates the ring. Takes some hundred microseconds, so never under the append lock.
    pub fn new(budget: Option<&Arc<Budget>>) -> Self {
        let none = Touched {
            lsn: Lsn(0),
            touch: Touch::ALL,
        };
        let each = size_of::<Touched>() as u64;
        let room = budget.map_or(u64::MAX, |budget| budget.limit() / BUDGET_PART);
        let entries = (room / each).clamp(ENTRIES_MIN, ENTRIES);
        let bytes = entries * each;
        Room {
            entries: vec![none; entries as usize].into_boxed_slice(),
            _charge: budget.map(|budget| budget.charge(Purpose::Log, bytes)),
        }
    }
}

/// The entries and the watches. The append lock protects them.
pub(super) struct Recent {
    /// `None` until the first watch, and after the log released its memory.
    room: Option<Room>,
    /// Number of entries ever added, all watches together.
    added: u64,
    /// Number of the first entry of the time since appends last began to add entries.
    first: u64,
    /// Records below this LSN have no entries.
    raised_at: Lsn,
    /// Number of watches.
    watches: u32,
    /// Entries that writers still add without a watch.
    left: u64,
    /// Since when appends add entries, on the environment's clock. Without meaning while they add
    /// none.
    raised_at_ns: u64,
    /// Nanoseconds for which appends added entries, without the time since `raised_at_ns`.
    raised_ns: u64,
}

impl Recent {
    pub fn new() -> Self {
        Recent {
            room: None,
            added: 0,
            first: 0,
            raised_at: Lsn(u64::MAX),
            watches: 0,
            left: 0,
            raised_at_ns: 0,
            raised_ns: 0,
        }
    }

    /// Nanoseconds for which appends added entries, up to now.
    pub fn raised_ns(&self, now: u64) -> u64 {
        match self.is_raised() {
            true => self.raised_ns + now.saturating_sub(self.raised_at_ns),
            false => self.raised_ns,
        }
    }

    /// Whether appends add entries.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.raised_at.0 < u64::MAX
    }

    fn lower(&mut self, raised: &AtomicBool, now: u64) {
        self.raised_ns = self.raised_ns(now);
        self.raised_at = Lsn(u64::MAX);
        self.left = 0;
        raised.store(false, Ordering::Relaxed);
    }

    /// Whether the ring has its memory.
    pub fn has_room(&self) -> bool {
        self.room.is_some()
    }

    /// Gives the ring its memory. Returns memory that it does not need.
    pub fn give_room(&mut self, room: Room) -> Option<Room> {
        match self.room {
            Some(_) => Some(room),
            None => {
                self.room = Some(room);
                None
            }
        }
    }

    /// Gives the ring's memory up. What records touched is lost.
    pub fn take_room(&mut self, raised: &AtomicBool, now: u64) -> Option<Room> {
        self.lower(raised, now);
        self.room.take()
    }

    /// Begins a watch. `publish_end` is the end of the last record that will be published. Without
    /// memory, the ring keeps nothing, and readers find their entries lost.
    pub fn watch(&mut self, publish_end: Lsn, raised: &AtomicBool, now: u64) {
        if !self.is_raised() && self.has_room() {
            self.raised_at = publish_end;
            self.raised_at_ns = now;
            self.first = self.added;
            raised.store(true, Ordering::Relaxed);
        }
        self.watches += 1;
    }

    /// Ends a watch.
    pub fn unwatch(&mut self) {
        self.watches = self.watches.saturating_sub(1);
        self.renew();
    }

    /// Has appends add entries for a while longer, as after a watch.
    pub fn renew(&mut self) {
        if self.watches == 0 && self.is_raised() {
            // Fewer would lose entries that the ring still has room for.
            self.left = self.len();
        }
    }

    /// Number of entries that the ring has room for.
    fn len(&self) -> u64 {
        self.room
            .as_ref()
            .map_or(0, |room| room.entries.len() as u64)
    }

    /// The LSN from which on records have entries.
    pub fn raised_at(&self) -> Lsn {
        self.raised_at
    }

    /// Adds a record's entries. Without touches, the record counts as touching everything.
    ///
    /// Kept out of the append of a log that nobody watches.
    #[inline(never)]
    pub fn add(&mut self, lsn: Lsn, touches: &[Touch], raised: &AtomicBool, env: &Env) {
        let Some(room) = &mut self.room else {
            return;
        };
        let all = [Touch::ALL];
        let touches = match touches.is_empty() || touches.len() as u64 > TESTED_MAX {
            true if mutant::active("unknown-touches-are-none") => &[],
            true => &all[..],
            false => touches,
        };
        for &touch in touches {
            let place = self.added % room.entries.len() as u64;
            room.entries[place as usize] = Touched { lsn, touch };
            self.added += 1;
        }
        if self.watches == 0 {
            self.left = self.left.saturating_sub(touches.len() as u64);
            if self.left == 0 {
                self.lower(raised, env.now_ns());
            }
        }
    }

    /// The number of the entry to go on from. `None` if entries from there on are missing.
    fn number(&self, from: From) -> Option<u64> {
        let number = self.is_raised().then(|| self.kept_number(from)).flatten();
        match mutant::active("lost-touches-are-none") {
            true => number.or(Some(self.added)),
            false => number,
        }
    }

    fn kept_number(&self, from: From) -> Option<u64> {
        let oldest = self.first.max(self.added.saturating_sub(self.len()));
        match from {
            From::Entry(number) => (number >= oldest && number <= self.added).then_some(number),
            From::Lsn(lsn) => {
                let (mut low, mut high, mut step) = (oldest, self.added, 1);
                // A bound is mostly near the newest entry. A search of the whole ring would fetch
                // a line of memory for most of its steps, under the append lock.
                while high - low > step {
                    match self.entry(high - step)?.lsn < lsn {
                        true => low = high - step + 1,
                        false => high -= step,
                    }
                    step *= 2;
                }
                while low < high {
                    let middle = low + (high - low) / 2;
                    match self.entry(middle)?.lsn < lsn {
                        true => low = middle + 1,
                        false => high = middle,
                    }
                }
                // The record of the oldest entry may have had entries before it.
                let complete = low > oldest || oldest == self.first;
                (complete && lsn >= self.raised_at).then_some(low)
            }
        }
    }

    fn entry(&self, number: u64) -> Option<&Touched> {
        let entries = &self.room.as_ref()?.entries;
        entries.get((number % entries.len() as u64) as usize)
    }

    /// Appends the entries from a place on to `out`, some hundreds of them at most.
    pub fn copy(&self, from: From, out: &mut Vec<Touched>) -> Copied {
        let Some(start) = self.number(from) else {
            return Copied::Lost;
        };
        let end = self.added.min(start + COPIED_MAX);
        out.extend((start..end).filter_map(|number| self.entry(number)));
        match end == self.added {
            true => Copied::All(From::Entry(end)),
            false => Copied::Some(From::Entry(end)),
        }
    }

    /// Whether the entries from a place on are few, and `hits` is false for each of them.
    pub fn are_clear(&self, from: From, mut hits: impl FnMut(&Touched) -> bool) -> bool {
        if mutant::active("condition-tests-no-late-entries") {
            return true;
        }
        let Some(start) = self.number(from) else {
            return false;
        };
        self.added - start <= TESTED_MAX
            && (start..self.added).all(|number| self.entry(number).is_some_and(|e| !hits(e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(number: u64) -> Touch {
        Touch::key(KeyspaceId(0), &number.to_be_bytes(), number)
    }

    fn with_room() -> Recent {
        let mut recent = Recent::new();
        assert!(recent.give_room(Room::new(None)).is_none());
        recent
    }

    /// All entries from a place on, or `None` if some are missing.
    fn all(recent: &Recent, mut from: From) -> Option<Vec<u64>> {
        let mut out = Vec::new();
        loop {
            match recent.copy(from, &mut out) {
                Copied::Lost => return None,
                Copied::All(_) => return Some(out.iter().map(|entry| entry.touch.hash).collect()),
                Copied::Some(next) => from = next,
            }
        }
    }

    #[test]
    fn entries_are_found_from_an_lsn_on_until_they_are_overwritten() {
        let (mut recent, raised) = (Recent::new(), AtomicBool::new(false));
        let env = Env::threads();
        recent.watch(Lsn(1000), &raised, 0);
        // Without memory nothing is kept.
        assert!(!raised.load(Ordering::Relaxed));
        assert_eq!(all(&recent, From::Lsn(Lsn(1000))), None);
        recent.unwatch();
        recent.give_room(Room::new(None));
        recent.watch(Lsn(1000), &raised, 0);
        assert!(raised.load(Ordering::Relaxed));
        assert_eq!(all(&recent, From::Lsn(Lsn(999))), None);
        assert_eq!(all(&recent, From::Lsn(Lsn(1000))), Some(vec![]));
        for number in 0..ENTRIES {
            recent.add(Lsn(1000 + 10 * number), &[touch(number)], &raised, &env);
        }
        let from = |n: u64| From::Lsn(Lsn(1000 + 10 * n));
        assert_eq!(all(&recent, from(0)).unwrap().len() as u64, ENTRIES);
        assert_eq!(all(&recent, From::Lsn(Lsn(1001))).unwrap()[0], 1);
        for number in 1..=ENTRIES {
            assert_eq!(recent.number(from(number)), Some(number));
            let between = From::Lsn(Lsn(1000 + 10 * number - 5));
            assert_eq!(recent.number(between), Some(number));
        }
        assert_eq!(
            all(&recent, from(ENTRIES - 2)),
            Some(vec![ENTRIES - 2, ENTRIES - 1])
        );
        assert_eq!(all(&recent, from(ENTRIES)), Some(vec![]));
        recent.add(Lsn(1 << 30), &[touch(7)], &raised, &env);
        assert_eq!(all(&recent, from(0)), None);
        // Entry 1 is there, and whether it is the first of its record is not known.
        assert_eq!(all(&recent, from(1)), None);
        assert_eq!(all(&recent, from(2)).unwrap()[0], 2);
        assert_eq!(all(&recent, From::Entry(0)), None);
        assert_eq!(all(&recent, From::Entry(1)).unwrap()[0], 1);
    }

    #[test]
    fn a_record_of_unknown_or_many_keys_touches_everything() {
        let (mut recent, raised) = (with_room(), AtomicBool::new(false));
        let env = Env::threads();
        recent.watch(Lsn(0), &raised, 0);
        let many: Vec<_> = (0..=TESTED_MAX).map(touch).collect();
        recent.add(Lsn(10), &[], &raised, &env);
        recent.add(Lsn(20), &many, &raised, &env);
        recent.add(Lsn(30), &many[1..], &raised, &env);
        let mut out = Vec::new();
        recent.copy(From::Lsn(Lsn(0)), &mut out);
        let reaches: Vec<_> = out.iter().map(|entry| entry.touch.reach).collect();
        assert_eq!(reaches[..2], [Reach::All; 2]);
        assert_eq!(reaches[2..], [Reach::Key; TESTED_MAX as usize]);
    }

    #[test]
    fn few_entries_without_a_hit_are_clear() {
        let (mut recent, raised) = (with_room(), AtomicBool::new(false));
        let env = Env::threads();
        recent.watch(Lsn(0), &raised, 0);
        for number in 0..100 {
            recent.add(Lsn(10 * number), &[touch(number)], &raised, &env);
        }
        let hits = |wanted: u64| move |entry: &Touched| entry.touch.hash == wanted;
        let from = |number: u64| From::Lsn(Lsn(10 * number));
        assert!(recent.are_clear(from(90), hits(89)));
        assert!(!recent.are_clear(from(90), hits(90)));
        assert!(!recent.are_clear(from(90), hits(99)));
        assert!(recent.are_clear(from(36), hits(200)));
        assert!(!recent.are_clear(from(35), hits(200)));
        assert!(recent.are_clear(From::Entry(100), hits(99)));
    }

    #[test]
    fn appends_stop_to_add_entries_a_while_after_the_last_watch() {
        let (mut recent, raised) = (with_room(), AtomicBool::new(false));
        let env = Env::threads();
        recent.watch(Lsn(0), &raised, 0);
        recent.watch(Lsn(5), &raised, 0);
        assert_eq!(recent.raised_at(), Lsn(0));
        recent.unwatch();
        recent.unwatch();
        for number in 1..ENTRIES {
            recent.add(Lsn(number), &[touch(number)], &raised, &env);
        }
        assert!(raised.load(Ordering::Relaxed) && recent.is_raised());
        assert!(all(&recent, From::Lsn(Lsn(0))).is_some());
        recent.add(Lsn(1 << 20), &[touch(0)], &raised, &env);
        assert!(!raised.load(Ordering::Relaxed) && !recent.is_raised());
        assert_eq!(all(&recent, From::Lsn(Lsn(1 << 20))), None);
        // What was not noted in between is missing, also for a reader that began before.
        recent.watch(Lsn(1 << 21), &raised, 0);
        assert_eq!(all(&recent, From::Lsn(Lsn(0))), None);
        assert_eq!(all(&recent, From::Entry(10)), None);
        assert_eq!(all(&recent, From::Lsn(Lsn(1 << 21))), Some(vec![]));
        // A log that released its memory keeps nothing any more.
        assert!(recent.take_room(&raised, 0).is_some());
        recent.watch(Lsn(1 << 22), &raised, 0);
        recent.add(Lsn(1 << 22), &[touch(0)], &raised, &env);
        assert_eq!(all(&recent, From::Lsn(Lsn(1 << 22))), None);
        assert!(!raised.load(Ordering::Relaxed));
    }
}
