//! The promises of an outline: it denies most absent hashes and no present one. An outline of a
//! partition denies only what the partition denies, and no bytes make it panic.

mod common;

use common::crowd;
use proptest::prelude::*;
use terrapin_base::checksum::hash64;
use terrapin_filter::{
    BITS_PER_KEY, CELL_BYTES, FilterBuilder, Outline, PARTITION_BYTES_MAX, check_cells,
    check_partition, may_contain, partition_of, partitions_in, seal_partition,
};

const UNIT: usize = 512;

fn hash(number: u64) -> u64 {
    hash64(&number.to_le_bytes())
}

fn build(hashes: &[u64], bits_per_key: u32) -> Vec<u8> {
    let mut builder = FilterBuilder::new();
    builder.add_all(hashes);
    builder.finish(bits_per_key, UNIT)
}

/// The outlines that a builder makes with a filter.
fn made_with(hashes: &[u64], bits_per_key: u32, filter: &[u8]) -> Vec<Outline> {
    let mut builder = FilterBuilder::new();
    builder.add_all(hashes);
    let mut bytes = Vec::new();
    let outlines = builder.finish_outlined(bits_per_key, UNIT, &mut bytes);
    assert!(bytes == filter, "the same filter");
    outlines
}

/// The partitions of a filter with their outlines.
fn outlined(filter: &[u8]) -> Vec<(&[u8], Outline)> {
    let each = filter.len() / partitions_in(filter.len() as u32) as usize;
    filter
        .chunks_exact(each)
        .map(|partition| (partition, Outline::of(partition).unwrap()))
        .collect()
}

#[test]
fn nineteen_of_twenty_absent_hashes_are_denied() {
    for keys in [100, 2_000, 30_000] {
        let hashes: Vec<u64> = (0..keys).map(hash).collect();
        let filter = build(&hashes, BITS_PER_KEY);
        let outlined = outlined(&filter);
        let may = |hash| {
            let number = partition_of(hash, outlined.len() as u32);
            outlined[number as usize].1.may_contain(hash)
        };
        assert!(hashes.iter().all(|&hash| may(hash)));
        let wrong = (0..100_000).filter(|&i| may(hash(i + (1 << 40)))).count();
        println!("{keys} keys: {wrong} of 100000");
        assert!(wrong < 5_000, "{keys} keys: {wrong} of 100000");

        let made = made_with(&hashes, BITS_PER_KEY, &filter);
        let may = |hash| made[partition_of(hash, made.len() as u32) as usize].may_contain(hash);
        let wrong = (0..100_000).filter(|&i| may(hash(i + (1 << 40)))).count();
        println!("{keys} keys, made with the filter: {wrong} of 100000");
        assert!(wrong < 3_500, "{keys} keys: {wrong} of 100000");
    }
}

#[test]
fn an_overfull_partition_denies_nothing_and_an_empty_one_everything() {
    let hashes: Vec<u64> = (0..20_000).map(hash).collect();
    let full = Outline::of(&build(&hashes, 1)[..CELL_BYTES]).unwrap();
    assert!((0..1000).all(|i| full.may_contain(hash(i))));
    let empty = Outline::of(&build(&[], BITS_PER_KEY)).unwrap();
    assert!(!(0..1000).any(|i| empty.may_contain(hash(i))));
}

#[test]
fn bytes_of_a_wrong_length_have_no_outline() {
    for bytes in [0, 1, CELL_BYTES - 1, PARTITION_BYTES_MAX + CELL_BYTES] {
        assert!(Outline::of(&vec![0; bytes]).is_err(), "{bytes}");
    }
}

/// With one quotient for all fingerprints, each could be any hash of its cell. An outline would
/// visit all first bits for each of them.
#[test]
fn cells_with_fewer_quotients_than_fingerprints_are_refused() {
    let mut bytes = vec![0xff; PARTITION_BYTES_MAX];
    for (index, cell) in bytes.chunks_mut(CELL_BYTES).enumerate() {
        let is_last = index + 1 == PARTITION_BYTES_MAX / CELL_BYTES;
        let end = if is_last { CELL_BYTES - 4 } else { CELL_BYTES };
        let fingerprints = (end * 8 - 16 - 1) as u16;
        cell[..2].copy_from_slice(&fingerprints.to_le_bytes());
        cell[end - 1] = 0x7f;
    }
    seal_partition(&mut bytes, 7);
    check_partition(&bytes, 7).unwrap();
    assert!(check_cells(&bytes).is_err());
    let outline = Outline::of(&bytes).unwrap();
    for number in 0..10_000 {
        assert!(outline.may_contain(hash(number)));
        assert!(may_contain(&bytes, hash(number)).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn denies_only_what_the_partition_denies(
        mut hashes in proptest::collection::vec(any::<u64>(), 0..4000),
        narrow in any::<u64>(),
        bits in 1u32..24,
    ) {
        crowd(&mut hashes, narrow);
        let filter = build(&hashes, bits);
        let outlined = outlined(&filter);
        let made = made_with(&hashes, bits, &filter);
        prop_assert_eq!(made.len(), outlined.len());
        for &hash in &hashes {
            prop_assert!(made[partition_of(hash, made.len() as u32) as usize].may_contain(hash));
        }
        let near = hashes.iter().flat_map(|&h| [h, h ^ 1 << 20, h.wrapping_sub(1 << 12)]);
        for hash in near {
            let (partition, outline) = &outlined[partition_of(hash, outlined.len() as u32) as usize];
            prop_assert!(outline.may_contain(hash) || !may_contain(partition, hash).unwrap());
        }
    }

    #[test]
    fn of_hostile_bytes_denies_only_what_they_deny(
        seed in any::<u64>(),
        keys in 0u64..3000,
        flips in proptest::collection::vec(0..PARTITION_BYTES_MAX * 8, 0..200),
        headers in proptest::collection::vec((0..PARTITION_BYTES_MAX / CELL_BYTES, any::<u16>()), 0..32),
    ) {
        let hashes: Vec<u64> = (0..keys).map(|number| hash(seed ^ number)).collect();
        let mut bytes = build(&hashes, 1); // all in one partition, up to overfull
        for at in flips {
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
        }
        for (cell, header) in headers {
            let at = cell * CELL_BYTES % bytes.len();
            bytes[at..at + 2].copy_from_slice(&header.to_le_bytes());
        }
        let outline = Outline::of(&bytes).unwrap();
        for number in 0..4000 {
            let hash = hash(seed ^ number);
            prop_assert!(outline.may_contain(hash) || matches!(may_contain(&bytes, hash), Ok(false)));
        }
    }
}
