//! [`Portion`]: how much of a memtable one checkpoint merges while it writes from the reserve (D10,
//! decision 0038).
//!
//! The bytes that a slice writes depend on the number of leaves that its records touch. That number
//! is unknown beforehand. The size of the next slice therefore follows from the bytes that the last
//! one wrote and from the room now. A slice that is too large fails, after filling all the room in
//! vain. Slices that are too small make many checkpoints, each with its syncs.

/// A slice that found no room is followed by one of 1/n of its size.
const SHRINKS_TO: u64 = 4;

/// Key and value bytes of the next slice.
pub(super) struct Portion {
    bytes: u64,
    bytes_max: u64,
}

impl Portion {
    /// The largest portion.
    pub fn new(bytes_max: u64) -> Self {
        Portion {
            bytes: bytes_max,
            bytes_max,
        }
    }

    /// Key and value bytes of the next slice: at least 1, so that a slice has a record.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A slice of this size was merged. It wrote `wrote` bytes and left `room` bytes for the next
    /// one.
    pub fn fitted(&mut self, wrote: u64, room: u64) {
        let budget = u128::from(room - room / 4);
        let next = u128::from(self.bytes) * budget / u128::from(wrote.max(1));
        let next = u64::try_from(next).unwrap_or(u64::MAX);
        // The records of a small slice are in one leaf, so twice as many records write as many
        // bytes.
        let least = match wrote.saturating_mul(2) <= room {
            true => self.bytes.saturating_mul(2),
            false => 1,
        };
        self.bytes = next.max(least).min(self.bytes_max);
    }

    /// A slice of this size found no room. Returns whether a smaller one may find some.
    pub fn found_no_room(&mut self) -> bool {
        let may_be_smaller = self.bytes > 1;
        self.bytes = (self.bytes / SHRINKS_TO).max(1);
        may_be_smaller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_follows_from_the_bytes_of_the_last_one_and_the_room() {
        const MAX: u64 = 256 << 10;
        let mut portion = Portion::new(MAX);
        assert_eq!(portion.bytes(), MAX);
        let mut failures = 0;
        while portion.found_no_room() {
            failures += 1;
        }
        assert!(failures < 10 && portion.bytes() == 1, "{failures} failures");
        // Room for two leaves: twice as many records each time.
        portion.fitted(100, 250);
        assert_eq!(portion.bytes(), 2);
        // Much room: a few checkpoints, not one for each power of two.
        portion.fitted(100 << 10, 100 << 20);
        assert!(portion.bytes() > 1000, "{}", portion.bytes());
        portion.fitted(200 << 10, 100 << 20);
        assert_eq!(portion.bytes(), MAX);
        // A slice that took almost all the room is not repeated.
        portion.fitted(60 << 20, 50 << 20);
        assert!((MAX / 2..MAX).contains(&portion.bytes()));
        portion.fitted(u64::MAX, 0);
        assert_eq!(portion.bytes(), 1);
    }
}
