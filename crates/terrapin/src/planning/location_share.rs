//! The memory of the location map, by what its entries save beside cached blocks.
//!
//! A get that the map answers needs no block of the tree's leaves. So it saves a read as often as a
//! lookup of a block misses. A byte of the map saves as many reads as its hits over its bytes. A
//! byte of the block cache saves what its oldest quarter saves.
//!
//! A map of all keys makes the blocks of leaves superfluous, but each byte on the way there may
//! save less than a byte of the blocks. So such a map gets its memory at once, if it fits and the
//! blocks serve hardly anything else. It takes the memory only as gets fill it.

/// The part of the memory that writes leave, at most.
const MOST: (u64, u64) = (3, 4);
/// Parts (1/n) of that memory: at first, at least, and in one step.
const FIRST_PART: u64 = 20;
const LEAST_PART: u64 = 80;
const STEP_PART: u64 = 40;
/// With fewer hits and rescues, the limit does not change.
const SAVED_MIN: u64 = 64;
/// Bytes of a map of all keys for each record, known pages included.
const RECORD_BYTES: u64 = 11;
/// Blocks serve values alone if this share of their lookups led to one, in per cent.
const VALUE_LOOKUPS_PERCENT: u64 = 75;
/// A map of all keys is worth its memory if this share of lookups misses, in per cent.
const MISSES_PERCENT: u64 = 5;

/// What map and blocks have saved since the database was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocationSavings {
    /// Gets that the map answered.
    pub hits: u64,
    /// Gets that found a separated value by way of the tree.
    pub found_in_trees: u64,
    /// Bytes of the map now, and those of its entries alone.
    pub map_bytes: u64,
    pub entry_bytes: u64,
    /// First uses of blocks in the oldest quarter of the cache.
    pub rescues: u64,
    /// Bytes of cached blocks now.
    pub block_bytes: u64,
    /// Lookups of blocks, and those that missed.
    pub lookups: u64,
    pub misses: u64,
    /// Records of all trees now, if that is known.
    pub records: Option<u64>,
}

/// The most that a map of a budget can take.
pub(crate) fn most_bytes(limit_bytes: u64) -> u64 {
    limit_bytes / MOST.1 * MOST.0
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
    let most = most_bytes(room_bytes);
    let within = |bytes: u64| bytes.clamp(room_bytes / LEAST_PART, most);
    let (misses, lookups) = (since(|s| s.misses), since(|s| s.lookups));
    let is_share = |part: u64, of: u64, percent: u64| {
        u128::from(part) * 100 >= u128::from(of) * u128::from(percent)
    };
    if lookups >= SAVED_MIN
        && is_share(since(|s| s.found_in_trees), lookups, VALUE_LOOKUPS_PERCENT)
        && is_share(misses, lookups, MISSES_PERCENT)
        && let Some(records) = now.records
        && let needed = records.saturating_mul(RECORD_BYTES)
        && needed <= most
    {
        return within(needed.max(bytes_max));
    }
    if hits.saturating_add(rescues) < SAVED_MIN {
        return within(bytes_max);
    }
    let (misses, lookups) = (misses.saturating_add(1), lookups.saturating_add(1));
    // Reads saved for each byte, both multiplied by the product of the bytes. Known pages are paid
    // for already.
    let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
    let map = product(hits, now.block_bytes / 4).saturating_mul(misses.min(lookups).into())
        / u128::from(lookups);
    let blocks = product(rescues, now.entry_bytes.max(1));
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
                    entry_bytes: bytes,
                    rescues: last.rescues + rescues_a_byte * 1000,
                    block_bytes: 4000,
                    lookups: last.lookups + 1000,
                    misses: last.misses + misses,
                    ..LocationSavings::default()
                };
                bytes = next_bytes(&last, &now, bytes, room);
                last = now;
            }
            bytes
        };
        assert_eq!(settled(3, 1, 1000), most_bytes(room));
        assert_eq!(settled(1, 3, 1000), room / LEAST_PART);
        let why = "where blocks are cached, hits save few reads";
        assert_eq!(settled(3, 1, 100), room / LEAST_PART, "{why}");
        let nothing = LocationSavings::default();
        assert_eq!(next_bytes(&nothing, &nothing, 500, room), 500);
        assert_eq!(next_bytes(&nothing, &nothing, 500, 40), 30, "less room");
        let most = LocationSavings {
            hits: u64::MAX,
            map_bytes: u64::MAX,
            rescues: u64::MAX,
            block_bytes: u64::MAX,
            lookups: u64::MAX - 1,
            misses: u64::MAX - 1,
            entry_bytes: u64::MAX,
            ..LocationSavings::default()
        };
        assert!(next_bytes(&nothing, &most, u64::MAX, u64::MAX) <= most_bytes(u64::MAX));
    }

    #[test]
    fn a_map_of_all_keys_gets_its_memory_where_blocks_serve_values_alone() {
        let room = 80_000;
        let next = |found_in_trees: u64, misses: u64, records: Option<u64>| {
            let now = LocationSavings {
                hits: 10,
                found_in_trees,
                map_bytes: 1000,
                entry_bytes: 1000,
                rescues: 500,
                block_bytes: 20_000,
                lookups: 1000,
                misses,
                records,
            };
            next_bytes(&LocationSavings::default(), &now, 4000, room)
        };
        let less = 4000 - room / STEP_PART;
        assert_eq!(next(900, 300, Some(5000)), 55_000);
        assert_eq!(next(900, 300, Some(6000)), less, "it does not fit");
        assert_eq!(next(900, 300, None), less, "nobody knows whether it fits");
        assert_eq!(next(500, 300, Some(5000)), less, "blocks serve others");
        assert_eq!(next(900, 30, Some(5000)), less, "blocks are cached");
        assert_eq!(next(900, 300, Some(u64::MAX)), less);
    }
}
