//! Every read beside a model. Keyspaces are written, cleared, dropped and checkpointed while the
//! test holds snapshots and iterators of earlier moments. One seed is one run.

mod common;

use std::collections::VecDeque;
use std::ops::Bound;

use common::{Map, World, tiny};
use terrapin::{CheckpointDistance, Database, Keyspace, Range, Snapshot};

type Record = (Vec<u8>, Vec<u8>);

/// Keyspaces of a run. The last one is dropped and created again now and then.
const NAMES: [&str; 3] = ["a", "b", "c"];

struct Held {
    snapshot: Snapshot,
    keyspaces: Vec<Keyspace>,
    maps: Vec<Map>,
}

struct Open {
    range: Range,
    left: Left,
}

/// The records that a range must still return.
struct Left {
    records: VecDeque<Record>,
    /// How many of these records its limit allows.
    allowed: usize,
}

impl Left {
    fn take(&mut self, forward: bool) -> Option<Record> {
        self.allowed = self.allowed.checked_sub(1)?;
        match forward {
            true => self.records.pop_front(),
            false => self.records.pop_back(),
        }
    }
}

struct Run {
    world: World,
    database: Database,
    keyspaces: Vec<Keyspace>,
    maps: Vec<Map>,
    held: Vec<Held>,
    open: Vec<Open>,
    largest_height: u64,
}

/// Takes the keys of all remaining records, shared and borrowed ones in turn.
fn take_keys(open: Open, chooses_front: impl Fn() -> bool) {
    let (mut keys, mut left) = (open.range.keys(), open.left);
    for step in 0.. {
        let forward = chooses_front();
        let got = match (forward, step % 3 == 0) {
            (true, true) => keys.next().map(|key| Vec::from(key.unwrap())),
            (false, true) => keys.next_back().map(|key| Vec::from(key.unwrap())),
            (true, false) => keys.next_ref().unwrap().map(<[u8]>::to_vec),
            (false, false) => keys.next_back_ref().unwrap().map(<[u8]>::to_vec),
        };
        assert_eq!(got, left.take(forward).map(|(key, _)| key));
        if got.is_none() {
            break;
        }
    }
    assert!(keys.next().is_none() && keys.next_back().is_none());
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let chi = [1, 2, 4, 16][seed as usize % 4];
        let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(chi)));
        let keyspaces = NAMES
            .iter()
            .map(|name| database.keyspace(name).unwrap())
            .collect();
        let maps = vec![Map::new(); NAMES.len()];
        Run {
            world,
            database,
            keyspaces,
            maps,
            held: Vec::new(),
            open: Vec::new(),
            largest_height: 0,
        }
    }

    fn below(&self, bound: u64) -> usize {
        self.world.below(bound) as usize
    }

    /// Keys that are prefixes of each other, end in 0xff, are empty, or differ in their last byte
    /// only.
    fn key(&self) -> Vec<u8> {
        match self.below(8) {
            0 => (0..self.below(5))
                .map(|_| [0, 1, b'a', 0xfe, 0xff][self.below(5)])
                .collect(),
            1 => [
                b"a long prefix that many keys share, ".as_slice(),
                &[self.below(256) as u8],
            ]
            .concat(),
            _ => (self.below(900) as u32).to_be_bytes().to_vec(),
        }
    }

    fn value(&self) -> Vec<u8> {
        let bytes = match self.below(40) {
            0 => 3000,
            1 => 0,
            _ => self.below(200),
        };
        (0..bytes)
            .map(|i| (i as u8) ^ (self.world.sim.random() as u8 & 3))
            .collect()
    }

    fn bound(&self) -> Bound<Vec<u8>> {
        match self.below(4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(self.key()),
            _ => Bound::Included(self.key()),
        }
    }

    fn step(&mut self) {
        let at = self.below(NAMES.len() as u64);
        let (keyspace, map) = (self.keyspaces[at].clone(), &self.maps[at]);
        match self.below(100) {
            0..30 => {
                let (key, value) = (self.key(), self.value());
                keyspace.put(&key, &value).unwrap();
                self.maps[at].insert(key, value);
            }
            30..40 => {
                let key = self.key();
                keyspace.delete(&key).unwrap();
                self.maps[at].remove(&key);
            }
            40..44 => self.batch(),
            44 => self.rare(at),
            45 => self.database.checkpoint().unwrap(),
            46 => {
                self.world.sim.advance_ns(400_000_000);
                for _ in 0..self.below(200) {
                    self.world.sim.step();
                }
            }
            47..60 => {
                let key = self.key();
                assert_eq!(
                    keyspace.get(&key).unwrap().as_deref(),
                    map.get(&key).map(Vec::as_slice)
                );
                assert_eq!(keyspace.contains(&key).unwrap(), map.contains_key(&key));
            }
            60..64 => {
                let keys: Vec<_> = (0..self.below(30)).map(|_| self.key()).collect();
                let found = keyspace.multi_get(&keys).unwrap();
                for (key, value) in keys.iter().zip(found) {
                    assert_eq!(value.as_deref(), map.get(key).map(Vec::as_slice));
                }
            }
            64..68 => {
                let owned = |r: terrapin::Result<Option<_>>| r.unwrap().map(own);
                assert_eq!(owned(keyspace.first()), map.first_key_value().map(copied));
                assert_eq!(owned(keyspace.last()), map.last_key_value().map(copied));
            }
            68..78 => {
                let open = self.start(&keyspace, None, map);
                self.take(open, usize::MAX);
            }
            78..81 => {
                let open = self.start(&keyspace, None, map);
                self.open.push(open);
            }
            81..83 => {
                let snapshot = self.database.snapshot().unwrap();
                self.held.push(Held {
                    snapshot,
                    keyspaces: self.keyspaces.clone(),
                    maps: self.maps.clone(),
                });
                if self.held.len() > 5 {
                    let dropped = self.below(self.held.len() as u64);
                    self.held.swap_remove(dropped);
                }
            }
            83..93 => self.read_held(at),
            _ => {
                if !self.open.is_empty() {
                    let which = self.below(self.open.len() as u64);
                    let open = self.open.swap_remove(which);
                    let steps = 1 + self.below(60);
                    if let Some(open) = self.take(open, steps) {
                        self.open.push(open);
                    }
                }
                if self.open.len() > 6 {
                    self.open.remove(0);
                }
            }
        }
    }

    fn batch(&mut self) {
        let mut batch = self.database.batch();
        for _ in 0..self.below(12) {
            let (at, key, value) = (self.below(NAMES.len() as u64), self.key(), self.value());
            if self.below(4) == 0 {
                batch.delete(&self.keyspaces[at], &key);
                self.maps[at].remove(&key);
            } else {
                batch.put(&self.keyspaces[at], &key, &value);
                self.maps[at].insert(key, value);
            }
        }
        self.database.write(batch).unwrap();
    }

    fn rare(&mut self, at: usize) {
        match self.below(4) {
            0 => {
                self.keyspaces[at].clear().unwrap();
                self.maps[at].clear();
            }
            1 => {
                let last = NAMES.len() - 1;
                self.database.drop_keyspace(NAMES[last]).unwrap();
                self.keyspaces[last] = self.database.keyspace(NAMES[last]).unwrap();
                self.maps[last].clear();
            }
            2 => {
                let chi = CheckpointDistance::Fixed(1 + self.below(20) as u32);
                self.keyspaces[at].set_checkpoint_distance(chi).unwrap();
            }
            _ => {
                // Some empty ranges, which a map would refuse.
                let inverted = (Bound::Excluded(b"b"), Bound::Excluded(b"b"));
                assert!(self.keyspaces[at].range(inverted).next().is_none());
                assert!(self.keyspaces[at].range("b".."a").next_back().is_none());
            }
        }
        let stat = self.database.stat().unwrap();
        let height = stat
            .keyspaces
            .iter()
            .filter_map(|k| k.tree.figure("height"))
            .max()
            .unwrap_or(0);
        self.largest_height = self.largest_height.max(height);
    }

    /// A range over random bounds or a prefix, with the records that it must return.
    fn start(&self, keyspace: &Keyspace, snapshot: Option<&Snapshot>, map: &Map) -> Open {
        if self.below(4) == 0 {
            let mut prefix = self.key();
            prefix.truncate(self.below(5));
            let range = match snapshot {
                Some(snapshot) => snapshot.prefix(keyspace, &prefix),
                None => keyspace.prefix(&prefix),
            };
            let left = map
                .iter()
                .filter(|(key, _)| key.starts_with(&prefix))
                .map(copied)
                .collect();
            return self.limited(range, left);
        }
        let bounds = (self.bound(), self.bound());
        let inside = |key: &Vec<u8>| std::ops::RangeBounds::contains(&bounds, key);
        let left = map
            .iter()
            .filter(|(key, _)| inside(key))
            .map(copied)
            .collect();
        let range = match snapshot {
            Some(snapshot) => snapshot.range(keyspace, bounds),
            None => keyspace.range(bounds),
        };
        self.limited(range, left)
    }

    /// One in four has a limit.
    fn limited(&self, range: Range, records: VecDeque<Record>) -> Open {
        let (range, allowed) = match self.below(4) {
            0 => {
                let allowed = self.below([3, 40, 300][self.below(3)]);
                (range.limit(allowed), allowed)
            }
            _ => (range, usize::MAX),
        };
        Open {
            range,
            left: Left { records, allowed },
        }
    }

    /// Takes records from one end, the other, or both. Returns the iterator unless it is at its
    /// end.
    fn take(&self, mut open: Open, steps: usize) -> Option<Open> {
        if self.below(6) == 0 {
            open = self.narrow(open);
        }
        let ends = self.below(3);
        let chooses_front = || ends == 0 || (ends == 1 && self.below(2) == 0);
        if steps == usize::MAX && self.below(3) == 0 {
            take_keys(open, chooses_front);
            return None;
        }
        for _ in 0..steps {
            let forward = chooses_front();
            let got = match forward {
                true => open.range.next(),
                false => open.range.next_back(),
            };
            let got = got.map(|r| own(r.unwrap()));
            assert_eq!(got, open.left.take(forward));
            if got.is_none() {
                assert!(open.range.next().is_none() && open.range.next_back().is_none());
                return None;
            }
        }
        Some(open)
    }

    /// Continues behind a key, or before it, wherever the ends are.
    fn narrow(&self, open: Open) -> Open {
        let (Open { range, mut left }, key) = (open, self.key());
        let range = match self.below(2) {
            0 => {
                left.records.retain(|record| record.0 > key);
                range.after(&key)
            }
            _ => {
                left.records.retain(|record| record.0 < key);
                range.before(&key)
            }
        };
        Open { range, left }
    }

    fn read_held(&self, at: usize) {
        if self.held.is_empty() {
            return;
        }
        let held = &self.held[self.below(self.held.len() as u64)];
        let (keyspace, map) = (&held.keyspaces[at], &held.maps[at]);
        let key = self.key();
        let expected = map.get(&key).map(Vec::as_slice);
        match self.below(5) {
            0 => assert_eq!(
                held.snapshot.get(keyspace, &key).unwrap().as_deref(),
                expected
            ),
            1 => assert_eq!(
                held.snapshot.contains(keyspace, &key).unwrap(),
                expected.is_some()
            ),
            2 => {
                let (first, last) = (
                    held.snapshot.first(keyspace).unwrap(),
                    held.snapshot.last(keyspace).unwrap(),
                );
                assert_eq!(first.map(own), map.first_key_value().map(copied));
                assert_eq!(last.map(own), map.last_key_value().map(copied));
            }
            3 => {
                let found = held
                    .snapshot
                    .multi_get(keyspace, &[&key[..], b"", &key])
                    .unwrap();
                assert_eq!(
                    (found[0].as_deref(), found[2].as_deref()),
                    (expected, expected)
                );
            }
            _ => {
                let open = self.start(keyspace, Some(&held.snapshot), map);
                self.take(open, usize::MAX);
            }
        }
    }

    fn finish(mut self) -> (u64, u64) {
        for open in std::mem::take(&mut self.open) {
            self.take(open, usize::MAX);
        }
        for held in &self.held {
            for (keyspace, map) in held.keyspaces.iter().zip(&held.maps) {
                let found: Map = held
                    .snapshot
                    .iter(keyspace)
                    .map(|r| own(r.unwrap()))
                    .collect();
                assert_eq!(&found, map);
            }
        }
        for (keyspace, map) in self.keyspaces.iter().zip(&self.maps) {
            assert_eq!(&common::all(keyspace), map);
            let backward: Vec<_> = keyspace.iter().rev().map(|r| own(r.unwrap())).collect();
            assert!(
                backward
                    .iter()
                    .rev()
                    .eq(map.iter().map(copied).collect::<Vec<_>>().iter())
            );
        }
        self.held.clear();
        assert_eq!(self.database.metrics().views, 0);
        let folds = self.database.metrics().folds;
        self.database.close().unwrap();
        self.world.verify();
        (folds, self.largest_height)
    }
}

fn own((key, value): (terrapin::Slice, terrapin::Slice)) -> Record {
    (key.to_vec(), value.to_vec())
}

fn copied((key, value): (&Vec<u8>, &Vec<u8>)) -> Record {
    (key.clone(), value.clone())
}

#[test]
fn every_read_sees_its_moment() {
    let (mut folds, mut height) = (0, 0);
    for seed in 0..24 {
        let mut run = Run::new(seed);
        for _ in 0..2500 {
            run.step();
        }
        let (folded, grown) = run.finish();
        folds += folded;
        height = height.max(grown);
    }
    // The run took the rare paths.
    assert!(folds > 50, "{folds} folds");
    assert!(height >= 3, "the highest tree had {height} levels");
}
