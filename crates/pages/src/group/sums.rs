//! Packed sums of what is before each block of a group. Blocks are much alike, so the sums differ
//! little from even shares of the total. Only the differences are kept. Each takes as many bytes as
//! the largest one needs.

/// Bits of a share behind the point.
const POINT: u32 = 24;
/// This many bytes must follow the packed differences, because a read of any of them takes eight.
pub(super) const SLACK_BYTES: usize = 8;

/// How sums are packed. The owner holds the memory of the differences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    /// The position of the first difference.
    at: u32,
    /// Bytes of each difference.
    width: u8,
    /// The average distance between two sums.
    share: u64,
    /// The least difference. Negative numbers wrap around.
    least: u64,
}

impl Sums {
    /// Packs sums and appends the differences to `out`, at less than 4 GiB. Sums may be any
    /// numbers. Sums that ascend in even steps take no room.
    pub(super) fn pack(sums: &[u64], out: &mut Vec<u8>) -> Self {
        let last = sums.last().copied().unwrap_or(0);
        let steps = sums.len().saturating_sub(1).max(1) as u128;
        let share = ((u128::from(last) << POINT) / steps) as u64;
        let difference = |(number, &sum): (usize, &u64)| sum.wrapping_sub(even(share, number));
        let signed = |difference: u64| difference as i64;
        let differences = || sums.iter().enumerate().map(difference);
        let least = differences().map(signed).min().unwrap_or(0) as u64;
        let largest = differences().map(|d| d.wrapping_sub(least)).max();
        let width = 8 - largest.unwrap_or(0).leading_zeros() as usize / 8;
        let at = out.len() as u32;
        for difference in differences() {
            out.extend_from_slice(&difference.wrapping_sub(least).to_le_bytes()[..width]);
        }
        Sums {
            at,
            width: width as u8,
            share,
            least,
        }
    }

    /// The sum of this number. Beyond the last sum the call panics or returns any number.
    #[inline]
    pub(super) fn get(&self, memory: &[u8], number: usize) -> u64 {
        let at = self.at as usize + number * usize::from(self.width);
        let mut eight = [0; 8];
        eight.copy_from_slice(&memory[at..at + 8]);
        // The shift removes the bytes behind the difference, or all of them if it has none.
        let others = 64 - 8 * u32::from(self.width);
        let difference = u64::from_le_bytes(eight).unbounded_shl(others) >> (others & 63);
        even(self.share, number)
            .wrapping_add(self.least)
            .wrapping_add(difference)
    }
}

/// This many even shares.
#[inline]
fn even(share: u64, number: usize) -> u64 {
    share.wrapping_mul(number as u64) >> POINT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(sums: &[u64]) -> usize {
        let mut memory = vec![7; 3];
        let packed = Sums::pack(sums, &mut memory);
        let bytes = memory.len() - 3;
        memory.resize(memory.len() + SLACK_BYTES, 0xff);
        for (number, &sum) in sums.iter().enumerate() {
            assert_eq!(packed.get(&memory, number), sum, "{number} of {sums:?}");
        }
        bytes
    }

    #[test]
    fn any_sums_round_trip() {
        let mut random = 1u64;
        let mut draw = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            random >> (random >> 58)
        };
        for count in 0..60 {
            for _ in 0..20 {
                packed(&(0..count).map(|_| draw()).collect::<Vec<_>>());
            }
        }
        packed(&[0, u64::MAX]);
        packed(&[0, 1, u64::MAX, u64::MAX]);
        packed(&[u64::MAX, 0, 1 << 63]);
    }

    #[test]
    fn similar_sums_take_little_memory() {
        assert_eq!(packed(&[0, 4096, 8192, 12_288]), 0);
        let uneven: Vec<u64> = (0..1000).map(|i| i * 4000 + i % 7).collect();
        assert_eq!(packed(&uneven), 1000);
    }
}
