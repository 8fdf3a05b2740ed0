//! Scans against the map beside the tree, with every kind of bound, both ways.

use std::ops::Bound;

use terrapin_structure::{Direction, KeyBounds, Version};

use super::grown::{Grown, Random, Records};

type Listed = Vec<(Vec<u8>, Vec<u8>)>;

fn list(version: &dyn Version, bounds: KeyBounds<'_>, direction: Direction) -> Listed {
    let mut scan = version.scan(bounds, direction).unwrap();
    let mut out = Vec::new();
    while let Some((key, value)) = scan.next().unwrap() {
        out.push((key.to_vec(), value.to_vec()));
    }
    assert!(
        scan.next().unwrap().is_none(),
        "nothing comes after the end"
    );
    out
}

fn expected(records: &Records, bounds: KeyBounds<'_>) -> Listed {
    let inside = |key: &[u8]| {
        let above = match bounds.0 {
            Bound::Unbounded => true,
            Bound::Included(lo) => key >= lo,
            Bound::Excluded(lo) => key > lo,
        };
        let below = match bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(hi) => key <= hi,
            Bound::Excluded(hi) => key < hi,
        };
        above && below
    };
    records
        .iter()
        .filter(|(key, _)| inside(key))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

fn random_bound(grown: &Grown, random: &mut Random) -> Bound<Vec<u8>> {
    let mut key = grown.universe[random.below(grown.universe.len())].clone();
    match random.below(4) {
        0 => key.push(0),
        1 => key.truncate(random.below(key.len() + 1)),
        _ => {}
    }
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

#[test]
fn scans_return_the_range_in_order_both_ways() {
    let mut returned = 0;
    for seed in 0..60 {
        let grown = Grown::new(1000 + seed, (seed % 4) as u16, 40 + 20 * seed as usize);
        let version = grown.version();
        let mut random = Random::new(seed);
        for round in 0..40 {
            let (lower, upper) = match round {
                0 => (Bound::Unbounded, Bound::Unbounded),
                _ => (
                    random_bound(&grown, &mut random),
                    random_bound(&grown, &mut random),
                ),
            };
            let bounds = (
                lower.as_ref().map(|k| &k[..]),
                upper.as_ref().map(|k| &k[..]),
            );
            let mut wanted = expected(&grown.records, bounds);
            returned += wanted.len();
            assert_eq!(
                list(&*version, bounds, Direction::Forward),
                wanted,
                "seed {seed} {bounds:?}"
            );
            wanted.reverse();
            assert_eq!(
                list(&*version, bounds, Direction::Backward),
                wanted,
                "seed {seed} {bounds:?}"
            );
        }
    }
    assert!(returned > 100_000, "{returned}");
}

#[test]
fn a_scan_from_every_key_begins_at_it() {
    let grown = Grown::new(77, 2, 300);
    let version = grown.version();
    for key in &grown.universe {
        for (lower, after) in [
            (Bound::Included(&key[..]), false),
            (Bound::Excluded(&key[..]), true),
        ] {
            let mut scan = version
                .scan((lower, Bound::Unbounded), Direction::Forward)
                .unwrap();
            let wanted = grown
                .records
                .range(key.clone()..)
                .find(|(k, _)| !after || *k != key);
            assert_eq!(
                scan.next().unwrap(),
                wanted.map(|(k, v)| (&k[..], &v[..])),
                "{key:?}"
            );
            let mut scan = version
                .scan((Bound::Unbounded, lower), Direction::Backward)
                .unwrap();
            let wanted = grown
                .records
                .range(..=key.clone())
                .rev()
                .find(|(k, _)| !after || *k != key);
            assert_eq!(
                scan.next().unwrap(),
                wanted.map(|(k, v)| (&k[..], &v[..])),
                "{key:?}"
            );
        }
    }
}

#[test]
fn ranges_without_keys_return_nothing_and_read_nothing() {
    let grown = Grown::new(3, 2, 200);
    grown.store.forget_cache();
    let version = grown.version();
    let before = grown.store.block_reads();
    let (low, high) = (&grown.universe[10][..], &grown.universe[20][..]);
    for bounds in [
        (Bound::Included(high), Bound::Excluded(low)),
        (Bound::Included(low), Bound::Excluded(low)),
        (Bound::Excluded(low), Bound::Included(low)),
        (Bound::Unbounded, Bound::Excluded(&b""[..])),
    ] {
        for direction in [Direction::Forward, Direction::Backward] {
            assert!(list(&*version, bounds, direction).is_empty());
        }
    }
    assert_eq!(grown.store.block_reads(), before);
}
