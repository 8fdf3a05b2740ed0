//! Scans in both directions, compared with a map: whole records, batches of every kind, bounds,
//! skips and seeks.

use std::ops::Bound;

use terrapin_structure::{Batch, BatchLimits, Direction, Filled, KeyBounds, Located, Scan};

use super::world::{Random, Records, World};
use crate::kind::KIND;

type Record = (Vec<u8>, Vec<u8>);

fn some_key(random: &mut Random, records: &Records) -> Vec<u8> {
    let mut key = records
        .keys()
        .nth(random.below(records.len()))
        .unwrap()
        .clone();
    match random.below(4) {
        0 => key.push(0),
        1 => key = random.key(),
        _ => {}
    }
    key
}

fn some_bound(random: &mut Random, records: &Records) -> Bound<Vec<u8>> {
    match random.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(some_key(random, records)),
        _ => Bound::Included(some_key(random, records)),
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// The records of a range that a scan has not returned, the next one first.
fn expected(records: &Records, bounds: KeyBounds<'_>, direction: Direction) -> Vec<Record> {
    let above = |key: &[u8]| match bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(lo) => key >= lo,
        Bound::Excluded(lo) => key > lo,
    };
    let below = |key: &[u8]| match bounds.1 {
        Bound::Unbounded => true,
        Bound::Included(hi) => key <= hi,
        Bound::Excluded(hi) => key < hi,
    };
    let inside = records.iter().filter(|(key, _)| above(key) && below(key));
    let mut inside: Vec<Record> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
    if direction == Direction::Backward {
        inside.reverse();
    }
    inside
}

/// Whether a key is inside the end of a call of `fill`.
fn is_before(key: &[u8], until: Bound<&[u8]>, direction: Direction) -> bool {
    match (until, direction) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(end), Direction::Forward) => key <= end,
        (Bound::Excluded(end), Direction::Forward) => key < end,
        (Bound::Included(end), Direction::Backward) => key >= end,
        (Bound::Excluded(end), Direction::Backward) => key > end,
    }
}

/// The records of a batch; values are empty if only keys were wanted.
fn records_of(batch: &Batch) -> Vec<Record> {
    let mut span = 0;
    let record = |number| match batch.locate(number, &mut span) {
        Located::Lent(block, at) => (block.key(at), block.bytes()[block.value_range(at)].to_vec()),
        Located::Copied(copy) => {
            let (start, key_end, end) = batch.copy_span(copy).unwrap();
            let bytes = batch.bytes();
            (bytes[start..key_end].to_vec(), bytes[key_end..end].to_vec())
        }
    };
    (0..batch.len()).map(record).collect()
}

/// One random call, and what it must have returned. Returns whether the scan is at its end.
fn one_call(
    random: &mut Random,
    world: &World,
    scan: &mut dyn Scan,
    left: &mut Vec<Record>,
    direction: Direction,
) -> bool {
    match random.below(5) {
        0 => {
            let found = scan.next().unwrap();
            let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert_eq!(found, left.first().cloned());
            left.drain(..left.len().min(1));
            found.is_none()
        }
        1 => {
            let key = some_key(random, &world.oracle);
            scan.seek(&key).unwrap();
            left.retain(|record| !is_before(&record.0, Bound::Excluded(&key), direction));
            false
        }
        _ => {
            if random.below(3) == 0 {
                world.forget_cache();
            }
            let limits = BatchLimits {
                records: [1, 3, 50, usize::MAX][random.below(4)],
                bytes: [1, 300, usize::MAX][random.below(3)],
                likely: random.below(20),
                most: [random.below(60), usize::MAX][random.below(2)],
                sparing: random.below(3) == 0,
                keys_only: random.below(3) == 0,
                lends: random.below(2) == 0,
            };
            let mut batch = Batch::default();
            batch.restart(limits, 0, 0);
            let until = some_bound(random, &world.oracle);
            let reads = |world: &World| world.store.metrics().read.scan_reads;
            let before = reads(world);
            let filled = scan.fill(borrowed(&until), &mut batch).unwrap();
            let inside = |record: &&Record| is_before(&record.0, borrowed(&until), direction);
            let count = left.iter().take_while(inside).count();
            let got = records_of(&batch);
            assert!(got.len() <= count && got.len() <= limits.records);
            for (found, wanted) in got.iter().zip(left.iter()) {
                assert_eq!(found.0, wanted.0);
                assert_eq!(found.1, if limits.keys_only { &[][..] } else { &wanted.1 });
            }
            left.drain(..got.len());
            match filled {
                Filled::Full => assert!(!got.is_empty(), "a full batch has a record"),
                Filled::Reached => assert_eq!(got.len(), count),
                Filled::End => assert!(left.is_empty()),
                Filled::Unresolved => panic!("all records are puts"),
            }
            if limits.records == 1 {
                assert!(
                    reads(world) <= before + KIND.fill_reads_max,
                    "a batch of one record reads little"
                );
            }
            if filled != Filled::Full
                && let Bound::Included(key) | Bound::Excluded(key) = until
            {
                scan.skip(&key);
                if left.first().is_some_and(|record| record.0 == key) {
                    left.remove(0);
                }
            }
            filled == Filled::End
        }
    }
}

#[test]
fn random_calls_of_scans_match_a_map() {
    for seed in 1..5 {
        let (world, mut random) = (World::grown(seed), Random(100 + seed));
        for _ in 0..150 {
            let direction = [Direction::Forward, Direction::Backward][random.below(2)];
            let ends = [0, 1].map(|_| some_bound(&mut random, &world.oracle));
            let bounds = (borrowed(&ends[0]), borrowed(&ends[1]));
            let mut left = expected(&world.oracle, bounds, direction);
            let ordered = world.version.ordered().unwrap();
            let mut scan = ordered
                .scan_expecting(bounds, direction, random.below(9))
                .unwrap();
            if KIND.merges_whole {
                assert_eq!((scan.runs(), scan.take_passed()), (0, 0));
            }
            for _ in 0..25 {
                if one_call(&mut random, &world, &mut *scan, &mut left, direction) {
                    assert!(left.is_empty() && scan.next().unwrap().is_none());
                    break;
                }
            }
        }
    }
}

#[test]
fn estimates_are_close() {
    let (world, mut random) = (World::grown(21), Random(22));
    let ordered = world.version.ordered().unwrap();
    let all = ordered
        .estimate((Bound::Unbounded, Bound::Unbounded))
        .unwrap();
    (KIND.check_estimate)(&world, all);
    for _ in 0..200 {
        let ends = [0, 1].map(|_| some_bound(&mut random, &world.oracle));
        let bounds = (borrowed(&ends[0]), borrowed(&ends[1]));
        let wanted = expected(&world.oracle, bounds, Direction::Forward).len();
        let found = ordered.estimate(bounds).unwrap().records as usize;
        assert!(
            found.abs_diff(wanted) < KIND.estimate_error_max,
            "{found} instead of {wanted}"
        );
    }
}
