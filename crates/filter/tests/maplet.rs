//! The promises of a maplet: no key is denied, few lies however many sets and keys there are, no
//! panic with any bytes.

mod common;

use common::crowd;
use proptest::prelude::*;
use terrapin_base::checksum::hash64;
use terrapin_filter::{
    MAPLET_VALUES_MAX, MapletBuilder, MapletShape, PARTITION_BYTES_MAX, fingerprint_bits_for,
};

fn hash(number: u64) -> u64 {
    hash64(&number.to_be_bytes())
}

fn partition(bytes: &[u8], number: u32) -> &[u8] {
    &bytes[number as usize * PARTITION_BYTES_MAX..][..PARTITION_BYTES_MAX]
}

fn find(shape: &MapletShape, bytes: &[u8], hash: u64) -> u64 {
    let number = shape.partition_of(hash);
    shape.find(partition(bytes, number), hash).unwrap()
}

fn all_entries(shape: &MapletShape, bytes: &[u8]) -> Vec<(u64, usize)> {
    let mut all = Vec::new();
    for number in 0..shape.partitions() {
        let visit = |fingerprint, value| all.push((fingerprint, value));
        shape
            .entries(partition(bytes, number), number, visit)
            .unwrap();
    }
    all
}

/// A maplet of `keys` keys in each of `values` sets.
fn build(keys: u64, values: usize, bits: u32) -> (MapletShape, Vec<u8>) {
    let mut builder = MapletBuilder::new(bits);
    for value in 0..values {
        for key in 0..keys {
            builder.add(hash(key * values as u64 + value as u64), value);
        }
    }
    builder.finish(values).unwrap()
}

#[test]
fn lies_stay_below_one_in_128_however_many_keys_and_sets_there_are() {
    for (keys, values) in [(1, 1), (60, 5), (2048, 16), (2048, 64), (30_000, 16)] {
        let entries = keys * values as u64;
        let (shape, bytes) = build(keys, values, fingerprint_bits_for(entries));
        for key in 0..entries {
            let found = find(&shape, &bytes, hash(key));
            assert!(found >> (key % values as u64) & 1 == 1, "key {key}");
        }
        const PROBES: u64 = 300_000;
        let lies: u32 = (0..PROBES)
            .map(|probe| find(&shape, &bytes, hash(probe + (1 << 40))).count_ones())
            .sum();
        let bits_a_key = bytes.len() as f64 * 8.0 / entries as f64;
        assert!(
            f64::from(lies) / (PROBES as f64) < 1.05 / 128.0,
            "{keys}, {values}: {lies}"
        );
        assert!(
            entries < 4000 || bits_a_key < 17.0,
            "{keys}, {values}: {bits_a_key} bits"
        );
    }
}

/// SplinterDB's lookups shifted a 32-bit one by the number of the run.
#[test]
fn each_of_64_sets_has_a_bit_of_its_own() {
    let (shape, bytes) = build(40, MAPLET_VALUES_MAX, fingerprint_bits_for(1 << 24));
    for key in 0..40 * MAPLET_VALUES_MAX as u64 {
        assert_eq!(
            find(&shape, &bytes, hash(key)),
            1 << (key % 64),
            "key {key}"
        );
    }
}

/// SplinterDB's filter of a memtable of many GiB crashed, and an empty one did, too.
#[test]
fn maplets_are_empty_or_large() {
    let (shape, bytes) = build(0, 3, fingerprint_bits_for(0));
    assert_eq!(
        (shape.partitions(), all_entries(&shape, &bytes)),
        (1, vec![])
    );
    assert_eq!(find(&shape, &bytes, hash(1)), 0);
    let (shape, bytes) = build(500_000, 2, fingerprint_bits_for(1_000_000));
    assert!(shape.partitions() > 380, "{}", shape.partitions());
    assert!((0..1_000_000).all(|key| find(&shape, &bytes, hash(key)) >> (key % 2) & 1 == 1));
}

/// A maplet is made of an older one and of further keys without the older one's keys.
#[test]
fn a_maplet_is_made_of_another_ones_entries() {
    let old_bits = fingerprint_bits_for(8 * 3000);
    let (old, old_bytes) = build(1000, 6, old_bits);
    for bits in [old_bits, old_bits - 1, old_bits - 3] {
        let mut builder = MapletBuilder::new(bits);
        // Set 0 is gone, and the others have other numbers.
        for (fingerprint, value) in all_entries(&old, &old_bytes) {
            if value > 0 {
                builder.add_fingerprint(fingerprint, old_bits, value + 2);
            }
        }
        let mut direct = MapletBuilder::new(bits);
        for key in 0..6000u64 {
            let value = key as usize % 6;
            if value > 0 {
                direct.add(hash(key), value + 2);
            }
        }
        for key in 6000..9000 {
            builder.add(hash(key), 1);
            direct.add(hash(key), 1);
        }
        let (made, direct) = (builder.finish(8).unwrap(), direct.finish(8).unwrap());
        assert_eq!(made, direct, "{bits} bits");
    }
}

/// The bytes that `docs/FORMAT.md` describes.
#[test]
fn a_small_partition_is_what_its_dump_shows() {
    let mut builder = MapletBuilder::new(13);
    // Fingerprints 1, 2, 2 and 8191 of 13 bits: a bucket has four of them.
    for (fingerprint, value) in [(1u64, 4), (2, 0), (2, 3), (8191, 1)] {
        builder.add((fingerprint << 51).rotate_right(32), value);
    }
    let (shape, bytes) = builder.finish(5).unwrap();
    assert_eq!((shape.partitions(), bytes.len()), (1, 4096));
    let hex = |bytes: &[u8]| {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        hex.join(" ")
    };
    // Cells begin at 66, at 79 and every ten bytes from there on.
    assert_eq!(hex(&bytes[..6]), "42 00 4f 00 59 00");
    assert_eq!(hex(&bytes[60..66]), "71 01 7b 01 86 01");
    // Three entries; three ones for bucket 0, 64 zeros; three entries of two bits of distance and
    // three of value: 01 100, 10 000, 10 011, each from its lowest bit on.
    let cell = "03 00 07 00 00 00 00 00 00 00 60 70 02";
    assert_eq!(hex(&bytes[66..79]), cell);
    assert_eq!(hex(&bytes[79..89]), "00 00 00 00 00 00 00 00 00 00");
    // One entry: 63 zeros, a one, a zero; distance 3, value 1.
    assert_eq!(hex(&bytes[379..390]), "01 00 00 00 00 00 00 00 00 80 32");
    assert!(bytes[390..].iter().all(|byte| *byte == 0));
}

#[test]
fn shapes_that_no_maplet_has_are_refused() {
    assert!(MapletShape::new(12, 1, 2).is_some());
    for (bits, values, partitions) in [
        (11, 1, 1),
        (41, 1, 1),
        (12, 1, 3),
        (12, 0, 1),
        (12, 65, 1),
        (12, 1, 0),
        (40, 1, 65537),
    ] {
        assert!(MapletShape::new(bits, values, partitions).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_key_is_denied(
        mut hashes in prop::collection::vec(any::<u64>(), 0..3000),
        narrow in any::<u64>(),
        values in 1usize..=64,
        bits in 12u32..=40,
    ) {
        crowd(&mut hashes, narrow);
        let mut builder = MapletBuilder::new(bits);
        for (i, &hash) in hashes.iter().enumerate() {
            builder.add(hash, i % values);
        }
        // Crowded hashes may not fit, and then there is no maplet.
        let Some((shape, bytes)) = builder.finish(values) else {
            prop_assert!(narrow.is_multiple_of(2) || bits < 14);
            return Ok(());
        };
        for (i, &hash) in hashes.iter().enumerate() {
            prop_assert!(find(&shape, &bytes, hash) >> (i % values) & 1 == 1);
        }
        let mut entries = all_entries(&shape, &bytes);
        let before = entries.len();
        entries.dedup();
        prop_assert_eq!(before, entries.len());
    }

    #[test]
    fn any_bytes_answer_or_are_corrupt(
        start in prop::collection::vec(any::<u8>(), 66..4096),
        changes in prop::collection::vec((0usize..4096, any::<u8>()), 0..8),
        bits in 12u32..=40,
        values in 1usize..=64,
        hashes in prop::collection::vec(any::<u64>(), 20),
    ) {
        let (shape, mut real) = build(30, values, bits);
        for (at, byte) in changes {
            real[at] = byte;
        }
        let mut any = start;
        any.resize(PARTITION_BYTES_MAX, 0);
        for bytes in [real, any] {
            let sound = shape.entries(&bytes, 0, |_, value| assert!(value < values)).is_ok();
            for &hash in &hashes {
                prop_assert!(shape.find(&bytes, hash).is_ok() || !sound);
            }
        }
        prop_assert!(shape.find(&[], 1).is_err() && shape.find(&[0; 4095], 1).is_err());
    }
}
