//! Scans in both directions, with every kind of bound, compared with the map of the tree's content.

use std::ops::Bound;

use terrapin_pages::block::KeyMemory;
use terrapin_structure::{Batch, BatchLimits, Direction, Filled, KeyBounds, Located, Ordered};

use super::grown::{Grown, Random, Records};
use terrapin_runs::bounds::{lets_in_above, lets_in_below};

pub(super) type Listed = Vec<(Vec<u8>, Vec<u8>)>;

fn list(version: &dyn Ordered, bounds: KeyBounds<'_>, direction: Direction) -> Listed {
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

pub(super) fn expected(records: &Records, bounds: KeyBounds<'_>) -> Listed {
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

pub(super) fn random_bound(grown: &Grown, random: &mut Random) -> Bound<Vec<u8>> {
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

/// Lists a range in batches of all kinds, and sometimes one record alone. Records that are skipped
/// are listed too, from the expected content.
fn list_in_batches(
    grown: &Grown,
    bounds: KeyBounds<'_>,
    direction: Direction,
    wanted: &Listed,
    random: &mut Random,
    lent: &mut usize,
) -> Listed {
    let version = grown.version();
    if random.one_in(3) {
        grown.store.forget_cache();
    }
    let expected = [0, 1 + random.below(200), usize::MAX][random.below(3)];
    let mut scan = version.scan_expecting(bounds, direction, expected).unwrap();
    let mut batch = Batch::default();
    let mut out = Listed::new();
    loop {
        if random.one_in(8) {
            match scan.next().unwrap() {
                Some((key, value)) => out.push((key.to_vec(), value.to_vec())),
                None => return out,
            }
        }
        let records = [random.below(4), random.below(40), usize::MAX][random.below(3)];
        let limits = BatchLimits {
            records,
            likely: [0, random.below(99)][random.below(2)],
            most: [random.below(60), usize::MAX][random.below(2)],
            bytes: [1 + random.below(200), usize::MAX][random.below(2)],
            sparing: random.one_in(2),
            keys_only: random.one_in(4),
            lends: random.one_in(2),
        };
        batch.restart(limits, random.below(9), random.below(99));
        let reads = grown.store.block_reads();
        let until = random_bound(grown, random);
        let until = until.as_ref().map(|key| &key[..]);
        let lets_in = |key: &[u8]| match direction {
            Direction::Forward => lets_in_below(until, key),
            Direction::Backward => lets_in_above(until, key),
        };
        let filled = scan.fill(until, &mut batch).unwrap();
        assert!(batch.len() <= records);
        if records == 0 {
            assert_ne!(filled, Filled::Reached);
            assert_eq!(grown.store.block_reads(), reads);
        }
        let (mut memory, mut run) = (KeyMemory::default(), 0);
        for record in 0..batch.len() {
            let (key, value) = match batch.locate(record, &mut run) {
                Located::Lent(block, number) => {
                    assert!(limits.lends);
                    *lent += 1;
                    block.lend(number, &mut memory)
                }
                Located::Copied(copy) => {
                    let (start, middle, end) = batch.copy_span(copy).unwrap();
                    let (key, value) = (&batch.bytes()[start..middle], &batch.bytes()[middle..end]);
                    assert!(value.is_empty() || !limits.keys_only);
                    let whole = wanted.get(out.len()).map_or(value, |record| &record.1);
                    (key, if limits.keys_only { whole } else { value })
                }
            };
            assert!(lets_in(key), "{until:?}");
            out.push((key.to_vec(), value.to_vec()));
        }
        let mut last = batch.last_key().map(|(first, rest)| [first, rest].concat());
        assert_eq!(last.take_if(|_| batch.is_empty()), None);
        assert!(last.is_none_or(|last| out.last().is_some_and(|(key, _)| *key == last)));
        let next = wanted.get(out.len());
        match filled {
            Filled::Full => assert!(batch.is_full() || batch.spares_reads()),
            Filled::Unresolved => panic!("no record has operands"),
            Filled::Reached => {
                // Only deletes outside the bound may be left.
                let Some(next) = next else { continue };
                assert!(!lets_in(&next.0), "{until:?} {:?}", next.0);
                scan.skip(b"\0\0 another key");
                if random.one_in(2) {
                    // Deletes outside the bound may come before the record.
                    batch.restart(BatchLimits::default(), 0, 0);
                    let filled = scan.fill(Bound::Excluded(&next.0), &mut batch);
                    assert_eq!((filled.unwrap(), batch.len()), (Filled::Reached, 0));
                    scan.skip(&next.0);
                    out.push(next.clone());
                }
            }
            Filled::End => {
                assert_eq!(next, None);
                scan.skip(b"any");
                assert_eq!(scan.next().unwrap(), None);
                batch.restart(BatchLimits::default(), 0, 0);
                assert_eq!(
                    scan.fill(Bound::Unbounded, &mut batch).unwrap(),
                    Filled::End
                );
                assert!(batch.is_empty());
                return out;
            }
        }
    }
}

#[test]
fn batches_have_the_records_that_a_scan_returns_one_by_one() {
    let (mut returned, mut lent) = (0, 0);
    for seed in 0..60 {
        let grown = Grown::new(2000 + seed, (seed % 4) as u16, 40 + 20 * seed as usize);
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
            for direction in [Direction::Forward, Direction::Backward] {
                let random = &mut random;
                let got = list_in_batches(&grown, bounds, direction, &wanted, random, &mut lent);
                assert_eq!(got, wanted, "seed {seed} {bounds:?} {direction:?}");
                wanted.reverse();
            }
        }
    }
    assert!(returned > 100_000, "{returned}");
    assert!(lent > returned / 50, "{lent} of {returned}");
}

#[test]
fn a_sparing_batch_reads_little_beyond_its_first_record() {
    for (seed, direction) in [(5, Direction::Forward), (6, Direction::Backward)] {
        let grown = Grown::new(seed, 2, 900);
        let version = grown.version();
        let open = || {
            grown.store.forget_cache();
            let reads = grown.store.block_reads();
            let all = (Bound::Unbounded, Bound::Unbounded);
            (version.scan(all, direction).unwrap(), reads)
        };
        let (mut scan, before) = open();
        // For each number of records, the reads up to there.
        let mut reads = Vec::new();
        while scan.next().unwrap().is_some() {
            reads.push(grown.store.block_reads() - before);
        }
        let (mut scan, before) = open();
        let mut batch = Batch::default();
        let (mut returned, mut batches, mut more) = (0, 0, 0);
        loop {
            let limits = BatchLimits {
                sparing: true,
                ..BatchLimits::default()
            };
            batch.restart(limits, 0, 0);
            let filled = scan.fill(Bound::Unbounded, &mut batch).unwrap();
            if filled == Filled::End && batch.is_empty() {
                break;
            }
            more += usize::from(grown.store.block_reads() - before > reads[returned]);
            returned += batch.len();
            batches += 1;
        }
        assert_eq!(returned, reads.len());
        assert!(batches < returned / 2, "{batches} batches of {returned}");
        // An older record of a returned key may be the last of its block. These trees have many
        // such records.
        assert!(more * 2 <= batches, "{more} of {batches} batches");
    }
}

/// The mean number of waits for the device of a scan of `count` records, if `expected` are
/// expected. Only the blocks in which a scan begins are cached. The scan is read in parts, as a
/// range does.
fn waits(expected: usize, count: usize) -> f64 {
    let (mut waits, mut scans) = (0, 0);
    for seed in 0..8 {
        let grown = Grown::new(7000 + seed, 2, 900);
        let version = grown.version();
        for key in grown.universe.iter().step_by(31) {
            grown.store.forget_cache();
            let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
            version.scan(bounds, Direction::Forward).unwrap();
            let mut before = grown.store.block_reads();
            let mut wait = || {
                let reads = grown.store.block_reads();
                usize::from(std::mem::replace(&mut before, reads) != reads)
            };
            let mut scan = version
                .scan_expecting(bounds, Direction::Forward, expected)
                .unwrap();
            waits += wait();
            let (mut batch, mut returned) = (Batch::default(), 0);
            while returned < count {
                let limits = BatchLimits {
                    records: (count / 4).max(returned).min(count - returned),
                    likely: expected.saturating_sub(returned),
                    sparing: true,
                    ..BatchLimits::default()
                };
                batch.restart(limits, 0, 0);
                let filled = scan.fill(Bound::Unbounded, &mut batch).unwrap();
                returned += batch.len();
                waits += wait();
                if filled == Filled::End {
                    break;
                }
            }
            scans += 1;
        }
    }
    waits as f64 / scans as f64
}

#[test]
fn a_scan_waits_once_for_all_blocks_that_it_is_expected_to_need() {
    let (unexpected, expected) = (waits(0, 60), waits(60, 60));
    println!("waits: {unexpected} unexpected, {expected} expected");
    // These leaves are small, so most waits are at the start of further leaves.
    assert!(expected < unexpected * 0.7, "{expected} of {unexpected}");
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
