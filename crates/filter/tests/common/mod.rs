//! Helpers of the filter's tests.

/// In some runs, crowds the hashes into few partitions, cells or quotients.
pub fn crowd(hashes: &mut [u64], narrow: u64) {
    if narrow.is_multiple_of(2) {
        hashes.iter_mut().for_each(|hash| *hash &= narrow);
    }
}
