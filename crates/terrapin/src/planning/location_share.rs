//! The memory of the location map, by what its entries save beside cached blocks.
//!
//! A get that the map answers needs no block of the tree's leaves. So it saves a read as often as a
//! lookup of a block misses. A byte of the map saves as many reads as its hits over its bytes. A
//! byte of the block cache saves what its oldest quarter saves.

/// Parts (1/n) of the memory that writes leave: at most, at first, at least, and in one step.
const MOST_PART: u64 = 4;
const FIRST_PART: u64 = 20;
const LEAST_PART: u64 = 80;
const STEP_PART: u64 = 40;
/// With fewer hits and rescues, the limit does not change.
const SAVED_MIN: u64 = 64;

/// What map and blocks have saved since the database was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocationSavings {
    /// Gets that the map answered.
    pub hits: u64,
    /// Bytes of the map now.
    pub map_bytes: u64,
    /// First uses of blocks in the oldest quarter of the cache.
    pub rescues: u64,
    /// Bytes of cached blocks now.
    pub block_bytes: u64,
    /// Lookups of blocks, and those that missed.
    pub lookups: u64,
    pub misses: u64,
}

/// The most that a map of a budget can take.
pub(crate) fn most_bytes(limit_bytes: u64) -> u64 {
    limit_bytes / MOST_PART
}

/// The limit of a new map.
pub(crate) fn first_bytes(room_bytes: u64) -> u64 {
    room_bytes / FIRST_PART
}

/// The map's next limit after `bytes_max`.
pub(crate) fn next_bytes(
    last: &LocationSavings,
    now: &LocationSavings,
    bytes_max: u64,
    room_bytes: u64,
) -> u64 {
    let since = |of: fn(&LocationSavings) -> u64| of(now).saturating_sub(of(last));
    let (hits, rescues) = (since(|s| s.hits), since(|s| s.rescues));
    let within = |bytes: u64| bytes.clamp(room_bytes / LEAST_PART, room_bytes / MOST_PART);
    if hits.saturating_add(rescues) < SAVED_MIN {
        return within(bytes_max);
    }
    let (misses, lookups) = (since(|s| s.misses) + 1, since(|s| s.lookups) + 1);
    // Reads saved for each byte, both multiplied by the product of the bytes.
    let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
    let map = product(hits, now.block_bytes / 4).saturating_mul(misses.min(lookups).into())
        / u128::from(lookups);
    let blocks = product(rescues, now.map_bytes.max(1));
    let step = room_bytes / STEP_PART;
    within(if map > blocks.saturating_add(blocks / 8) {
        match now.map_bytes < bytes_max / 8 * 7 {
            // The map has not filled what it may take.
            true => bytes_max,
            false => bytes_max.saturating_add(step),
        }
    } else if blocks > map.saturating_add(map / 8) {
        bytes_max.saturating_sub(step)
    } else {
        bytes_max
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_where_a_byte_saves_more_and_stays_within_bounds() {
        let room = 8000;
        let settled = |hits_a_byte: u64, rescues_a_byte: u64, misses: u64| {
            let (mut last, mut bytes) = (LocationSavings::default(), first_bytes(room));
            for _ in 0..50 {
                let now = LocationSavings {
                    hits: last.hits + hits_a_byte * bytes,
                    map_bytes: bytes,
                    rescues: last.rescues + rescues_a_byte * 1000,
                    block_bytes: 4000,
                    lookups: last.lookups + 1000,
                    misses: last.misses + misses,
                };
                bytes = next_bytes(&last, &now, bytes, room);
                last = now;
            }
            bytes
        };
        assert_eq!(settled(3, 1, 1000), room / MOST_PART);
        assert_eq!(settled(1, 3, 1000), room / LEAST_PART);
        let why = "where blocks are cached, hits save few reads";
        assert_eq!(settled(3, 1, 100), room / LEAST_PART, "{why}");
        let nothing = LocationSavings::default();
        assert_eq!(next_bytes(&nothing, &nothing, 500, room), 500);
        assert_eq!(next_bytes(&nothing, &nothing, 500, 40), 10, "less room");
        let most = LocationSavings {
            hits: u64::MAX,
            map_bytes: u64::MAX,
            rescues: u64::MAX,
            block_bytes: u64::MAX,
            lookups: u64::MAX - 1,
            misses: u64::MAX - 1,
        };
        assert!(next_bytes(&nothing, &most, u64::MAX, u64::MAX) <= u64::MAX / MOST_PART);
    }
}
