//! Seeks of scans in both directions, mixed with all other calls of a scan, compared with the map
//! of the tree's content.

use std::ops::Bound;

use terrapin_structure::{Batch, BatchLimits, Direction, Filled, KeyBounds, Ordered, Scan};

use super::grown::{Grown, Random};
use super::scans::{Listed, expected, random_bound};

/// A scan, and the records that it has not returned, in its direction.
struct Seeking<'a> {
    grown: &'a Grown,
    scan: Box<dyn Scan>,
    direction: Direction,
    left: Listed,
    /// The number of seeks that passed records.
    passing: usize,
}

impl Seeking<'_> {
    fn is_before(&self, key: &[u8], other: &[u8]) -> bool {
        match self.direction {
            Direction::Forward => key < other,
            Direction::Backward => key > other,
        }
    }

    fn seek(&mut self, random: &mut Random) {
        let universe = &self.grown.universe;
        let near = self.left.first().map(|(key, _)| key);
        let key = match (random.below(8), near) {
            (0, _) => Vec::new(),
            (1, _) => vec![0xff; 9],
            // Mostly a key close to the next record, before or behind it.
            (2..=5, Some(near)) => {
                let at = universe.partition_point(|key| key < near);
                let at = (at + random.below(12)).saturating_sub(random.below(12));
                let mut key = universe[at.min(universe.len() - 1)].clone();
                if random.one_in(4) {
                    key.push(0);
                }
                key
            }
            _ => universe[random.below(universe.len())].clone(),
        };
        self.scan.seek(&key).unwrap();
        let before = self.left.len();
        let goes = self
            .left
            .iter()
            .take_while(|(other, _)| self.is_before(other, &key))
            .count();
        self.left.drain(..goes);
        self.passing += usize::from(self.left.len() < before);
    }

    fn next(&mut self) {
        let record = self.scan.next().unwrap();
        let record = record.map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(record, self.left.first().cloned());
        if record.is_some() {
            self.left.remove(0);
        }
    }

    fn fill(&mut self, random: &mut Random) {
        let mut batch = Batch::default();
        let limits = BatchLimits {
            records: [random.below(4), random.below(40)][random.below(2)],
            sparing: random.one_in(3),
            ..BatchLimits::default()
        };
        batch.restart(limits, 0, 0);
        let until = match (random.below(3), self.left.get(random.below(9))) {
            (0, Some((key, _))) => Bound::Excluded(key.clone()),
            (1, _) => random_bound(self.grown, random),
            _ => Bound::Unbounded,
        };
        let until = until.as_ref().map(|key| &key[..]);
        let filled = self.scan.fill(until, &mut batch).unwrap();
        let records = batch.records().map(|(k, v)| (k.to_vec(), v.to_vec()));
        for record in records {
            assert_eq!(Some(&record), self.left.first());
            self.left.remove(0);
        }
        match (filled, self.left.first()) {
            (Filled::Full, _) => {}
            (Filled::Unresolved, _) => panic!("no record has operands"),
            (Filled::End, next) => assert_eq!(next, None),
            (Filled::Reached, None) => {}
            (Filled::Reached, Some((key, _))) => {
                if until == Bound::Excluded(key) && random.one_in(2) {
                    self.scan.skip(key);
                    self.left.remove(0);
                }
            }
        }
    }
}

fn check(grown: &Grown, bounds: KeyBounds<'_>, direction: Direction, random: &mut Random) -> usize {
    if random.one_in(3) {
        grown.store.forget_cache();
    }
    let mut left = expected(&grown.records, bounds);
    if direction == Direction::Backward {
        left.reverse();
    }
    let expecting = [0, random.below(200)][random.below(2)];
    let version = grown.version();
    let scan = version.scan_expecting(bounds, direction, expecting);
    let mut seeking = Seeking {
        grown,
        scan: scan.unwrap(),
        direction,
        left,
        passing: 0,
    };
    for _ in 0..1 + random.below(30) {
        match random.below(4) {
            0 | 1 => seeking.seek(random),
            2 => seeking.next(),
            _ => seeking.fill(random),
        }
    }
    while !seeking.left.is_empty() {
        seeking.next();
    }
    seeking.next();
    seeking.passing
}

#[test]
fn seeks_move_on_to_the_first_record_at_or_behind_a_key() {
    let mut passing = 0;
    for seed in 0..60 {
        let grown = Grown::new(5000 + seed, (seed % 4) as u16, 40 + 20 * seed as usize);
        let mut random = Random::new(seed);
        for round in 0..60 {
            let (lower, upper) = match round % 3 {
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
            for direction in [Direction::Forward, Direction::Backward] {
                passing += check(&grown, bounds, direction, &mut random);
            }
        }
    }
    assert!(passing > 10_000, "{passing}");
}

#[test]
fn a_seek_within_a_block_reads_nothing() {
    let grown = Grown::new(9, 0, 400);
    let version = grown.version();
    let keys: Vec<_> = grown.records.keys().collect();
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut scan = version.scan(all, Direction::Forward).unwrap();
    scan.next().unwrap();
    let reads = grown.store.block_reads();
    grown.store.forget_cache();
    scan.seek(keys[2]).unwrap();
    assert_eq!(scan.next().unwrap().unwrap().0, &keys[2][..]);
    // The scan has passed this one.
    scan.seek(keys[1]).unwrap();
    assert_eq!(scan.next().unwrap().unwrap().0, &keys[3][..]);
    assert_eq!(grown.store.block_reads(), reads);
    scan.seek(keys[keys.len() - 1]).unwrap();
    assert!(grown.store.block_reads() > reads);
    let last = scan.next().unwrap().unwrap().0.to_vec();
    assert_eq!(&last, keys[keys.len() - 1]);
    assert_eq!(scan.next().unwrap(), None);
    scan.seek(b"").unwrap();
    assert_eq!(scan.next().unwrap(), None);
}
