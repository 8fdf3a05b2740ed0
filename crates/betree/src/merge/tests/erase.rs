//! Merges that erase ranges, beside messages that are newer.

use terrapin_structure::Erased;

use super::*;

fn erased(lo: &[u8], hi: Option<&[u8]>) -> Erased {
    Erased {
        lo: lo.into(),
        hi: hi.map(Into::into),
    }
}

/// Ascending ranges of any keys.
fn some_ranges(random: &mut Random) -> Vec<Erased> {
    let mut ranges = Vec::new();
    let mut from = random.below(6000);
    for _ in 0..1 + random.below(4) {
        let to = from + 1 + random.below(7000) * random.below(7000) / 7000;
        let lo = match from {
            0..1000 => Vec::new(),
            _ => key_of(from),
        };
        let is_last = to > 18_000;
        ranges.push(erased(&lo, (!is_last).then(|| key_of(to)).as_deref()));
        if is_last {
            break;
        }
        from = to + random.below(3) * random.below(5000);
    }
    ranges.dedup_by(|next, last| last.hi.as_deref() == Some(&next.lo[..]));
    ranges
}

#[test]
fn random_erasing_merges_match_a_map_and_keep_every_rule() {
    let (mut height, mut emptied) = (0, 0);
    for seed in 0..8u64 {
        let fanout = [4, 5, 8][seed as usize % 3];
        let group_bytes = [2048, 3000, 8192][seed as usize / 3 % 3];
        let space = [None, Some(130), Some(110)][seed as usize / 2 % 3];
        let mut random = Random((seed + 1).wrapping_mul(0x1234_5678_9abc_def1));
        let mut tree = Tree::new(group_bytes, fanout, space);
        for round in 0..120 {
            let kind = [Kind::Uniform, Kind::Uniform, Kind::Local, Kind::Huge][round % 4];
            let bytes = group_bytes * [1, 2, 8, 16][random.below(4) as usize];
            let mut messages = memtable(&mut random, kind, bytes, &tree);
            tree.options.space_is_short = random.below(10) == 0;
            if random.below(5) > 0 {
                tree.merge(&messages);
            } else {
                // Sometimes nothing is newer than what is erased, and sometimes much is.
                match random.below(3) {
                    0 => messages.clear(),
                    1 => messages.retain(|_, value| value.is_none()),
                    _ => {}
                }
                let ranges = match random.below(12) {
                    0 => vec![erased(b"", None)],
                    _ => some_ranges(&mut random),
                };
                tree.merge_erasing(&messages, &ranges);
                emptied += u32::from(tree.oracle.is_empty());
            }
            tree.options.space_is_short = false;
            if round % 8 == 0 {
                tree.verify();
            }
        }
        height = height.max(tree.height_max);
        tree.merge_erasing(&Map::new(), &[erased(b"", None)]);
        assert!(tree.oracle.is_empty());
        assert_eq!(tree.store.live_bytes(), 0, "an erased tree leaves nothing");
    }
    assert!(height >= 3 && emptied > 1, "{height}, {emptied}");
}

/// A tree of about 2000 leaves in three levels of nodes, in no cache.
fn large() -> Tree {
    let mut tree = Tree::new(2048, 16, None);
    for part in 0..20u64 {
        let put = |i: u64| (key_of(i * 20 + part), Some(vec![part as u8; 90]));
        tree.merge(&(0..1000).map(put).collect());
    }
    assert!(tree.height_max >= 2);
    tree
}

#[test]
fn whole_leaves_are_given_up_without_a_read_of_them() {
    let mut tree = large();
    let (lo, hi) = (key_of(5_000), key_of(15_000));
    let given_up = tree.ordered().erasable(&lo, Some(&hi), 1).unwrap().unwrap();
    let inside = |key: &Vec<u8>| key[..] >= *given_up.lo && Some(&key[..]) < given_up.hi.as_deref();
    let records = tree.oracle.keys().filter(|key| inside(key)).count();
    assert!(records > 9_500, "{records}");
    let bytes = tree.store.live_bytes();
    let before = tree.disk.stats_total();
    tree.merge_erasing(&Map::new(), &[given_up]);
    let after = tree.disk.stats_total();
    let written = after.written_bytes - before.written_bytes;
    let left = tree.store.live_bytes();
    assert!(left < bytes * 6 / 10, "{left} of {bytes}");
    // Nodes, and the messages in buffers for the keys beside the range.
    assert!(written < bytes / 20, "{written} of {bytes}");
    tree.verify();
}

#[test]
fn short_ranges_and_short_parts_of_leaves_are_not_erasable() {
    let tree = large();
    let part = |lo: u64, hi: u64, bytes_min: u64| {
        let part = tree
            .ordered()
            .erasable(&key_of(lo), Some(&key_of(hi)), bytes_min);
        part.unwrap()
    };
    // A leaf has ten to twenty of these records.
    for lo in (0..18_000).step_by(997) {
        assert_eq!(part(lo, lo + 4, 1), None);
        assert_eq!(part(lo, lo + 500, 1 << 20), None);
        let long = part(lo, lo + 500, 1).unwrap();
        assert!(*long.lo >= *key_of(lo) && long.hi.unwrap() <= key_of(lo + 500).into());
    }
    let all = tree.ordered().erasable(b"", None, 1).unwrap();
    assert_eq!(all, Some(erased(b"", None)));
    let empty = Tree::new(2048, 16, None);
    assert_eq!(empty.ordered().erasable(b"", None, 0).unwrap(), None);
    // A lone leaf goes as a whole, or if most of it does.
    let mut lone = Tree::new(8192, 16, None);
    lone.merge(&(0..50).map(|i| (key_of(i), Some(vec![1; 90]))).collect());
    assert!(matches!(lone.root(), Root::Leaf(..)));
    let part = |lo: u64, hi: u64| lone.ordered().erasable(&key_of(lo), Some(&key_of(hi)), 1);
    assert_eq!(part(0, 10).unwrap(), None);
    assert_eq!(
        part(3, 45).unwrap(),
        Some(erased(&key_of(3), Some(&key_of(45))))
    );
}

/// The messages of a buffer above an erased leaf go with it, and those beside it stay.
#[test]
fn buffered_messages_of_erased_keys_go() {
    let mut tree = Tree::new(4096, 16, None);
    tree.merge(
        &(0..600)
            .map(|i| (key_of(i * 10), Some(vec![1; 90])))
            .collect(),
    );
    let few: Map = (0..60)
        .map(|i| (key_of(i * 100 + 5), Some(vec![2; 9])))
        .collect();
    tree.merge(&few);
    let buffered = tree.version.stats().unwrap().buffered_records;
    assert!(buffered > 40, "{buffered}");
    let given_up = tree
        .ordered()
        .erasable(&key_of(1_000), Some(&key_of(5_000)), 1);
    let given_up = given_up.unwrap().unwrap();
    let newer = Map::from([
        (key_of(3_000), Some(b"new".to_vec())),
        (key_of(3_001), None),
    ]);
    tree.merge_erasing(&newer, &[given_up]);
    let left = tree.version.stats().unwrap().buffered_records;
    assert!(0 < left && left < buffered * 6 / 10, "{left} of {buffered}");
    tree.verify();
}
