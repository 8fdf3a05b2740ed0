//! What messages hide. The sums in the root say how much of a tree readers see. Deletes give space
//! back, however long records are.

use super::*;

const GROUP_BYTES: u64 = 8 << 10;

/// Records of one kind.
#[derive(Clone, Copy, Debug)]
struct Kind {
    records: u64,
    key_bytes: usize,
    /// Bytes of a record's value, by the record's number.
    value_bytes: fn(u64) -> usize,
}

const SHORT: Kind = Kind {
    records: 6000,
    key_bytes: 8,
    value_bytes: |_| 40,
};
const LONG: Kind = Kind {
    records: 400,
    key_bytes: 8,
    value_bytes: |i| 2600 + i as usize % 200,
};
/// One record in a hundred has most of the bytes.
const UNEVEN: Kind = Kind {
    records: 6000,
    key_bytes: 8,
    value_bytes: |i| if i % 100 == 7 { 4000 } else { 12 },
};
/// No record is as long as a block, but one in ten is much longer than the others.
const UNEVEN_SHORT: Kind = Kind {
    records: 6000,
    key_bytes: 8,
    value_bytes: |i| if i % 10 == 7 { 400 } else { 4 },
};
const LONG_KEYS: Kind = Kind {
    records: 400,
    key_bytes: 1500,
    value_bytes: |_| 10,
};
const KINDS: [Kind; 5] = [SHORT, LONG, UNEVEN, UNEVEN_SHORT, LONG_KEYS];

impl Kind {
    fn key(self, i: u64) -> Vec<u8> {
        let mut key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
        key.resize(self.key_bytes, b'k');
        key
    }

    fn record(self, i: u64) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.key(i), Some(vec![i as u8; (self.value_bytes)(i)]))
    }

    /// Whether lengths differ, but within a block.
    fn is_sampled(self) -> bool {
        (self.value_bytes)(7) == 400
    }

    /// A tree of all records, merged in memtables of some groups each.
    fn loaded(self) -> Tree {
        let mut tree = Tree::new(GROUP_BYTES, 8, Some(130));
        let mut memtable = Map::new();
        let mut bytes = 0;
        for i in 0..self.records {
            let (key, value) = self.record(i);
            bytes += (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
            memtable.insert(key, value);
            if bytes > 3 * GROUP_BYTES || i + 1 == self.records {
                tree.merge(&std::mem::take(&mut memtable));
                bytes = 0;
            }
        }
        tree
    }
}

impl Tree {
    fn sums(&self) -> Sums {
        match self.root() {
            Root::Empty => Sums::default(),
            Root::Leaf(leaf, _) => Child::Leaf(leaf).sums(),
            Root::Node(..) => self.root_node().0.sums(),
        }
    }

    fn oracle_bytes(&self) -> u64 {
        let records = self.oracle.iter();
        records.map(|(k, v)| (k.len() + v.len()) as u64).sum()
    }

    /// Checks how many bytes readers see by the sums. They must be exact within a tenth of all
    /// bytes, or nearly so if they come from samples.
    fn check_live(&self, what: &str) {
        let (sums, truth) = (self.sums(), self.oracle_bytes());
        assert_eq!(self.version.live_bytes().unwrap(), sums.live_bytes());
        let off = sums.live_bytes().abs_diff(truth);
        assert!(
            off <= truth / 8 + GROUP_BYTES / 2,
            "{what}: {truth} live bytes, {} by {sums:?}",
            sums.live_bytes()
        );
        let stats = self.version.stats().unwrap();
        let walked = (stats.leaf_records, stats.leaf_bytes, stats.buffered_bytes);
        assert_eq!(walked, (sums.records, sums.leaf_bytes, sums.buffered_bytes));
        assert!(stats.superseded_bytes >= sums.hidden_bytes);
    }

    /// Little more than the accepted share of what the tree holds is hidden. Records that are known
    /// by samples may hide more.
    fn check_space(&self, kind: Kind, what: &str) {
        let (sums, truth) = (self.sums(), self.oracle_bytes());
        let held = sums.leaf_bytes + sums.buffered_bytes;
        let percent = if kind.is_sampled() { 170 } else { 140 };
        assert!(
            held <= truth * percent / 100 + GROUP_BYTES,
            "{what}: {held} bytes are held for {truth}: {sums:?}"
        );
    }
}

#[test]
fn deletes_give_space_back_however_long_records_are() {
    type Deleted = fn(u64) -> bool;
    let all_but: [(&str, Deleted); 3] = [
        ("19 of 20", |i| i % 20 != 0),
        ("half", |i| i % 2 == 0),
        ("long ones", |i| i % 10 == 7),
    ];
    for kind in KINDS {
        for (name, deleted) in all_but {
            for memtables in [1, 5] {
                let what = format!("{name} of {kind:?} in {memtables} memtables");
                let mut tree = kind.loaded();
                tree.check_live("loaded");
                let deletes: Vec<_> = (0..kind.records).filter(|&i| deleted(i)).collect();
                for memtable in deletes.chunks(deletes.len().div_ceil(memtables)) {
                    let memtable = memtable.iter().map(|&i| (kind.key(i), None));
                    tree.merge(&memtable.collect());
                    tree.check_live(&what);
                    tree.check_space(kind, &what);
                }
            }
        }
    }
}

#[test]
fn long_records_that_short_ones_replace_give_space_back() {
    for kind in [LONG, UNEVEN, UNEVEN_SHORT] {
        let mut tree = kind.loaded();
        let replaced: Vec<_> = (0..kind.records).filter(|i| i % 20 != 0).collect();
        for memtable in replaced.chunks(replaced.len().div_ceil(3)) {
            let memtable = memtable.iter().map(|&i| (kind.key(i), Some(vec![1; 6])));
            tree.merge(&memtable.collect());
            tree.check_live(&format!("{kind:?}"));
            tree.check_space(kind, &format!("{kind:?}"));
        }
    }
}

/// A message hides the next older record of its key and no other. If all older records counted,
/// alternating deletes and puts would always be flushed.
#[test]
fn a_key_deleted_and_put_again_counts_once() {
    for kind in [LONG, UNEVEN, LONG_KEYS] {
        let mut tree = kind.loaded();
        let mut random = Random(7);
        for round in 0..40 {
            let mut memtable = Map::new();
            for _ in 0..30 {
                let i = random.below(kind.records / 10) * 10 + 7;
                let value = (random.below(2) == 0).then(|| vec![round; 6]);
                memtable.insert(kind.key(i), value);
            }
            tree.merge(&memtable);
            tree.check_live(&format!("round {round} of {kind:?}"));
            tree.check_space(kind, &format!("round {round} of {kind:?}"));
        }
    }
}

/// Deletes of absent keys hide nothing if filters deny the keys. Short records count with the mean
/// length.
#[test]
fn puts_of_new_keys_among_long_records_hide_nothing() {
    let mut tree = UNEVEN.loaded();
    for memtable in 1..4 {
        let new = (0..500).map(|i| (UNEVEN.key(memtable * 10_000 + i), Some(vec![1; 12])));
        tree.merge(&new.collect());
        assert!(tree.sums().hidden_bytes <= tree.oracle_bytes() / 50);
        tree.check_live("new keys");
    }
}
