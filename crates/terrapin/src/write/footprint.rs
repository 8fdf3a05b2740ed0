//! [`Reads`]: what a transaction has read. [`Footprint`]: what must not change until it commits.
//!
//! A read grows the list of reads and never searches it. The commit sorts the list once. It then
//! tests each touch that the log noted by a binary search.

use terrapin_base::checksum::hash64;
use terrapin_base::{Error, ErrorKind, KeyspaceId, Result, mutant};
use terrapin_structure::{Direction, KeyBounds};
use terrapin_wal::{Reach, TOUCH_HEAD_BYTES, Touch, Touched};

use crate::types::key_range::half_open;

/// Number of reads after which the list is searched for keys that were read before.
const READS_FIRST: usize = 512;

/// A key, in the list's memory of keys.
#[derive(Clone, Copy)]
struct Point {
    keyspace: KeyspaceId,
    hash: u64,
    at: usize,
    bytes: usize,
}

/// The keys of a keyspace from `lo` to below `hi`. None is the end of all keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stretch {
    pub keyspace: KeyspaceId,
    pub lo: Vec<u8>,
    pub hi: Option<Vec<u8>>,
}

/// A range that is being read, or was.
struct RangeRead {
    keyspace: KeyspaceId,
    lo: Vec<u8>,
    hi: Option<Vec<u8>>,
    /// The last key that the range handed out from its front, and from its back.
    front: Option<Vec<u8>>,
    back: Option<Vec<u8>>,
    /// Whether it handed out all its records.
    is_whole: bool,
}

/// The number of a range among the reads of its transaction.
#[derive(Clone, Copy)]
pub(crate) struct RangeNumber(usize);

/// What a transaction has read.
pub(crate) struct Reads {
    points: Vec<Point>,
    keys: Vec<u8>,
    ranges: Vec<RangeRead>,
    /// Bytes of the ranges' keys.
    range_bytes: usize,
    /// Number of points when the list was last searched for double ones.
    distinct: usize,
    bytes_max: usize,
}

impl Reads {
    /// No reads. They may take `bytes_max` bytes of memory.
    pub fn new(bytes_max: usize) -> Self {
        Reads {
            points: Vec::new(),
            keys: Vec::new(),
            ranges: Vec::new(),
            range_bytes: 0,
            distinct: 0,
            bytes_max,
        }
    }

    /// Bytes of memory that the reads take.
    pub fn bytes(&self) -> usize {
        self.keys.len()
            + self.points.len() * size_of::<Point>()
            + self.ranges.len() * size_of::<RangeRead>()
            + self.range_bytes
    }

    /// Adds a key. Fails if the reads take more memory than they may.
    pub fn add(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<()> {
        self.points.push(Point {
            keyspace,
            hash: hash64(key),
            at: self.keys.len(),
            bytes: key.len(),
        });
        self.keys.extend_from_slice(key);
        if self.points.len() >= READS_FIRST.max(2 * self.distinct) {
            self.leave_out_double_ones();
        }
        self.check_memory()
    }

    /// Adds a range, from which nothing was handed out yet.
    pub fn begin_range(
        &mut self,
        keyspace: KeyspaceId,
        bounds: KeyBounds<'_>,
    ) -> Result<RangeNumber> {
        let (lo, hi) = half_open(bounds);
        self.range_bytes += lo.len() + hi.as_ref().map_or(0, Vec::len);
        self.ranges.push(RangeRead {
            keyspace,
            lo,
            hi,
            front: None,
            back: None,
            is_whole: false,
        });
        self.check_memory()?;
        Ok(RangeNumber(self.ranges.len() - 1))
    }

    /// Notes a key that a range handed out.
    pub fn handed_out(
        &mut self,
        RangeNumber(number): RangeNumber,
        direction: Direction,
        key: &[u8],
    ) -> Result<()> {
        let Some(range) = self.ranges.get_mut(number) else {
            return Ok(());
        };
        let last = match direction {
            Direction::Forward => &mut range.front,
            Direction::Backward => &mut range.back,
        };
        let last = last.get_or_insert_default();
        self.range_bytes = self.range_bytes + key.len() - last.len();
        last.clear();
        last.extend_from_slice(key);
        self.check_memory()
    }

    /// Notes that a range handed out all its records.
    pub fn is_whole(&mut self, RangeNumber(number): RangeNumber) {
        if let Some(range) = self.ranges.get_mut(number) {
            range.is_whole = true;
        }
    }

    fn check_memory(&self) -> Result<()> {
        match self.bytes() <= self.bytes_max {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::TooLarge,
                "the transaction has read more keys than it may remember: read less in one \
                 transaction, raise TransactionOptions::read_bytes_max, or use Isolation::Snapshot",
            )
            .with("bytes", self.bytes())
            .with("limit", self.bytes_max)),
        }
    }

    fn key(&self, point: &Point) -> &[u8] {
        &self.keys[point.at..point.at + point.bytes]
    }

    fn leave_out_double_ones(&mut self) {
        let mut points = std::mem::take(&mut self.points);
        points.sort_unstable_by_key(|point| (point.keyspace, point.hash, point.at));
        points.dedup_by(|a, b| {
            (a.keyspace, a.hash) == (b.keyspace, b.hash) && self.key(a) == self.key(b)
        });
        points.sort_unstable_by_key(|point| point.at);
        let mut end = 0;
        for point in &mut points {
            self.keys.copy_within(point.at..point.at + point.bytes, end);
            point.at = end;
            end += point.bytes;
        }
        self.keys.truncate(end);
        self.distinct = points.len();
        self.points = points;
    }

    /// What must not change: these reads, and the keys and stretches that the transaction wrote.
    pub fn footprint<'a>(
        &self,
        written: impl Iterator<Item = (KeyspaceId, &'a [u8])>,
        deleted: impl Iterator<Item = Stretch>,
    ) -> Footprint {
        let (mut points, mut keys) = (self.points.clone(), self.keys.clone());
        if mutant::active("transaction-forgets-reads") {
            points.clear();
        }
        for (keyspace, key) in written {
            points.push(Point {
                keyspace,
                hash: hash64(key),
                at: keys.len(),
                bytes: key.len(),
            });
            keys.extend_from_slice(key);
        }
        points.sort_unstable_by_key(|point| (point.keyspace, point.hash));
        let mut stretches: Vec<_> = self.ranges.iter().flat_map(RangeRead::stretches).collect();
        if mutant::active("transaction-forgets-ranges") {
            stretches.clear();
        }
        stretches.extend(deleted);
        Footprint {
            points,
            keys,
            stretches: joined(stretches),
        }
    }
}

impl RangeRead {
    /// The keys of which the caller knows the records: from a bound to the last key that the range
    /// handed out from there, and all keys once it has handed out everything.
    fn stretches(&self) -> impl Iterator<Item = Stretch> {
        let stretch = |lo: &[u8], hi: Option<Vec<u8>>| Stretch {
            keyspace: self.keyspace,
            lo: lo.to_vec(),
            hi,
        };
        let behind = |key: &Vec<u8>| Some([key, &[0][..]].concat());
        let is_whole = self.is_whole && !mutant::active("whole-range-ends-at-its-last-record");
        let (front, back) = match is_whole {
            true => (Some(stretch(&self.lo, self.hi.clone())), None),
            false => (
                self.front
                    .as_ref()
                    .map(|key| stretch(&self.lo, behind(key))),
                self.back.as_ref().map(|key| stretch(key, self.hi.clone())),
            ),
        };
        let is_some = |stretch: &Stretch| stretch.hi.as_ref().is_none_or(|hi| *hi > stretch.lo);
        front.into_iter().chain(back).filter(is_some)
    }
}

/// Sorts stretches, and joins those that meet.
fn joined(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_unstable();
    let mut joined: Vec<Stretch> = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        let last = joined.last_mut().filter(|last| {
            last.keyspace == stretch.keyspace && last.hi.as_ref().is_none_or(|hi| *hi >= stretch.lo)
        });
        match last {
            None => joined.push(stretch),
            Some(last) => {
                if let Some(hi) = &last.hi
                    && stretch.hi.as_ref().is_none_or(|other| other > hi)
                {
                    last.hi = stretch.hi;
                }
            }
        }
    }
    joined
}

/// The first bytes of a key, as an entry of the log has them.
fn head(key: &[u8]) -> [u8; TOUCH_HEAD_BYTES] {
    Touch::key(KeyspaceId(0), key, 0).head
}

/// Keys that must not change until a transaction commits.
pub(crate) struct Footprint {
    /// In the order of keyspace and hash.
    points: Vec<Point>,
    keys: Vec<u8>,
    /// In the order of keyspace and keys, and apart from each other.
    stretches: Vec<Stretch>,
}

impl Footprint {
    /// Whether a record may have changed a key. If not, it has changed none.
    pub fn may_be_hit_by(&self, entry: &Touched) -> bool {
        let touch = &entry.touch;
        if touch.reach == Reach::All {
            return true;
        }
        let place = (touch.keyspace, touch.hash);
        let is_point = self
            .points
            .binary_search_by_key(&place, |point| (point.keyspace, point.hash));
        is_point.is_ok() || self.may_reach(touch.keyspace, &touch.head)
    }

    /// Whether a key with these first bytes may lie in a stretch.
    fn may_reach(&self, keyspace: KeyspaceId, touched: &[u8; TOUCH_HEAD_BYTES]) -> bool {
        // Stretches are apart. So of those that begin at or before the key, the last one ends last.
        let begun = self.stretches.partition_point(|stretch| {
            (stretch.keyspace, &head(&stretch.lo)) <= (keyspace, touched)
        });
        let last = begun.checked_sub(1).and_then(|at| self.stretches.get(at));
        last.is_some_and(|stretch| {
            let reaches = |hi: &Vec<u8>| head(hi) >= *touched;
            stretch.keyspace == keyspace && stretch.hi.as_ref().is_none_or(reaches)
        })
    }

    /// The keyspaces, each once.
    pub fn keyspaces(&self) -> Vec<KeyspaceId> {
        let of_points = self.points.iter().map(|point| point.keyspace);
        let of_stretches = self.stretches.iter().map(|stretch| stretch.keyspace);
        let mut all: Vec<_> = of_points.chain(of_stretches).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The keys of a keyspace.
    pub fn keys_of(&self, keyspace: KeyspaceId) -> impl Iterator<Item = &[u8]> {
        let from = self
            .points
            .partition_point(|point| point.keyspace < keyspace);
        let all = self.points[from..].iter();
        all.take_while(move |point| point.keyspace == keyspace)
            .map(|point| &self.keys[point.at..point.at + point.bytes])
    }

    /// The stretches of a keyspace.
    pub fn stretches_of(&self, keyspace: KeyspaceId) -> impl Iterator<Item = &Stretch> {
        let from = self
            .stretches
            .partition_point(|stretch| stretch.keyspace < keyspace);
        let all = self.stretches[from..].iter();
        all.take_while(move |stretch| stretch.keyspace == keyspace)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use terrapin_base::Lsn;

    use super::*;

    const ID: KeyspaceId = KeyspaceId(3);

    fn touches(footprint: &Footprint, keyspace: KeyspaceId, key: &str) -> bool {
        footprint.may_be_hit_by(&Touched {
            lsn: Lsn(1),
            touch: Touch::key(keyspace, key.as_bytes(), hash64(key.as_bytes())),
        })
    }

    fn of(reads: &Reads) -> Footprint {
        reads.footprint(std::iter::empty(), std::iter::empty())
    }

    #[test]
    fn a_range_covers_what_it_handed_out_and_all_once_it_is_whole() {
        let mut reads = Reads::new(1 << 20);
        let bounds = (Bound::Included(&b"b"[..]), Bound::Excluded(&b"y"[..]));
        let range = reads.begin_range(ID, bounds).unwrap();
        assert!(!touches(&of(&reads), ID, "c"));
        reads.handed_out(range, Direction::Forward, b"d").unwrap();
        reads.handed_out(range, Direction::Forward, b"f").unwrap();
        reads.handed_out(range, Direction::Backward, b"t").unwrap();
        let now = of(&reads);
        for (key, is_hit) in [("a", false), ("b", true), ("e", true), ("f", true)] {
            assert_eq!(touches(&now, ID, key), is_hit, "{key}");
        }
        for (key, is_hit) in [
            ("g", false),
            ("s", false),
            ("t", true),
            ("x", true),
            ("z", false),
        ] {
            assert_eq!(touches(&now, ID, key), is_hit, "{key}");
        }
        assert!(!touches(&now, KeyspaceId(2), "e") && !touches(&now, KeyspaceId(4), "e"));
        reads.is_whole(range);
        let now = of(&reads);
        assert!(touches(&now, ID, "g") && touches(&now, ID, "s") && !touches(&now, ID, "a"));
        assert_eq!(now.stretches.len(), 1);
        assert!(now.keyspaces() == [ID] && now.keys_of(ID).next().is_none());
    }

    #[test]
    fn stretches_that_meet_are_joined() {
        let stretch = |keyspace, lo: &str, hi: Option<&str>| Stretch {
            keyspace: KeyspaceId(keyspace),
            lo: lo.into(),
            hi: hi.map(Into::into),
        };
        let got = joined(vec![
            stretch(1, "m", None),
            stretch(0, "c", Some("e")),
            stretch(0, "a", Some("c")),
            stretch(0, "x", Some("z")),
            stretch(0, "a", Some("b")),
            stretch(1, "p", Some("q")),
        ]);
        let wanted = [
            stretch(0, "a", Some("e")),
            stretch(0, "x", Some("z")),
            stretch(1, "m", None),
        ];
        assert_eq!(got, wanted);
    }

    #[test]
    fn keys_that_were_read_before_take_no_more_memory() {
        let mut reads = Reads::new(64 << 10);
        for number in 0..100_000u32 {
            reads.add(ID, &(number % 300).to_be_bytes()).unwrap();
        }
        let footprint = of(&reads);
        for number in 0..300u32 {
            let key = number.to_be_bytes();
            let touch = Touch::key(ID, &key, hash64(&key));
            assert!(footprint.may_be_hit_by(&Touched { lsn: Lsn(1), touch }));
            assert!(footprint.keys_of(ID).any(|other| other == key));
        }
        assert!(!touches(&footprint, ID, "z"));
        let failed = (0..100_000u32).find_map(|number| reads.add(ID, &number.to_be_bytes()).err());
        assert_eq!(failed.unwrap().kind(), ErrorKind::TooLarge);
    }
}
