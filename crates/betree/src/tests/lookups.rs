//! Point lookups compared with the map of the tree's content.

use terrapin_base::checksum::hash64;
use terrapin_structure::{Found, Presence, Version};

use super::grown::{Grown, Random};

/// Keys that are there, keys that were deleted, and keys that never were there.
fn asked(grown: &Grown, random: &mut Random) -> Vec<Vec<u8>> {
    let mut keys = grown.universe.clone();
    for _ in 0..200 {
        let mut key = grown.universe[random.below(grown.universe.len())].clone();
        match random.below(3) {
            0 => key.push(0),
            1 => key.truncate(key.len() / 2),
            _ => key.extend_from_slice(b"\xff\xff\xff"),
        }
        keys.push(key);
    }
    keys
}

#[test]
fn lookups_find_the_newest_message_of_every_key() {
    for seed in 0..60 {
        let grown = Grown::new(seed, (seed % 4) as u16, 40 + 20 * seed as usize);
        let version = grown.version();
        let mut random = Random::new(seed);
        let keys = asked(&grown, &mut random);
        for key in &keys {
            let found = version.get(key, hash64(key)).unwrap();
            assert_eq!(found, grown.expected(key), "seed {seed} key {key:?}");
            let presence = match found {
                Found::Nothing => Presence::Absent,
                _ => Presence::Present,
            };
            assert_eq!(version.contains(key, hash64(key)).unwrap(), presence);
        }
        let mut many: Vec<(&[u8], u64)> = keys.iter().map(|k| (&k[..], hash64(k))).collect();
        for at in (1..many.len()).rev() {
            many.swap(at, random.below(at + 1));
        }
        for cold in [true, false] {
            let reopened;
            let version = if cold {
                grown.store.forget_cache();
                reopened = grown.version();
                &reopened
            } else {
                &version
            };
            let mut out = vec![Found::Nothing; many.len()];
            version.multi_get(&many, &mut out).unwrap();
            for ((key, _), found) in many.iter().zip(&out) {
                assert_eq!(*found, grown.expected(key), "seed {seed} key {key:?}");
            }
        }
    }
}

#[test]
fn an_empty_tree_has_no_records_and_results_must_match_keys() {
    let grown = Grown::new(1, 0, 20);
    let empty = crate::version::TreeVersion::empty(grown.pages());
    assert_eq!(empty.get(b"a", hash64(b"a")).unwrap(), Found::Nothing);
    let mut out = [Found::Nothing];
    empty.multi_get(&[(b"a", hash64(b"a"))], &mut out).unwrap();
    assert_eq!(out, [Found::Nothing]);
    assert!(empty.multi_get(&[], &mut out).is_err());
}

#[test]
fn values_are_copied_out_of_cached_blocks_and_keep_no_slab() {
    let grown = Grown::new(5, 1, 400);
    let version = grown.version();
    let (mut large, mut small) = (0, 0);
    for (key, value) in &grown.records {
        let Found::Value(first) = version.get(key, hash64(key)).unwrap() else {
            panic!("{key:?} is missing");
        };
        let Found::Value(second) = version.get(key, hash64(key)).unwrap() else {
            panic!("{key:?} is missing");
        };
        assert_eq!((&*first, &*second), (&value[..], &value[..]));
        assert!(value.is_empty() || first.as_ptr() != second.as_ptr());
        large += usize::from(value.len() >= 700);
        small += usize::from(value.len() < 100);
    }
    assert!(large > 0 && small > 0);
}

#[test]
fn a_cold_lookup_reads_one_block() {
    let grown = Grown::new(8, 2, 3000);
    let version = grown.version();
    let (mut lookups, mut reads) = (0, 0);
    for key in &grown.universe {
        grown.store.forget_cache();
        let before = grown.store.block_reads();
        let found = version.get(key, hash64(key)).unwrap();
        if found != Found::Nothing {
            lookups += 1;
            reads += grown.store.block_reads() - before;
        }
    }
    assert!(
        reads >= lookups && reads * 100 <= lookups * 105,
        "{reads} reads for {lookups} lookups"
    );
}

#[test]
fn many_lookups_read_every_block_once_and_together() {
    let grown = Grown::new(9, 2, 3000);
    grown.store.forget_cache();
    let version = grown.version();
    let keys: Vec<(&[u8], u64)> = grown.records.keys().map(|k| (&k[..], hash64(k))).collect();
    let before = grown.store.block_reads();
    let mut out = vec![Found::Nothing; keys.len()];
    version.multi_get(&keys, &mut out).unwrap();
    let together = grown.store.block_reads() - before;
    grown.store.forget_cache();
    let before = grown.store.block_reads();
    for (key, hash) in &keys {
        version.get(key, *hash).unwrap();
    }
    let alone = grown.store.block_reads() - before;
    assert!(
        together <= alone,
        "{together} blocks at once, {alone} one by one with a cache"
    );
}
