//! The word that the map keeps for a key: some bits of its hash, and where its value is.
//!
//! ```text
//! bits  15           4     1      20          19         5
//!       fingerprint  side  other  page index  place/32   size class
//! ```
//!
//! A key's *home* bucket follows from its hash h (64 bits, of which the first choose the bucket):
//! home = h · n / 2⁶⁴ of n buckets. The fingerprint has the bits of h from position `skip` on,
//! where 2^skip < n ≤ 2^(skip + 1). So home and fingerprint together name the first bits of h
//! exactly, and an entry finds its bucket among another number of buckets without its key. Each
//! doubling of n takes the first bit of a fingerprint and adds none: the lowest bit that is set
//! ends it, and is no part of it (InfiniFilter, SIGMOD '23, §3).

use terrapin_base::mutant;

/// Bits of the fingerprint's field, its end included.
const FIELD_BITS: u32 = 15;
/// The longest fingerprint.
pub(crate) const FINGERPRINT_BITS: u32 = FIELD_BITS - 1;
const SIDE_BITS: u32 = 4;
/// The side is these bits of the hash: behind all that buckets and fingerprints take.
const SIDE_FROM: u32 = 16;
const PAGE_BITS: u32 = 20;
const PLACE_BITS: u32 = 19;
const CLASS_BITS: u32 = 5;

const PLACE_SHIFT: u32 = CLASS_BITS;
const PAGE_SHIFT: u32 = PLACE_SHIFT + PLACE_BITS;
const OTHER_SHIFT: u32 = PAGE_SHIFT + PAGE_BITS;
const SIDE_SHIFT: u32 = OTHER_SHIFT + 1;
const FIELD_SHIFT: u32 = SIDE_SHIFT + SIDE_BITS;
const LOCATION_MASK: u64 = (1 << OTHER_SHIFT) - 1;

/// Page indexes are below this.
pub const PAGES_MAX: u32 = 1 << PAGE_BITS;
/// Bytes of a step of [`Location::place`].
pub const PLACE_BYTES: u64 = 32;
/// Places are below this.
pub const PLACES_MAX: u32 = 1 << PLACE_BITS;

/// Where a value is: the index of its page, where it begins there in steps of [`PLACE_BYTES`], and
/// how much to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The page's index, below [`PAGES_MAX`].
    pub page: u32,
    /// Where the record begins in the page, in steps of [`PLACE_BYTES`], below [`PLACES_MAX`].
    pub place: u32,
    /// How long the record is.
    pub class: SizeClass,
}

/// A length to read, in 32 steps of about 1.28 from 512 bytes to 1.1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

const CLASSES: usize = 1 << CLASS_BITS;
/// The most bytes of each class.
const CLASS_BYTES: [u32; CLASSES] = {
    let mut bytes = [512_u32; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        bytes[class] = (bytes[class - 1] * 32 / 25).next_multiple_of(32);
        class += 1;
    }
    bytes
};

impl SizeClass {
    /// The smallest class that holds so many bytes; none where none does.
    ///
    /// ```
    /// use terrapin_valuemap::SizeClass;
    /// let class = SizeClass::of(4096).unwrap();
    /// assert!((4096..=4096 * 128 / 100 + 32).contains(&class.bytes_max()));
    /// assert!(SizeClass::of(2 << 20).is_none());
    /// ```
    #[must_use]
    pub fn of(bytes: u32) -> Option<Self> {
        let class = CLASS_BYTES.partition_point(|&most| most < bytes);
        (class < CLASSES).then_some(SizeClass(class as u8))
    }

    /// The most bytes that a record of this class has.
    #[must_use]
    pub fn bytes_max(self) -> u32 {
        CLASS_BYTES[usize::from(self.0)]
    }
}

/// How many buckets there are, and what follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) buckets: u64,
}

/// The first bits of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// They are the upper bits, and zeros follow.
    first: u64,
    count: u32,
}

impl Prefix {
    /// The largest hash that begins so.
    fn last(self) -> u64 {
        self.first | u64::MAX.checked_shr(self.count).unwrap_or(0)
    }
}

impl Geometry {
    /// Bits of a hash in front of the fingerprint.
    #[inline]
    fn skip(self) -> u32 {
        u64::BITS - 1 - (self.buckets - 1).leading_zeros()
    }

    #[inline]
    pub(crate) fn home(self, hash: u64) -> u64 {
        ((u128::from(hash) * u128::from(self.buckets)) >> 64) as u64
    }

    /// How far a key's other bucket is behind its home.
    #[inline]
    fn distance(self, side: u64) -> u64 {
        (side + 1) * (self.buckets * 16 / 277)
    }

    #[inline]
    pub(crate) fn other(self, home: u64, side: u64) -> u64 {
        let other = home + self.distance(side);
        if other < self.buckets {
            other
        } else {
            other - self.buckets
        }
    }

    /// The home of an entry that stands in a bucket.
    fn home_of(self, bucket: u64, entry: Entry) -> u64 {
        if !entry.is_in_other() {
            return bucket;
        }
        let distance = self.distance(entry.side());
        match bucket.checked_sub(distance) {
            Some(home) => home,
            None => bucket + self.buckets - distance,
        }
    }

    /// The bucket that an entry of this one may stand in, too.
    pub(crate) fn elsewhere(self, bucket: u64, entry: Entry) -> u64 {
        let home = self.home_of(bucket, entry);
        match entry.is_in_other() {
            true => home,
            false => self.other(home, entry.side()),
        }
    }

    /// The first hash of a bucket; that of the bucket behind the last is beyond all hashes.
    fn first_hash(self, bucket: u64) -> u128 {
        (u128::from(bucket) << 64).div_ceil(u128::from(self.buckets))
    }

    /// The first bits of the hash of an entry. None where more than one beginning fits.
    pub(crate) fn prefix_of(self, bucket: u64, entry: Entry) -> Option<Prefix> {
        let home = self.home_of(bucket, entry);
        let (length, fingerprint) = entry.fingerprint();
        let skip = self.skip();
        let count = skip + length;
        let first = self.first_hash(home) as u64;
        let last = (self.first_hash(home + 1) - 1) as u64;
        let upper = |hash: u64| hash.checked_shr(u64::BITS - skip).unwrap_or(0);
        let mut found = None;
        for top in upper(first)..=upper(last) {
            let bits = (top << length) | fingerprint;
            let prefix = Prefix {
                first: bits.checked_shl(u64::BITS - count).unwrap_or(0),
                count,
            };
            if prefix.first <= last && prefix.last() >= first && found.replace(prefix).is_some() {
                return None;
            }
        }
        found
    }

    /// Home and fingerprint field of what begins so. None where that leaves the home open, or no
    /// bit for the fingerprint.
    pub(crate) fn place(self, prefix: Prefix, fingerprint_bits: u32) -> Option<(u64, u64)> {
        let home = self.home(prefix.first);
        if home != self.home(prefix.last()) && !mutant::active("ambiguous-entries-stay") {
            return None;
        }
        let skip = self.skip();
        let length = prefix.count.checked_sub(skip)?.min(fingerprint_bits);
        if length == 0 {
            return None;
        }
        Some((home, field(prefix.first << skip, length)))
    }

    /// The word that a key's entries are compared with.
    #[inline]
    pub(crate) fn probe(self, hash: u64, fingerprint_bits: u32) -> Probe {
        let side = hash >> SIDE_FROM & ((1 << SIDE_BITS) - 1);
        let field = field(hash << self.skip(), fingerprint_bits);
        Probe(field << FIELD_SHIFT | side << SIDE_SHIFT)
    }
}

/// The first `length` bits of a word, and their end.
#[inline]
fn field(bits: u64, length: u32) -> u64 {
    let fingerprint = bits >> (u64::BITS - length);
    (fingerprint << 1 | 1) << (FINGERPRINT_BITS - length)
}

/// What entries of a key have in common.
#[derive(Clone, Copy)]
pub(crate) struct Probe(u64);

impl Probe {
    #[inline]
    pub(crate) fn side(self) -> u64 {
        self.0 >> SIDE_SHIFT & ((1 << SIDE_BITS) - 1)
    }

    /// Whether an entry may be the key's, in its home or in its other bucket.
    #[inline]
    pub(crate) fn matches(self, entry: Entry, in_other: bool) -> bool {
        let field = entry.0 >> FIELD_SHIFT;
        let end = field & field.wrapping_neg();
        let compared = !((end << 1).wrapping_sub(1)) << FIELD_SHIFT | 0x1f << OTHER_SHIFT;
        let expected = self.0 | u64::from(in_other) << OTHER_SHIFT;
        !entry.is_vacant() && (entry.0 ^ expected) & compared == 0
    }

    #[inline]
    pub(crate) fn entry(self, in_other: bool, location: Location) -> Entry {
        Entry(self.0 | u64::from(in_other) << OTHER_SHIFT | location.bits())
    }
}

impl Location {
    fn bits(self) -> u64 {
        debug_assert!(self.page < PAGES_MAX && self.place < PLACES_MAX);
        let page = u64::from(self.page & (PAGES_MAX - 1)) << PAGE_SHIFT;
        page | u64::from(self.place & (PLACES_MAX - 1)) << PLACE_SHIFT | u64::from(self.class.0)
    }
}

/// A word of the map; zero is a vacant one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    pub(crate) const VACANT: Entry = Entry(0);

    #[inline]
    pub(crate) fn is_vacant(self) -> bool {
        self.0 == 0
    }

    fn is_in_other(self) -> bool {
        self.0 >> OTHER_SHIFT & 1 == 1
    }

    pub(crate) fn side(self) -> u64 {
        self.0 >> SIDE_SHIFT & ((1 << SIDE_BITS) - 1)
    }

    /// Bits of the fingerprint, and the fingerprint.
    fn fingerprint(self) -> (u32, u64) {
        let field = self.0 >> FIELD_SHIFT;
        let length = FINGERPRINT_BITS.saturating_sub(field.trailing_zeros());
        (length, field >> (FIELD_BITS - length))
    }

    #[inline]
    pub(crate) fn location(self) -> Location {
        Location {
            page: (self.0 >> PAGE_SHIFT) as u32 & (PAGES_MAX - 1),
            place: (self.0 >> PLACE_SHIFT) as u32 & (PLACES_MAX - 1),
            class: SizeClass((self.0 & ((1 << CLASS_BITS) - 1)) as u8),
        }
    }

    pub(crate) fn page(self) -> u32 {
        (self.0 >> PAGE_SHIFT) as u32 & (PAGES_MAX - 1)
    }

    /// The same entry for the other one of its buckets.
    pub(crate) fn swapped(self) -> Entry {
        Entry(self.0 ^ 1 << OTHER_SHIFT)
    }

    /// The same location under another field.
    pub(crate) fn moved(self, field: u64, in_other: bool) -> Entry {
        let side = self.side() << SIDE_SHIFT;
        let other = u64::from(in_other) << OTHER_SHIFT;
        Entry(field << FIELD_SHIFT | side | other | self.0 & LOCATION_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(i: u64) -> u64 {
        terrapin_base::checksum::hash64(&i.to_le_bytes())
    }

    fn location(i: u64) -> Location {
        Location {
            page: i as u32 % PAGES_MAX,
            place: (i * 7) as u32 % PLACES_MAX,
            class: SizeClass((i % 32) as u8),
        }
    }

    #[test]
    fn classes_grow_by_at_most_29_percent_and_hold_what_they_say() {
        assert!(CLASS_BYTES[CLASSES - 1] >= 1 << 20);
        for pair in CLASS_BYTES.windows(2) {
            assert!(pair[1] <= pair[0] * 129 / 100 + 32 && pair[1] > pair[0]);
        }
        for bytes in [0, 1, 512, 513, 4096, 65_536, CLASS_BYTES[31]] {
            let class = SizeClass::of(bytes).unwrap();
            assert!(class.bytes_max() >= bytes);
        }
        assert_eq!(SizeClass::of(CLASS_BYTES[31] + 1), None);
    }

    #[test]
    fn an_entry_keeps_its_location_and_matches_its_key_in_either_bucket() {
        for i in 0..20_000 {
            let geometry = Geometry {
                buckets: 64 + hash(i) % 5000,
            };
            let (h, probe) = (hash(i), geometry.probe(hash(i), FINGERPRINT_BITS));
            for in_other in [false, true] {
                let entry = probe.entry(in_other, location(i));
                assert_eq!(entry.location(), location(i));
                assert!(probe.matches(entry, in_other) && !probe.matches(entry, !in_other));
                let home = geometry.home(h);
                let bucket = match in_other {
                    true => geometry.other(home, probe.side()),
                    false => home,
                };
                assert_eq!(geometry.home_of(bucket, entry), home);
                assert!(bucket < geometry.buckets);
            }
            assert!(!probe.matches(Entry::VACANT, false));
        }
    }

    /// Over many sizes an entry that still finds a bucket finds that of its key, and still matches
    /// it. So no entry of a key is hidden from those who look for it.
    #[test]
    fn entries_that_move_through_sizes_stay_with_their_keys_or_go() {
        for bits in [4, FINGERPRINT_BITS] {
            let mut dropped = 0;
            for i in 0..3000 {
                let h = hash(i);
                // Just above a power of two, two beginnings of a hash fit some entries.
                let mut geometry = Geometry {
                    buckets: 64 + h % 200,
                };
                let mut entry = geometry.probe(h, bits).entry(false, location(i));
                let mut bucket = geometry.home(h);
                for step in 0..12 {
                    let buckets = match hash(i ^ step << 32) % 4 {
                        0 => (geometry.buckets * 7 / 8).max(64),
                        1 => geometry.buckets * 2,
                        _ => geometry.buckets * 9 / 8,
                    };
                    let next = Geometry { buckets };
                    let prefix = geometry.prefix_of(bucket, entry);
                    let Some((home, field)) = prefix.and_then(|p| next.place(p, bits)) else {
                        dropped += 1;
                        break;
                    };
                    assert_eq!(home, next.home(h));
                    let probe = next.probe(h, bits);
                    let in_other = step % 2 == 1;
                    entry = entry.moved(field, in_other);
                    assert!(probe.matches(entry, in_other), "{entry:x?}");
                    assert_eq!(entry.location(), location(i));
                    bucket = match in_other {
                        true => next.other(home, entry.side()),
                        false => home,
                    };
                    geometry = next;
                }
            }
            // Long fingerprints leave their bucket open once in some thousand steps.
            assert!(bits == 4 || dropped < 30, "{dropped} of 3000 dropped");
        }
    }
}
