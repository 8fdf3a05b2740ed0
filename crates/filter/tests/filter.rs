//! The promises of a filter: no false negatives, few false positives, no panic with any bytes.

mod common;

use common::crowd;
use proptest::prelude::*;
use terrapin_base::checksum::hash64;
use terrapin_filter::{
    BITS_PER_KEY, CELL_BYTES, FilterBuilder, PARTITION_BYTES_MAX, check_cells, check_partition,
    may_contain, partition_bytes, partition_for, partitions_in, seal_partition,
};

const UNIT: usize = 512;

fn build(hashes: &[u64], bits_per_key: u32) -> Vec<u8> {
    let mut builder = FilterBuilder::new();
    builder.add_all(hashes);
    assert_eq!(builder.len(), hashes.len());
    let filter = builder.finish(bits_per_key, UNIT);
    assert!(builder.is_empty() && builder.finish(bits_per_key, UNIT).len() == UNIT);
    filter
}

fn probe(filter: &[u8], hash: u64) -> bool {
    may_contain(partition_for(filter, hash).unwrap(), hash).unwrap()
}

/// False positives per million, for keys that look like real ones.
fn false_positives_ppm(keys: u64, bits_per_key: u32) -> (u64, f64) {
    let hashes: Vec<u64> = (0..keys).map(|i| hash64(&i.to_be_bytes())).collect();
    let filter = build(&hashes, bits_per_key);
    assert!(hashes.iter().all(|&h| probe(&filter, h)));
    const PROBES: u64 = 1_000_000;
    let wrong = (0..PROBES)
        .filter(|i| probe(&filter, hash64(&(i + (1 << 40)).to_be_bytes())))
        .count();
    (wrong as u64, filter.len() as f64 * 8.0 / keys as f64)
}

#[test]
fn the_rate_of_false_positives_fits_the_bits_a_key() {
    for (keys, bits, at_most_ppm) in [
        (200_000, 12, 1_600),
        (200_000, 11, 2_900),
        (30_000, 12, 1_600),
        (5_000, 12, 1_600),
        (500, 12, 1_600),
        (100, 12, 200),
    ] {
        let (ppm, used) = false_positives_ppm(keys, bits);
        println!(
            "{keys} keys, {bits} bits asked, {used:.2} used: {ppm} ppm, 1/{}",
            1_000_000 / ppm.max(1)
        );
        assert!(ppm <= at_most_ppm, "{keys} keys at {bits} bits: {ppm} ppm");
        // Bits beyond those that were requested: half a unit per partition on average.
        let rounding = 8.0 * UNIT as f64 / (keys as f64).min(2048.0);
        assert!(used < f64::from(bits) * 1.01 + rounding, "{used} bits");
    }
}

#[test]
fn no_key_means_no() {
    let filter = build(&[], BITS_PER_KEY);
    assert_eq!(filter.len(), UNIT);
    assert!((0..10_000u64).all(|i| !probe(&filter, hash64(&i.to_le_bytes()))));
}

#[test]
fn one_key_is_found_and_others_are_not() {
    for hash in [0, 1, u64::MAX, 1 << 32, u64::from(u32::MAX), hash64(b"one")] {
        let filter = build(&[hash], BITS_PER_KEY);
        assert!(probe(&filter, hash));
        let wrong = (0..100_000u64)
            .filter(|i| probe(&filter, hash64(&i.to_le_bytes())))
            .count();
        assert!(wrong <= 1, "{wrong} of 100000");
    }
}

#[test]
fn equal_hashes_take_the_room_of_one() {
    let filter = build(&[0xdead_beef_dead_beef; 100_000], BITS_PER_KEY);
    assert!(probe(&filter, 0xdead_beef_dead_beef));
    let wrong = (0..100_000u64)
        .filter(|i| probe(&filter, hash64(&i.to_le_bytes())))
        .count();
    assert!(wrong <= 1, "{wrong} of 100000");
}

#[test]
fn many_hashes_in_one_cell_saturate_only_that_cell() {
    let crowd: Vec<u64> = (0..10_000).map(|i| i << 5).collect();
    let filter = build(&crowd, BITS_PER_KEY);
    assert!(crowd.iter().all(|&h| probe(&filter, h)));
    let wrong = (0..100_000u64)
        .filter(|i| probe(&filter, hash64(&i.to_le_bytes())))
        .count();
    assert!(wrong < 100_000 / 32, "{wrong} of 100000");
}

#[test]
fn checksums_find_damage_and_misplacement() {
    let mut filter = build(&[1, 2, 3], BITS_PER_KEY);
    seal_partition(&mut filter, 7);
    check_partition(&filter, 7).unwrap();
    assert!(probe(&filter, 2), "the seal lies outside of the cells");
    assert!(check_partition(&filter, 8).is_err());
    assert!(check_partition(&filter[1..], 7).is_err() && may_contain(&filter[1..], 1).is_err());
    for at in (0..filter.len())
        .step_by(13)
        .chain(filter.len() - 4..filter.len())
    {
        filter[at] ^= 0x40;
        assert!(check_partition(&filter, 7).is_err());
        filter[at] ^= 0x40;
    }
}

#[test]
fn the_same_hashes_in_any_order_make_the_same_bytes() {
    let mut hashes: Vec<u64> = (0..5000u64).map(|i| hash64(&i.to_le_bytes())).collect();
    let filter = build(&hashes, BITS_PER_KEY);
    hashes.reverse();
    assert!(filter == build(&hashes, BITS_PER_KEY));
}

#[test]
fn a_filter_is_as_long_as_its_keys_need() {
    let hashes: Vec<u64> = (0..20_000u64).map(|i| hash64(&i.to_le_bytes())).collect();
    let mut builder = FilterBuilder::new();
    for unit in [CELL_BYTES, UNIT, PARTITION_BYTES_MAX] {
        for keys in [0, 1, 85, 256, 1000, 2728, 2729, 4096, 7000, 20_000] {
            builder.add_all(&hashes[..keys]);
            let filter = builder.finish(BITS_PER_KEY, unit);
            let bytes = filter.len() as u32;
            let (partitions, each) = (partitions_in(bytes), partition_bytes(bytes).unwrap());
            assert_eq!(partitions * each, bytes);
            assert!(each as usize <= PARTITION_BYTES_MAX && (each as usize).is_multiple_of(unit));
            let asked = keys * 12 / 8 + partitions as usize * 4;
            let more = filter.len() - asked;
            assert!(
                more < partitions as usize * (unit + 1),
                "{keys} keys: {bytes} bytes"
            );
            assert!(hashes[..keys].iter().all(|&hash| probe(&filter, hash)));
        }
    }
    for impossible in [0, 64, 4096 + 64, 4096 + 128, 3 * 4096 + 256] {
        assert_eq!(partition_bytes(impossible), None, "{impossible} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_denies_what_it_was_given(
        mut hashes in proptest::collection::vec(any::<u64>(), 0..4000),
        narrow in any::<u64>(),
        bits in 1u32..24,
    ) {
        crowd(&mut hashes, narrow);
        let filter = build(&hashes, bits);
        for &hash in &hashes {
            prop_assert!(probe(&filter, hash));
        }
        for partition in filter.chunks(partition_bytes(filter.len() as u32).unwrap() as usize) {
            prop_assert!(check_cells(partition).is_ok());
        }
    }

    #[test]
    fn no_probe_fails_in_cells_that_were_checked(
        seed in any::<u64>(),
        keys in 0u64..3000,
        flips in proptest::collection::vec(0..PARTITION_BYTES_MAX * 8, 1..4),
    ) {
        let hash = |number: u64| hash64(&(seed ^ number).to_le_bytes());
        let hashes: Vec<u64> = (0..keys).map(hash).collect();
        let mut bytes = build(&hashes, 1); // all in one partition, up to overfull
        for at in flips {
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
        }
        if check_cells(&bytes).is_ok() {
            for number in 0..4000 {
                prop_assert!(may_contain(&bytes, hash(number << 32)).is_ok());
            }
        }
    }

    #[test]
    fn hostile_bytes_never_panic(
        seed in any::<u64>(),
        header in any::<u16>(),
        cells in 1..=PARTITION_BYTES_MAX / CELL_BYTES,
        hashes in proptest::collection::vec(any::<u64>(), 64),
    ) {
        let mut bytes = Vec::with_capacity(PARTITION_BYTES_MAX);
        let mut state = seed;
        while bytes.len() < cells * CELL_BYTES {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut word = (state ^ state >> 29).to_le_bytes();
            if bytes.len() % 128 == 0 {
                word[..2].copy_from_slice(&header.wrapping_add(bytes.len() as u16).to_le_bytes());
            }
            bytes.extend_from_slice(&word);
        }
        if seed % 4 == 0 {
            bytes.iter_mut().skip(2).for_each(|b| *b = if seed % 8 == 0 { 0 } else { 0xff });
        }
        for hash in hashes {
            let _ = may_contain(&bytes, hash);
        }
    }
}
