//! The list of hashes of a run: the prefix of each record, in about 17 to 21 bits. A page of its
//! own has it, whose checksum covers it.
//!
//! ```text
//! head  records: varint, first prefix: varint, k: u8 (bits of a remainder, at most 39)
//! bits  for each further record, the gap to the one before: gap >> k ones and a zero, then k bits,
//!       lowest first; zeros up to a byte
//! ```

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{Error, Result};

use crate::digits::{PREFIX_BITS, PREFIXES};

/// Encodes the prefixes of a run's records. Fails with `Internal` for none, and if they descend.
pub(crate) fn encode(prefixes: &[u64]) -> Result<Vec<u8>> {
    let (Some(&first), Some(&last)) = (prefixes.first(), prefixes.last()) else {
        return Err(Error::internal("a list of no hashes"));
    };
    let mean = last.saturating_sub(first) / prefixes.len() as u64;
    let k = mean.checked_ilog2().unwrap_or(0).min(PREFIX_BITS - 1);
    let mut out = Vec::with_capacity(16 + prefixes.len() * (k as usize + 3) / 8);
    put_varint(&mut out, prefixes.len() as u64);
    put_varint(&mut out, first);
    out.push(k as u8);
    let mut writer = BitWriter { out, used: 8 };
    for pair in prefixes.windows(2) {
        let gap = pair[1].checked_sub(pair[0]);
        writer.gap(
            gap.ok_or_else(|| Error::internal("hashes of a run descend"))?,
            k,
        );
    }
    Ok(writer.out)
}

struct BitWriter {
    out: Vec<u8>,
    /// Bits in use of the last byte; 8 at the start of one.
    used: u32,
}

impl BitWriter {
    /// Appends the lowest `count` bits, at most 40.
    fn bits(&mut self, mut bits: u64, mut count: u32) {
        while count > 0 {
            if self.used == 8 {
                self.out.push(0);
                self.used = 0;
            }
            let taken = count.min(8 - self.used);
            if let Some(last) = self.out.last_mut() {
                *last |= ((bits & ((1 << taken) - 1)) << self.used) as u8;
            }
            self.used += taken;
            bits >>= taken;
            count -= taken;
        }
    }

    fn gap(&mut self, gap: u64, k: u32) {
        let mut ones = gap >> k;
        while ones >= 32 {
            self.bits(u64::from(u32::MAX), 32);
            ones -= 32;
        }
        self.bits((1 << ones) - 1, ones as u32 + 1);
        self.bits(gap & ((1 << k) - 1), k);
    }
}

/// Decodes a list. What it allocates is bounded by the bytes' length. Errors: `Corrupt`.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<u64>> {
    let mut reader = Reader::new("list of hashes", bytes);
    let (records, first, k) = (reader.varint()?, reader.varint()?, reader.u8()?);
    let rest = reader.bytes(reader.remaining())?;
    // A gap takes a bit at least.
    let is_possible = records > 0 && records - 1 <= rest.len() as u64 * 8;
    if !is_possible || first >= PREFIXES || u32::from(k) >= PREFIX_BITS {
        return Err(Error::corrupt("impossible head of a list of hashes"));
    }
    let mut prefixes = Vec::with_capacity(records as usize);
    let mut reader = BitReader { bytes: rest, at: 0 };
    let mut prefix = first;
    prefixes.push(prefix);
    for _ in 1..records {
        let gap = reader.gap(u32::from(k));
        let next = gap.and_then(|gap| prefix.checked_add(gap));
        prefix = next
            .filter(|&next| next < PREFIXES)
            .ok_or_else(|| Error::corrupt("impossible gap in a list of hashes"))?;
        prefixes.push(prefix);
    }
    let is_at_end = reader.at.div_ceil(8) == rest.len();
    let padding = rest.last().map_or(0, |last| match reader.at % 8 {
        0 => 0,
        used => last >> used,
    });
    match is_at_end && padding == 0 {
        true => Ok(prefixes),
        false => Err(Error::corrupt("bytes behind a list of hashes")),
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    /// The next `count` bits, at most 40.
    fn bits(&mut self, count: u32) -> Option<u64> {
        let (mut bits, mut taken) = (0, 0);
        while taken < count {
            let byte = u64::from(*self.bytes.get(self.at / 8)?);
            let skipped = (self.at % 8) as u32;
            let own = (count - taken).min(8 - skipped);
            bits |= (byte >> skipped & ((1 << own) - 1)) << taken;
            taken += own;
            self.at += own as usize;
        }
        Some(bits)
    }

    fn gap(&mut self, k: u32) -> Option<u64> {
        let mut high = 0u64;
        loop {
            let byte = *self.bytes.get(self.at / 8)?;
            let skipped = (self.at % 8) as u32;
            let ones = (byte >> skipped).trailing_ones();
            high += u64::from(ones);
            self.at += ones as usize;
            if skipped + ones < 8 {
                self.at += 1;
                break;
            }
        }
        let low = self.bits(k)?;
        high.checked_mul(1 << k)?.checked_add(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        *state >> 24
    }

    #[test]
    fn lists_come_back_in_few_bits() {
        let mut state = 3;
        for count in [1, 2, 7, 512, 5_000] {
            for spread in [1, 1 << 10, PREFIXES] {
                let mut prefixes: Vec<_> =
                    (0..count).map(|_| random(&mut state) % spread).collect();
                prefixes.sort_unstable();
                let bytes = encode(&prefixes).unwrap();
                assert_eq!(decode(&bytes).unwrap(), prefixes);
                // A remainder, and two bits on average for the rest.
                let mean = (spread / count).max(1).ilog2() as usize;
                let most = 24 + count as usize * (mean + 4) / 8;
                assert!(bytes.len() <= most, "{count} of {spread}: {}", bytes.len());
            }
        }
        let far = [0, 0, 1, PREFIXES - 1];
        assert_eq!(decode(&encode(&far).unwrap()).unwrap(), far);
        assert!(encode(&[]).is_err() && encode(&[2, 1]).is_err());
    }

    #[test]
    fn hostile_lists_are_refused_and_never_panic() {
        let mut state = 5;
        let mut prefixes: Vec<_> = (0..600).map(|_| random(&mut state) % PREFIXES).collect();
        prefixes.sort_unstable();
        let bytes = encode(&prefixes).unwrap();
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err());
            let mut hostile = bytes.clone();
            hostile[at] ^= 1 << (random(&mut state) % 8);
            if let Ok(other) = decode(&hostile) {
                assert!(other.is_sorted() && other != prefixes);
            }
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(decode(&[0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0]).is_err());
    }
}
