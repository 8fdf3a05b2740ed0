//! How much of a memtable one checkpoint merges while it writes from the reserve (D10, decision
//! 0038).
//!
//! What a slice of a memtable writes depends on how many leaves its records lie in, which nobody
//! knows before. So the next slice follows from the last one: from what that wrote, and from the
//! room there is now. Slices that are too large fail, and each failure writes all the room there is
//! in vain; slices that are too small make many checkpoints, each with its syncs.

/// A slice that found no room is followed by one of this share (1/n).
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

    /// A slice of this size was merged, wrote so many bytes, and left so much room for the next.
    pub fn fitted(&mut self, wrote: u64, room: u64) {
        let budget = u128::from(room - room / 4);
        let next = u128::from(self.bytes) * budget / u128::from(wrote.max(1));
        let next = u64::try_from(next).unwrap_or(u64::MAX);
        // The records of a small slice lie in one leaf: twice as many write as much.
        let least = match wrote.saturating_mul(2) <= room {
            true => self.bytes.saturating_mul(2),
            false => 1,
        };
        self.bytes = next.max(least).min(self.bytes_max);
    }

    /// A slice of this size found no room. Whether a smaller one may.
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
    fn a_portion_follows_from_what_the_last_one_wrote_and_from_the_room_there_is() {
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
        // One that took almost all there was is not repeated.
        portion.fitted(60 << 20, 50 << 20);
        assert!((MAX / 2..MAX).contains(&portion.bytes()));
        portion.fitted(u64::MAX, 0);
        assert_eq!(portion.bytes(), 1);
    }
}
